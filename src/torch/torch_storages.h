// Parses the persistent ids of torch pickles, which name the storage of a
// tensor.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/name_index.h"
#include "haulway/dtype.h"
#include "haulway/index.h"
#include "haulway/status.h"
#include "haulway/tree.h"
#include "torch/torch_tensors.h"

namespace haulway::torch {

// A checked persistent id: ('storage', storage type, key, location, numel[,
// view metadata]) (rule P06). The text lives as long as the tree.
struct StorageId {
  DType dtype = DType::kU8;  // kU8 if untyped.
  bool untyped = false;
  std::string_view key;
  std::string_view location;
  uint64_t nbytes = 0;  // numel times the element size.
  // Only in legacy files of torch up to 0.3: the part of `key` that this
  // storage views.
  bool is_view = false;
  std::string_view view_key;
  uint64_t view_offset = 0;  // In bytes.
  uint64_t view_bytes = 0;
};

// Parses a persistent id. `legacy`: allow the sixth item, the view metadata. A
// numeric key, as torch.package writes it, becomes text in `arena`.
Result<StorageId> ParseStorageId(const Value& persistent_id, bool legacy,
                                 TreeArena* arena);

// Checks the number of elements that the two older containers store before a
// storage, in `before`. Fails with kCorrupt if it differs.
Status CheckElements(const StorageInfo& info,
                     std::span<const std::byte> before);

// A StorageTable finds the storages of one index by key.
class StorageTable {
 public:
  explicit StorageTable(CheckpointIndex* index) : index_(*index) {}

  // Returns the row of the storage that `id` names. If the key is new, adds the
  // storage, without a position in the source. Fails with kCorrupt if an
  // earlier id gave the key another size (rule P08), or if a view exceeds its
  // storage.
  Result<StorageUse> Use(const StorageId& id);

  // Returns the row, or NameIndex::kNone if there is none.
  uint32_t Find(std::string_view key) const {
    return by_key_.Find(key, KeyOf{index_});
  }

  // Reserves room for as many storages as the file may have.
  void Reserve(size_t count) {
    by_key_.Reserve(count);
    index_.storages.reserve(count);
  }

 private:
  struct KeyOf {
    const CheckpointIndex& index;
    std::string_view operator()(uint32_t i) const {
      return index.storages[i].key;
    }
  };

  CheckpointIndex& index_;
  NameIndex by_key_;
};

}  // namespace haulway::torch
