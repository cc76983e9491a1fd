// Reads and computes parts of quantized weights.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "arithmetic/weight.h"
#include "haulway/buffer.h"
#include "haulway/format.h"
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

// A WeightReader computes ranges of weights. It reads the rows of the root and
// of its scales that a range needs; of small scales and of other companions, it
// reads all, and keeps those of the weights that were read last. A root whose
// columns become rows is read in panels of columns, of which the last are kept.
//
// Threads: any number at once.
class WeightReader {
 public:
  // `reader`, of the quantized checkpoint, must outlive this.
  WeightReader(const FormatReader& reader, std::vector<Weight> weights);

  const std::vector<Weight>& weights() const { return weights_; }

  // Computes bytes of a weight from `begin` on. Requires: they lie within it.
  Status Read(uint32_t weight, uint64_t begin, std::span<std::byte> out) const;

 private:
  // The companions of a weight.
  struct Companions {
    std::array<Buffer, kRoles> parts;
    float global = 1;
    std::vector<uint32_t> group_of;
    std::vector<float> map, nested_map;
  };
  // Columns of a stored matrix, beside one another.
  struct Panel {
    Buffer bytes, scale_bytes;
    StoredRows rows;
    StoredRows scales;       // For kTransposed, those of the whole matrix.
    uint64_t first_row = 0;  // The row of the result at its first byte.
  };
  class Output;
  class RowLoop;

  Result<std::shared_ptr<const Companions>> CompanionsOf(uint32_t weight) const;
  Result<Companions> LoadCompanions(const Weight& weight) const;
  Result<Buffer> LoadWhole(const TensorInfo& info) const;
  // Returns bytes of a tensor: a view if there is one, else in new memory.
  Result<Buffer> Load(const TensorInfo& info, uint64_t begin,
                      uint64_t length) const;
  // Returns the panel with a row of a matrix, and sets `end` to the first row
  // behind it.
  Result<std::shared_ptr<const Panel>> PanelOf(uint32_t weight, uint64_t matrix,
                                               uint64_t row,
                                               uint64_t* end) const;
  Result<Panel> LoadPanel(const Weight& weight, uint64_t matrix,
                          uint64_t first_unit, uint64_t units) const;

  Status ReadBlocks(const Weight& weight, Output* out) const;
  Status ReadRows(uint32_t number, Output* out) const;
  Status ReadColumns(uint32_t number, Output* out) const;
  Status ReadTransposed(uint32_t number, Output* out) const;

  const FormatReader& reader_;
  const std::vector<Weight> weights_;
  mutable KeptValues<Companions> companions_{3};
  mutable KeptValues<Panel> panels_{3};
};

}  // namespace haulway::arithmetic
