// Which bytes of storages are used, and how to save no others.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace haulway::python {

// A run of bytes of a storage that is saved as a storage of its own.
struct StorageCut {
  uint64_t begin;
  uint64_t end;
  // One view uses it, with holes in between: its elements are saved in order.
  bool is_sparse;
};

// A CompactPlan is told of every view of every storage, and then cuts the
// storages: views that share bytes stay in one piece, others part, be it that
// their elements lie between one another's.
class CompactPlan {
 public:
  static constexpr size_t kWhole = ~size_t{0};

  // `begin` is the byte of the first element; strides are in elements and not
  // negative.
  void AddView(size_t storage, uint64_t begin, uint64_t item_bytes,
               std::span<const int64_t> shape,
               std::span<const int64_t> strides);
  // It is saved as it is.
  void KeepWhole(size_t storage) { At(storage).is_whole = true; }

  // To be called once, after all views are known.
  void Finish();
  // The number of the cut that the views which begin there lie in, or kWhole.
  size_t CutOf(size_t storage, uint64_t begin) const;
  const StorageCut& cut(size_t number) const { return cuts_[number]; }
  size_t cut_count() const { return cuts_.size(); }

 private:
  struct View {
    uint64_t begin;
    uint64_t end;
    bool is_sparse;
    uint64_t bytes;              // Size of its elements; 0 if some repeat.
    std::vector<int64_t> sizes;  // Element size, shape, then strides.
  };
  struct Storage {
    bool is_whole = false;
    std::vector<View> views;
    std::vector<std::pair<uint64_t, size_t>> cuts;  // By begin of a view.
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

// Strides of the same shape without holes, row by row.
std::vector<int64_t> DenseStrides(std::span<const int64_t> shape);

}  // namespace haulway::python
