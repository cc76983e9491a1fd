// Types that the arena bindings share.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "base/gil.h"
#include "haulway/arena.h"
#include "haulway/status.h"

namespace haulway::python {

// Converts seconds to nanoseconds; infinity and more than a century become
// UINT64_MAX, "for ever".
uint64_t Nanoseconds(double seconds);

// An arena and the two ends of it that this process has opened, each at most
// once, by whichever thread asks first.
class ArenaObject {
 public:
  explicit ArenaObject(std::shared_ptr<Arena> opened)
      : arena(std::move(opened)), ends_(std::make_unique<Ends>()) {}

  std::shared_ptr<ArenaWriter> OpenWriter();
  std::shared_ptr<ArenaReader> OpenReader();

  const std::shared_ptr<Arena> arena;

 private:
  struct Ends {
    nanobind::ft_mutex mutex;
    std::shared_ptr<ArenaWriter> writer;
    std::shared_ptr<ArenaReader> reader;
  };
  std::unique_ptr<Ends> ends_;
};

// Calls `attempt(wait_ns)` until it returns something other than kTimeout or
// `seconds` have passed. Waits without the GIL and checks for signals.
template <class Attempt>
Status AttemptFor(double seconds, const Attempt& attempt) {
  constexpr uint64_t kSlice = 100'000'000;
  uint64_t left = Nanoseconds(seconds);
  // The first attempt keeps the GIL: usually there is nothing to wait for.
  Status status = attempt(uint64_t{0});
  while (status.code() == Code::kTimeout && left > 0) {
    const uint64_t slice = left < kSlice ? left : kSlice;
    {
      const GilReleased released;
      status = attempt(slice);
    }
    if (left != UINT64_MAX) left -= slice;
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }
  return status;
}

}  // namespace haulway::python
