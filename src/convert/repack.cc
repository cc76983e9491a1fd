#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

#include "convert/object_names.h"
#include "haulway/convert.h"
#include "haulway/load.h"
#include "haulway/pickle.h"
#include "tensor/strided.h"
#include "tensor/tree_copy.h"
#include "torch/torch_writer.h"

namespace haulway {

namespace {

// The bytes of a storage that tensors use.
struct Used {
  uint64_t begin = UINT64_MAX;
  uint64_t end = 0;
};

// A Renumbering rewrites the pickled object while it is written: storages are
// numbered by first mention, and offsets are adjusted to compacted storages.
class Renumbering {
 public:
  Renumbering(const CheckpointIndex& index, bool compact)
      : index_(index), used_(index.storages.size()), keys_(used_.size()) {
    for (size_t row = 0; row < used_.size(); ++row) {
      if (!compact) used_[row] = {0, index.storages[row].nbytes};
    }
    if (compact) FindUsed();
  }

  // Replaces dicts, by identity().
  Status Rename(const convert::NameEdits& edits) {
    HAULWAY_ASSIGN(auto dicts, convert::EditedDicts(index_, edits, &arena_));
    dicts_.swap(dicts);  // g++ 12 reports a false error for a move.
    return Status();
  }

  std::optional<Value> Replace(const Value& value) {
    if (value.is_mapping()) {
      const auto edited = dicts_.find(value.identity());
      if (edited == dicts_.end()) return std::nullopt;
      return edited->second;
    }
    if (value.is(Kind::kPersistent)) {
      if (NamesWholeStorage(value.persistent_id())) return Storage(value);
      has_storage_views_ = true;
      return std::nullopt;
    }
    if (!value.is(Kind::kObject)) return std::nullopt;
    const Object& object = value.object();
    if (!object.args.is(Kind::kTuple)) return std::nullopt;
    const std::span<const Value> args = object.args.sequence().items();
    // The arguments of every rebuild function that takes a storage begin with
    // (storage, offset in elements).
    if (args.size() < 2 || !args[0].is(Kind::kPersistent) ||
        !args[1].is(Kind::kInt) || object.tensor == Object::kNoTensor) {
      return std::nullopt;
    }
    const TensorInfo& tensor = index_.tensors[object.tensor];
    if (tensor.storage == kNoStorage) return std::nullopt;
    const uint64_t skipped =
        Range(tensor.storage).begin / ItemBytes(tensor.dtype);
    if (skipped == 0) return std::nullopt;
    Value& known = objects_[&object];
    if (known.is(Kind::kObject)) return known;
    auto* copy = arena_.New<Object>();
    *copy = object;
    Sequence* moved = CopyItems(&arena_, args);
    // A tensor without elements may have any offset.
    moved->data[1] = Value::Int(std::max<int64_t>(
        0, args[1].integer() - static_cast<int64_t>(skipped)));
    copy->args = Value::Of(Kind::kTuple, moved);
    known = Value::Of(copy);
    return known;
  }

  // Returns whether the object names parts of storages, as torch 0.3 did.
  bool has_storage_views() const { return has_storage_views_; }
  // Rows of the storages, in the order of their new numbers.
  const std::vector<uint32_t>& order() const { return order_; }
  Used Range(uint32_t row) const {
    return used_[row].begin < used_[row].end ? used_[row] : Used{0, 0};
  }

 private:
  void FindUsed() {
    for (const TensorInfo& tensor : index_.tensors) {
      if (tensor.storage == kNoStorage || tensor.nbytes == 0) continue;
      const StorageInfo& storage = index_.storages[tensor.storage];
      Used& used = used_[tensor.storage];
      const uint64_t item = ItemBytes(tensor.dtype);
      uint64_t begin = tensor.storage_offset * item;
      uint64_t end =
          begin +
          ElementExtent(tensor.shape, tensor.strides).value_or(0) * item;
      if (tensor.kind == TensorKind::kStorage) {
        begin = 0;
        end = storage.nbytes;
      }
      // Keep the range aligned for elements of any dtype, because tensors of
      // other dtypes may use the same bytes.
      constexpr uint64_t kLargestItem = 16;
      used.begin = std::min(used.begin, begin / kLargestItem * kLargestItem);
      used.end = std::max(used.end, end);
    }
  }

  // Returns whether `id` is ('storage', storage type, key, location, numel[,
  // None]).
  static bool NamesWholeStorage(const Value& id) {
    if (!id.is(Kind::kTuple)) return false;
    const std::span<const Value> items = id.sequence().items();
    return items.size() == 5 || (items.size() == 6 && items[5].is(Kind::kNone));
  }

  Value Storage(const Value& value) {
    const uint32_t row = value.persistent_storage();
    const StorageInfo& storage = index_.storages[row];
    const Used range = Range(row);
    const uint64_t bytes = range.end - range.begin;
    const uint64_t item = storage.untyped ? 1 : ItemBytes(storage.dtype);
    if (!keys_[row].is(Kind::kString)) {
      keys_[row] = Value::Text(Kind::kString,
                               arena_.Copy(fmt::format("{}", order_.size())));
      order_.push_back(row);
    }
    const std::span<const Value> old = value.persistent_id().sequence().items();
    // ('storage', storage type, key, location, numel): a new tuple at each
    // mention, as torch.save() writes it.
    const std::array<Value, 5> id = {
        old[0], old[1], keys_[row], old[3],
        Value::Int(static_cast<int64_t>(bytes / item))};
    const std::array<Value, 2> resolved = {
        Value::Of(Kind::kTuple, CopyItems(&arena_, id)),
        Value::Int(static_cast<int64_t>(row))};
    return Value::Of(Kind::kPersistent, CopyItems(&arena_, resolved));
  }

  const CheckpointIndex& index_;
  std::vector<Used> used_;
  TreeArena arena_;
  std::vector<Value> keys_;  // The new key by row, or None.
  std::vector<uint32_t> order_;
  bool has_storage_views_ = false;
  std::unordered_map<const Object*, Value> objects_;
  std::unordered_map<const void*, Value> dicts_;
};

}  // namespace

Result<Repacked> Repack(const Checkpoint& checkpoint,
                        const RepackOptions& options) {
  return convert::RepackWithNames(checkpoint, options, {});
}

Result<Repacked> convert::RepackWithNames(const Checkpoint& checkpoint,
                                          const RepackOptions& options,
                                          const NameEdits& edits) {
  const CheckpointIndex& index = checkpoint.index();
  const auto run = [&]() -> Result<Repacked> {
    if (index.format != Format::kTorch &&
        index.format != Format::kTorchLegacy) {
      return Status(Code::kUnsupported,
                    fmt::format("cannot repack the format {}: expected "
                                "torch or torch-legacy",
                                Name(index.format)));
    }
    if (index.flat) {
      return Status(Code::kUnsupported,
                    "cannot repack several files as one: their objects are "
                    "apart");
    }
    Renumbering renumbering(index, options.compact);
    HAULWAY_TRY(renumbering.Rename(edits));
    PickleWriteOptions writing;
    writing.replace = [&](const Value& value) {
      return renumbering.Replace(value);
    };
    HAULWAY_ASSIGN(std::string pickle, WritePickle(index.root, writing));
    if (renumbering.has_storage_views()) {
      return Status(Code::kUnsupported,
                    "cannot repack views of storages, as torch 0.3 wrote them");
    }

    LoadOptions loading;
    // A source in memory is written without a copy.
    if (checkpoint.source().View(0, 0).has_value()) loading.io = IoMode::kMmap;
    loading.threads = options.archive.threads;
    // The new file gets new checksums, which would hide damage.
    loading.verify = true;
    const std::vector<uint32_t>& rows = renumbering.order();
    HAULWAY_ASSIGN(const LoadedStorages loaded,
                   LoadStorages(checkpoint, rows, loading));
    Repacked repacked;
    repacked.storages = rows.size();
    std::vector<BytesToWrite> storages;
    storages.reserve(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const Used range = renumbering.Range(rows[i]);
      const Buffer used =
          loaded.buffers[i].Slice(range.begin, range.end - range.begin);
      storages.push_back(
          {.length = used.size(), .bytes = used.data(), .owner = used.owner()});
    }
    for (const StorageInfo& storage : index.storages) {
      repacked.dropped_bytes += storage.nbytes;
    }
    for (const BytesToWrite& storage : storages) {
      repacked.dropped_bytes -= storage.length;
    }
    HAULWAY_ASSIGN(repacked.layout, torch::LayOutCheckpoint(std::move(pickle),
                                                            std::move(storages),
                                                            options.archive));
    return repacked;
  };
  auto repacked = run();
  if (!repacked.ok()) {
    return std::move(repacked).status().Of(checkpoint.source().name());
  }
  return repacked;
}

}  // namespace haulway
