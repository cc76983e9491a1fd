// Whether several threads copy faster than one: measured, not assumed.

#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace haulway::arena {

// A CopyPace learns how long copies take alone and in company, apart for each
// size, and says which way the next one is to go.
//
// Company has to be clearly faster: it takes other threads' time as well. It
// is not where one core can use all of the memory's speed, nor where others
// want the processors; both change while a process runs, so each way is tried
// again now and then.
class CopyPace {
 public:
  // Whether the next copy of so many bytes is to go in company.
  bool InCompany(size_t bytes);
  void Learn(bool in_company, size_t bytes, std::chrono::nanoseconds took);

 private:
  // Class n is for copies of 2^n to 2^(n+1) bytes; the last one also for larger
  // ones.
  static constexpr size_t kClasses = 8;
  struct Pace {
    std::array<double, 2> ns_per_byte = {0, 0};  // Alone, in company.
    std::array<uint32_t, 2> copies = {0, 0};
    uint32_t since_trial = 0;
  };
  Pace& ClassOf(size_t bytes);

  std::array<Pace, kClasses> classes_;
};

}  // namespace haulway::arena
