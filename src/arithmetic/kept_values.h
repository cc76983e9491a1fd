// Values that are expensive to make, of which the last few are kept.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "haulway/status.h"

namespace haulway::arithmetic {

// A KeptValues keeps the last few values that were made, by number. Threads
// that need the same value wait for the one that makes it.
template <class T>
class KeptValues {
 public:
  explicit KeptValues(size_t most) : most_(most) {}

  // Returns the value, made by `make` if it is not kept.
  template <class Make>
  Result<std::shared_ptr<const T>> Get(uint64_t number, const Make& make) {
    std::shared_ptr<Slot> slot;
    {
      const std::lock_guard lock(mutex_);
      for (const std::shared_ptr<Slot>& one : slots_) {
        if (one->number == number) slot = one;
      }
      if (slot == nullptr) {
        slot = std::make_shared<Slot>();
        slot->number = number;
        slots_.push_back(slot);
        if (slots_.size() > most_) slots_.pop_front();
      }
    }
    const std::lock_guard lock(slot->mutex);
    if (slot->value == nullptr) {
      // A failure is not kept: the next call tries again.
      HAULWAY_ASSIGN(T made, make());
      slot->value = std::make_shared<const T>(std::move(made));
    }
    return slot->value;
  }

 private:
  struct Slot {
    uint64_t number = 0;
    std::mutex mutex;
    std::shared_ptr<const T> value HAULWAY_GUARDED_BY(mutex);
  };

  const size_t most_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Slot>> slots_ HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace haulway::arithmetic
