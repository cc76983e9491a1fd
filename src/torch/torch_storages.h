// The persistent ids of torch pickles: which storage a tensor lies in.

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

// ('storage', storage type, key, location, numel[, view metadata]), checked
// (rule P06). The text lives as long as the tree.
struct StorageId {
  DType dtype = DType::kU8;  // kU8 if untyped.
  bool untyped = false;
  std::string_view key;
  std::string_view location;
  uint64_t nbytes = 0;  // numel times element size, in memory.
  // Legacy files, torch up to 0.3: the part of `key` this storage views.
  bool is_view = false;
  std::string_view view_key;
  uint64_t view_offset = 0;  // In bytes.
  uint64_t view_bytes = 0;
};

// `legacy` takes the sixth item, the view metadata. A key that is a number, as
// torch.package writes it, becomes text in `arena`.
Result<StorageId> ParseStorageId(const Value& persistent_id, bool legacy,
                                 TreeArena* arena);

// Whether a storage of the two older containers has in front of it what
// `before` holds, its number of elements; kCorrupt if not.
Status CheckElements(const StorageInfo& info,
                     std::span<const std::byte> before);

// The storages of one index, by key.
class StorageTable {
 public:
  explicit StorageTable(CheckpointIndex* index) : index_(*index) {}

  // The row of the storage that `id` means; added, with no place in the source
  // yet, if its key is new. Fails with kCorrupt if an earlier id gave the key
  // another size (rule P08), or a view leaves its storage.
  Result<StorageUse> Use(const StorageId& id);

  // NameIndex::kNone if there is none.
  uint32_t Find(std::string_view key) const {
    return by_key_.Find(key, KeyOf{index_});
  }

  // Makes room for as many storages as the file may have.
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
