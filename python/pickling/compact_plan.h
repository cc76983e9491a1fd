// Finds which bytes of the storages are used, so that only those are saved.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace haulway::python {

// A range of bytes of a storage that is saved as a storage of its own.
struct StorageCut {
  uint64_t begin;
  uint64_t end;
  // Only one view uses the range, and the view has holes: its elements are
  // saved in order without them.
  bool is_sparse;
};

// A CompactPlan learns every view of every storage and then cuts the storages.
// Views that share bytes stay in one piece; other views get separate pieces,
// even if their elements are interleaved.
class CompactPlan {
 public:
  static constexpr size_t kWhole = ~size_t{0};

  // `begin` is the byte offset of the first element. Strides count elements and
  // are not negative.
  void AddView(size_t storage, uint64_t begin, uint64_t item_bytes,
               std::span<const int64_t> shape,
               std::span<const int64_t> strides);
  // Saves the storage uncut.
  void KeepWhole(size_t storage) { At(storage).is_whole = true; }

  // Makes the cuts. Call once, after all views have been added.
  void Finish();
  // Returns the number of the cut for the views that begin at `begin`, or
  // kWhole.
  size_t CutOf(size_t storage, uint64_t begin) const;
  const StorageCut& cut(size_t number) const { return cuts_[number]; }
  size_t cut_count() const { return cuts_.size(); }

 private:
  struct View {
    uint64_t begin;
    uint64_t end;
    bool is_sparse;
    uint64_t bytes;              // Size of the elements; 0 if some overlap.
    std::vector<int64_t> sizes;  // Element size, shape, then strides.
  };
  struct Storage {
    bool is_whole = false;
    std::vector<View> views;
    std::vector<std::pair<uint64_t, size_t>> cuts;  // Sorted by the first byte
                                                    // of a view.
  };
  Storage& At(size_t storage) {
    if (storage >= storages_.size()) storages_.resize(storage + 1);
    return storages_[storage];
  }

  void AddCut(std::span<const View> views, Storage* storage);
  bool CutApart(std::span<const View> views, Storage* storage);

  std::vector<Storage> storages_;
  std::vector<StorageCut> cuts_;
};

// Returns the row-major strides of a dense tensor of this shape.
std::vector<int64_t> DenseStrides(std::span<const int64_t> shape);

}  // namespace haulway::python
