// Measures whether several threads copy faster than one.

#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace haulway::arena {

// A CopyPace records how long copies take alone and with helpers, separately
// for each size class, and chooses for the next copy.
//
// Helpers must be clearly faster, since they take processor time from others.
// They are not faster where one core can use the full memory bandwidth, nor
// while other programs need the processors. Both can change while a process
// runs, so each way is tried again from time to time.
class CopyPace {
 public:
  // Returns whether the next copy of `bytes` is to use helpers.
  bool InCompany(size_t bytes);
  void Learn(bool in_company, size_t bytes, std::chrono::nanoseconds took);

 private:
  // Class n is for copies of 2^(21 + n) to 2^(22 + n) bytes. The first class
  // includes smaller copies, the last one larger ones.
  static constexpr size_t kClasses = 8;
  struct Pace {
    std::array<double, 2> ns_per_byte = {0, 0};  // Alone, with helpers.
    std::array<uint32_t, 2> copies = {0, 0};
    uint32_t since_trial = 0;
  };
  Pace& ClassOf(size_t bytes);

  std::array<Pace, kClasses> classes_;
};

}  // namespace haulway::arena
