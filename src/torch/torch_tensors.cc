// Design: the Resolver walks the tree to name the objects by paths joined with
// dots. If two names come out equal, it walks the tree again and escapes dots
// in keys. Each call of a torch function becomes a row of tensors, once,
// however often it is mentioned, and is proven to lie within its storage. The
// memory for names and shapes is limited relative to the bytes that the file
// stores.
//
// Alternative not taken: always escape. That would change the names in every
// state dict for the sake of few. Sparse, nested and wrapped tensors are not
// new kinds of rows: their parts are rows with names of their own, and the call
// stays in the tree for code that builds the object.

#include "torch/torch_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/name_index.h"
#include "base/text.h"
#include "pickle/pickle_globals.h"
#include "pickle/pickle_vm.h"
#include "tensor/strided.h"
#include "torch/corrupt_at.h"
#include "torch/shardings.h"
#include "torch/tensor_paths.h"
#include "torch/torch_calls.h"

namespace haulway::torch {

namespace {

constexpr uint32_t kNoTensor = Object::kNoTensor;

// The parts of a sparse tensor's data tuple, by layout.
struct SparseParts {
  std::string_view layout;
  std::array<std::string_view, 3> names;
  size_t count;
};
constexpr std::array kSparseParts = {
    SparseParts{"torch.sparse_coo", {"indices", "values", ""}, 2},
    SparseParts{
        "torch.sparse_csr", {"crow_indices", "col_indices", "values"}, 3},
    SparseParts{
        "torch.sparse_bsr", {"crow_indices", "col_indices", "values"}, 3},
    SparseParts{
        "torch.sparse_csc", {"ccol_indices", "row_indices", "values"}, 3},
    SparseParts{
        "torch.sparse_bsc", {"ccol_indices", "row_indices", "values"}, 3},
};
constexpr std::array<std::string_view, 4> kNestedParts = {
    "buffer", "sizes", "strides", "storage_offsets"};

// The arguments of a call. An item out of range is None.
class Arguments {
 public:
  explicit Arguments(const Value& args)
      : items_(args.is_sequence() ? args.sequence().items()
                                  : std::span<const Value>()) {}
  size_t size() const { return items_.size(); }
  std::span<const Value> items() const { return items_; }
  Value operator[](size_t i) const {
    return i < items_.size() ? items_[i] : Value();
  }

 private:
  std::span<const Value> items_;
};

bool IsFlagSet(const Value& metadata, std::string_view name) {
  if (!metadata.is_mapping()) return false;
  const Value* flag = metadata.mapping().Find(name);
  return flag != nullptr && flag->is(Kind::kBool) && flag->boolean();
}

class Resolver {
 public:
  Resolver(const ParseLimits& limits, const TreeBudget& most,
           const StorageResolver& resolve, TreeArena* arena,
           CheckpointIndex* index, bool of_process)
      : limits_(limits),
        most_(most),
        most_bytes_(MostBytes(most, *arena)),
        resolve_(resolve),
        arena_(*arena),
        index_(*index),
        of_process_(of_process),
        shardings_(limits, index) {}

  Status Run() {
    HAULWAY_ASSIGN(index_.entries, Name(/*escaped=*/false));
    // The keys of one dict differ, so only joined paths can repeat.
    if (!joined_) return Status();
    NameIndex seen;
    const auto name_of = [&](uint32_t i) { return index_.entries[i].name; };
    seen.Reserve(index_.entries.size());
    std::unordered_set<std::string_view> repeated;
    for (uint32_t i = 0; i < index_.entries.size(); ++i) {
      const std::string_view name = index_.entries[i].name;
      if (seen.Add(name, i, name_of) != NameIndex::kNone) repeated.insert(name);
    }
    if (repeated.empty()) return Status();
    // Different paths have the same joined name: use their escaped form.
    HAULWAY_ASSIGN(const LongVector<Entry> escaped, Name(/*escaped=*/true));
    for (size_t i = 0; i < index_.entries.size(); ++i) {
      if (repeated.contains(index_.entries[i].name)) {
        index_.entries[i].name = escaped[i].name;
      }
    }
    return Status();
  }

 private:
  struct Pending {
    Value value;
    std::string_view path;
    bool is_inner;
  };

  // Returns the memory limit of names and shapes. A short pickle may mention
  // one tensor very often under a long key. So names and shapes may take as
  // much memory as the tree, and an allowance.
  static uint64_t MostBytes(const TreeBudget& budget, const TreeArena& arena) {
    constexpr uint64_t kFreeBytes = 16 * kMiB;
    uint64_t most = 0;
    if (!CheckedAdd(budget.bytes, kFreeBytes + arena.allocated_bytes(),
                    &most)) {
      return UINT64_MAX;
    }
    return most;
  }

  // Returns the memory in use, including that of the walk.
  uint64_t held_bytes() const {
    constexpr uint64_t kVisitedBytes = 40;  // A node and its bucket.
    return arena_.allocated_bytes() + visited_.size() * kVisitedBytes +
           pending_.capacity() * sizeof(Pending) +
           entries_.size() * sizeof(Entry) +
           index_.tensors.size() * sizeof(TensorInfo);
  }

  // Visits the whole tree in order, and lists the tensors that it finds.
  Result<LongVector<Entry>> Name(bool escaped) {
    const Paths paths(&arena_, most_bytes_, escaped, &joined_, &cut_);
    paths_ = &paths;
    entries_.clear();
    entries_.reserve(index_.storages.capacity());
    index_.tensors.reserve(index_.storages.capacity());
    visited_.clear();
    pending_.clear();
    is_inner_ = false;
    Push(index_.root, "");
    while (!pending_.empty()) {
      const Pending next = pending_.back();
      pending_.pop_back();
      is_inner_ = next.is_inner;
      HAULWAY_TRY(Visit(next.value, next.path));
      if (cut_ || held_bytes() > most_bytes_) {
        return Status(Code::kLimit,
                      fmt::format("names and shapes of tensors take more than "
                                  "{} = {}",
                                  most_.cap, most_.cap_value));
      }
    }
    return std::move(entries_);
  }

  void Push(const Value& value, std::string_view path) {
    if (value.kind() >= Kind::kTuple && !value.is(Kind::kGlobal)) {
      pending_.push_back({value, path, is_inner_});
    }
  }

  // InOrder() reverses the items pushed since Mark(), so that they are popped
  // in the order in which they were pushed.
  size_t Mark() const { return pending_.size(); }
  void InOrder(size_t mark) {
    std::reverse(pending_.begin() + static_cast<ptrdiff_t>(mark),
                 pending_.end());
  }

  void AddEntry(std::string_view path, uint32_t tensor) {
    if (is_inner_) return;
    entries_.push_back({path.empty() ? "tensor" : path, tensor});
  }

  Status Visit(const Value& value, std::string_view path) {
    if (value.is(Kind::kObject)) return VisitObject(value, path);
    if (value.is(Kind::kPersistent)) return VisitStorage(value, path);
    if (!visited_.insert(value.identity()).second) return Status();
    const size_t mark = Mark();
    if (value.is_sequence()) {
      PushItems(value.sequence(), path);
    } else {
      PushItems(value.mapping(), path);
      PushState(value.mapping().state, path);
    }
    InOrder(mark);
    return Status();
  }

  void PushItems(const Sequence& sequence, std::string_view path) {
    for (uint64_t i = 0; i < sequence.size; ++i) {
      const Value& item = sequence.data[i];
      if (item.kind() >= Kind::kTuple) Push(item, paths_->Child(path, i));
    }
  }
  void PushItems(const Mapping& mapping, std::string_view path) {
    for (const MappingItem& item : mapping.items()) {
      if (item.key.kind() >= Kind::kTuple) {
        Push(item.key, paths_->Part(path, "key"));
      }
      if (item.value.kind() >= Kind::kTuple) {
        Push(item.value, paths_->Child(path, item.key));
      }
    }
  }
  // Pushes attributes: a dict, or a tuple of a dict and a dict of slots.
  void PushState(const Value& state, std::string_view path) {
    if (state.is_mapping()) {
      for (const MappingItem& item : state.mapping().items()) {
        if (item.value.kind() < Kind::kTuple) continue;
        Push(item.value, item.key.is(Kind::kString)
                             ? paths_->Part(path, Escape(item.key.text()))
                             : paths_->Child(path, item.key));
      }
    } else if (state.is_sequence()) {
      for (const Value& item : state.sequence().items()) {
        if (item.is_mapping()) {
          PushState(item, path);
        } else {
          Push(item, path);
        }
      }
    } else {
      Push(state, path);
    }
  }
  Status VisitStorage(const Value& persistent, std::string_view path) {
    HAULWAY_ASSIGN(const StorageUse use, Storage(persistent, 0));
    auto [at, is_new] = storage_tensors_.try_emplace(use.row, kNoTensor);
    if (is_new) {
      const uint64_t item = ItemBytes(use.dtype);
      auto* size = static_cast<int64_t*>(arena_.Allocate(2 * sizeof(int64_t)));
      size[0] = static_cast<int64_t>(use.nbytes / item);
      size[1] = 1;
      TensorInfo tensor;
      tensor.kind = TensorKind::kStorage;
      tensor.dtype = use.dtype;
      tensor.storage = use.row;
      tensor.storage_offset = use.first_byte / item;
      tensor.shape = {size, 1};
      tensor.strides = {size + 1, 1};
      tensor.nbytes = use.nbytes;
      HAULWAY_ASSIGN(at->second, AddTensor(tensor));
    }
    AddEntry(path, at->second);
    return Status();
  }

  Status VisitObject(const Value& value, std::string_view path) {
    Object& object = value.object();
    const GlobalKind kind = KindFor(object.callable);
    if (kind == GlobalKind::kLegacyTensor || kind == GlobalKind::kTensor) {
      // With arguments, the tensor would take memory for as many elements as
      // the pickle says, without any bytes in the file.
      if (!IsSparse(*object.callable) && Arguments(object.args).size() != 0) {
        return CorruptAt(fmt::format("{} with arguments: expected none",
                                     Quote(object.callable->name)),
                         object.byte);
      }
      // Before 0.4, a tensor was created empty and BUILD set its parts.
      if (Arguments(object.state).size() == 0) return Status();
      return VisitTensor(GlobalKind::kRebuildTensor, object.state,
                         &object.tensor, object, path);
    }
    if (IsRebuild(kind)) {
      const size_t mark = Mark();
      HAULWAY_TRY(VisitCall(kind, object.args, &object.tensor, object, path));
      if (of_process_ && object.tensor == kNoTensor) {
        const auto made = wrapped_.find(&object);
        if (made != wrapped_.end()) object.tensor = made->second;
      }
      PushState(object.state, path);
      InOrder(mark);
      return Status();
    }
    if (!visited_.insert(&object).second) return Status();
    // Where the processes of a distributed tensor are: no tensor of the user.
    is_inner_ =
        is_inner_ ||
        (object.callable != nullptr && object.callable->name == "DeviceMesh" &&
         object.callable->module == "torch.distributed.device_mesh");
    HAULWAY_TRY(CheckCall(kind, Arguments(object.args).items(), object.byte));
    const size_t mark = Mark();
    if (object.args.is_sequence()) PushItems(object.args.sequence(), path);
    PushState(object.state, path);
    if (object.extras != nullptr) {
      PushItems(object.extras->appended, path);
      PushItems(object.extras->items, path);
      Push(object.extras->kwargs, path);
    }
    InOrder(mark);
    return Status();
  }

  // Visits one call of a function of this kind. `slot` stores the row of the
  // resulting tensor. `object` is the object in the tree that the call
  // belongs to.
  Status VisitCall(GlobalKind kind, const Value& args, uint32_t* slot,
                   const Object& object, std::string_view path) {
    const Arguments arguments(args);
    HAULWAY_TRY(CheckCall(kind, arguments.items(), object.byte));
    switch (kind) {
      case GlobalKind::kRebuildTensor:
      case GlobalKind::kRebuildTensorV2:
      case GlobalKind::kRebuildTensorV3:
      case GlobalKind::kRebuildQTensor:
      case GlobalKind::kRebuildMetaTensor:
      case GlobalKind::kRebuildWrapperSubclass:
        return VisitTensor(kind, args, slot, object, path);
      case GlobalKind::kRebuildParameter:
      case GlobalKind::kRebuildParameterWithState:
        return VisitParameter(arguments, object, path);
      case GlobalKind::kRebuildDeviceTensorFromCpu:
        Push(arguments[0], path);
        return Status();
      case GlobalKind::kRebuildSparseTensor:
        return VisitSparse(arguments, object, path);
      case GlobalKind::kRebuildNestedTensor:
        for (size_t i = 0; i < kNestedParts.size(); ++i) {
          Push(arguments[i], paths_->Part(path, kNestedParts[i]));
        }
        return Status();
      case GlobalKind::kRebuildFromType:
      case GlobalKind::kRebuildFromTypeV2:
        return VisitFromType(arguments, object, path);
      default:
        return CorruptAt("tensors made from numpy arrays are not supported",
                         object.byte);
    }
  }

  // Visits (func, type, args, state): the tensor that func(*args) returns, with
  // a type and attributes.
  Status VisitFromType(const Arguments& arguments, const Object& object,
                       std::string_view path) {
    // The function is unknown, or only the caller allows it.
    if (IsOpaque(arguments[0]) ||
        (arguments[0].is(Kind::kGlobal) &&
         KindOf(arguments[0].global()) == GlobalKind::kUnknown)) {
      Push(arguments[2], path);
      PushState(arguments[3], path);
      return Status();
    }
    if (!arguments[0].is(Kind::kGlobal)) {
      return CorruptAt("_rebuild_from_type_v2 needs a function", object.byte);
    }
    const GlobalKind inner = KindOf(arguments[0].global());
    if (!IsRebuild(inner) || IsFromType(inner)) {
      return CorruptAt(fmt::format("_rebuild_from_type_v2 cannot use {}",
                                   Quote(arguments[0].global().name)),
                       object.byte);
    }
    auto [at, is_new] = wrapped_.try_emplace(&object, kNoTensor);
    if (inner == GlobalKind::kRebuildWrapperSubclass &&
        IsSharded(arguments[1])) {
      Status status = VisitSharded(arguments, &at->second, object, path);
      if (status.ok()) return status;
      if (of_process_ || status.code() == Code::kLimit) {
        return std::move(status).In(fmt::format("tensor {}", Quote(path)));
      }
    }
    HAULWAY_TRY(VisitCall(inner, arguments[2], &at->second, object, path));
    PushState(arguments[3], path);
    return Status();
  }

  // Visits what one process holds of a tensor of several.
  Status VisitSharded(const Arguments& arguments, uint32_t* slot,
                      const Object& object, std::string_view path) {
    const auto row_of = [&](const Value& value) -> Result<uint32_t> {
      const GlobalKind kind = value.is(Kind::kObject)
                                  ? KindFor(value.object().callable)
                                  : GlobalKind::kUnknown;
      if (!IsOneTensor(kind) || kind == GlobalKind::kRebuildQTensor ||
          kind == GlobalKind::kRebuildWrapperSubclass) {
        return Status(Code::kUnsupported,
                      "a part is no plain tensor: expected one")
            .At(object.byte);
      }
      Object& inner = value.object();
      HAULWAY_TRY(CheckCall(kind, Arguments(inner.args).items(), inner.byte));
      HAULWAY_TRY(Make(kind, inner.args, &inner.tensor, inner, path));
      return inner.tensor;
    };
    if (*slot == kNoTensor) {
      const Arguments args(arguments[2]);
      uint32_t local = kNoTensor;
      HAULWAY_TRY(CheckCall(GlobalKind::kRebuildWrapperSubclass, args.items(),
                            object.byte));
      HAULWAY_ASSIGN(Sharding sharding,
                     shardings_.Read(args.items(), arguments[3], row_of,
                                     object.byte, &local));
      if (sharding.local.size() == 1) local = sharding.local[0].tensor;
      TensorInfo tensor;
      if (local == kNoTensor) {
        tensor.kind = TensorKind::kMeta;
        tensor.dtype = sharding.dtype;
        HAULWAY_TRY(NoElements(sharding.shape.size(), &tensor));
      } else {
        tensor = index_.tensors[local];
      }
      HAULWAY_TRY(SetGradients(args[7], object.byte, &tensor));
      tensor.sharding = static_cast<uint32_t>(index_.shardings.size());
      index_.shardings.push_back(std::move(sharding));
      HAULWAY_ASSIGN(*slot, AddTensor(tensor));
    }
    AddEntry(path, *slot);
    // The rest of the state is visited, but not named.
    const bool was_inner = std::exchange(is_inner_, true);
    PushState(arguments[3], path);
    is_inner_ = was_inner;
    return Status();
  }

  // Gives a tensor the shape [0, ...].
  Status NoElements(size_t rank, TensorInfo* tensor) {
    if (rank == 0) {
      return Status(Code::kCorrupt, "a tensor of no dimensions has no part");
    }
    auto* numbers =
        static_cast<int64_t*>(arena_.Allocate(2 * rank * sizeof(int64_t)));
    std::fill_n(numbers, rank, 0);
    std::fill_n(numbers + rank, rank, 1);
    tensor->shape = {numbers, rank};
    tensor->strides = {numbers + rank, rank};
    return Status();
  }

  Status VisitParameter(const Arguments& arguments, const Object& object,
                        std::string_view path) {
    const Value& data = arguments[0];
    if (!data.is(Kind::kObject) || !arguments[1].is(Kind::kBool)) {
      return CorruptAt("a parameter needs a tensor and a flag", object.byte);
    }
    Object& inner = data.object();
    const GlobalKind kind = KindFor(inner.callable);
    if (IsOneTensor(kind)) {
      HAULWAY_TRY(Make(kind, inner.args, &inner.tensor, inner, path));
      auto [at, is_new] = wrapped_.try_emplace(&object, kNoTensor);
      if (is_new) {
        TensorInfo tensor = index_.tensors[inner.tensor];
        HAULWAY_TRY(SetGradients(arguments[1], object.byte, &tensor));
        HAULWAY_ASSIGN(at->second, AddTensor(tensor));
      }
      AddEntry(path, at->second);
    } else {
      Push(data, path);
    }
    PushState(arguments[3], path);
    return Status();
  }

  Status VisitSparse(const Arguments& arguments, const Object& object,
                     std::string_view path) {
    std::string_view layout;
    if (arguments[0].is(Kind::kObject)) {
      const Value name = Arguments(arguments[0].object().args)[0];
      if (name.is(Kind::kString)) layout = name.text();
    }
    for (const SparseParts& parts : kSparseParts) {
      if (parts.layout != layout) continue;
      const Arguments data(arguments[1]);
      for (size_t i = 0; i < parts.count; ++i) {
        Push(data[i], paths_->Part(path, parts.names[i]));
      }
      return Status();
    }
    return CorruptAt(
        fmt::format("layout {} is not one of a sparse tensor", Quote(layout)),
        object.byte);
  }

  static bool IsRebuild(GlobalKind kind) {
    return kind >= GlobalKind::kRebuildTensor &&
           kind <= GlobalKind::kRebuildFromTypeV2;
  }
  static bool IsFromType(GlobalKind kind) {
    return kind == GlobalKind::kRebuildFromType ||
           kind == GlobalKind::kRebuildFromTypeV2;
  }
  static bool IsOneTensor(GlobalKind kind) {
    return kind == GlobalKind::kRebuildTensor ||
           kind == GlobalKind::kRebuildTensorV2 ||
           kind == GlobalKind::kRebuildTensorV3 ||
           kind == GlobalKind::kRebuildQTensor ||
           kind == GlobalKind::kRebuildMetaTensor ||
           kind == GlobalKind::kRebuildWrapperSubclass;
  }

  Status VisitTensor(GlobalKind kind, const Value& args, uint32_t* slot,
                     const Object& object, std::string_view path) {
    HAULWAY_TRY(Make(kind, args, slot, object, path));
    AddEntry(path, *slot);
    if (kind != GlobalKind::kRebuildQTensor) return Status();
    // Per channel, the quantizer is (scheme, scales, zero_points, axis).
    const Arguments parameters{Arguments(args)[4]};
    if (parameters[1].kind() >= Kind::kTuple) {
      Push(parameters[1], paths_->Part(path, "scales"));
    }
    if (parameters[2].kind() >= Kind::kTuple) {
      Push(parameters[2], paths_->Part(path, "zero_points"));
    }
    return Status();
  }

  // Resolves a call to a tensor, at most once.
  Status Make(GlobalKind kind, const Value& args, uint32_t* slot,
              const Object& object, std::string_view path) {
    if (*slot != kNoTensor) return Status();
    auto tensor = Describe(kind, Arguments(args), object.byte);
    if (!tensor.ok()) {
      return std::move(tensor).status().In(
          fmt::format("tensor {}", Quote(path)));
    }
    HAULWAY_ASSIGN(*slot, AddTensor(*tensor));
    return Status();
  }

  Result<uint32_t> AddTensor(const TensorInfo& tensor) {
    if (index_.tensors.size() >= limits_.max_tensors) {
      return Status(Code::kLimit, fmt::format("more than max_tensors {}",
                                              limits_.max_tensors));
    }
    index_.tensors.push_back(tensor);
    return static_cast<uint32_t>(index_.tensors.size() - 1);
  }

  Result<TensorInfo> Describe(GlobalKind kind, const Arguments& arguments,
                              uint64_t byte) {
    TensorInfo tensor;
    if (kind == GlobalKind::kRebuildMetaTensor ||
        kind == GlobalKind::kRebuildWrapperSubclass) {
      // (dtype, size, stride, requires_grad); for a wrapper subclass with the
      // class first, and (storage_offset, layout, device) before requires_grad.
      const size_t first = kind == GlobalKind::kRebuildMetaTensor ? 0 : 1;
      tensor.kind = TensorKind::kMeta;
      HAULWAY_ASSIGN(tensor.dtype, DTypeArgument(arguments[first], byte));
      HAULWAY_TRY(
          Shape(arguments[first + 1], arguments[first + 2], byte, &tensor));
      const Value flag =
          arguments[kind == GlobalKind::kRebuildMetaTensor ? 3 : 7];
      HAULWAY_TRY(SetGradients(flag, byte, &tensor));
      return tensor;
    }

    if (!arguments[0].is(Kind::kPersistent)) {
      return CorruptAt("a tensor needs a storage", byte);
    }
    HAULWAY_ASSIGN(const StorageUse use, Storage(arguments[0], byte));
    tensor.storage = use.row;
    tensor.dtype = use.dtype;
    if (kind == GlobalKind::kRebuildTensorV3) {
      HAULWAY_ASSIGN(tensor.dtype, DTypeArgument(arguments[6], byte));
    }
    if (!arguments[1].is(Kind::kInt) || arguments[1].integer() < 0) {
      return CorruptAt("storage offset is not a number from 0", byte);
    }
    tensor.storage_offset = static_cast<uint64_t>(arguments[1].integer());
    HAULWAY_TRY(Shape(arguments[2], arguments[3], byte, &tensor));
    if (kind == GlobalKind::kRebuildTensorV2 ||
        kind == GlobalKind::kRebuildTensorV3 ||
        kind == GlobalKind::kRebuildQTensor) {
      const Value flag = arguments[kind == GlobalKind::kRebuildQTensor ? 5 : 4];
      HAULWAY_TRY(SetGradients(flag, byte, &tensor));
      const Value metadata =
          arguments[kind == GlobalKind::kRebuildTensorV3 ? 7 : 6];
      tensor.conjugate = IsFlagSet(metadata, "conj");
      tensor.negative = IsFlagSet(metadata, "neg");
    }
    if (kind == GlobalKind::kRebuildQTensor) {
      HAULWAY_TRY(CheckQuantizer(tensor.dtype, arguments[4],
                                 tensor.shape.size(), byte));
    }
    HAULWAY_TRY(CheckReach(tensor, use, byte));
    // A part of a storage begins at a multiple of its element size.
    tensor.storage_offset += use.first_byte / ItemBytes(tensor.dtype);
    return tensor;
  }

  static Status SetGradients(const Value& flag, uint64_t byte,
                             TensorInfo* tensor) {
    if (!flag.is(Kind::kBool)) {
      return CorruptAt("requires_grad is not a bool", byte);
    }
    if (flag.boolean() && !TakesGradients(tensor->dtype)) {
      return CorruptAt(
          fmt::format("a tensor of {} requires gradients: expected "
                      "one of floating point",
                      haulway::Name(tensor->dtype)),
          byte);
    }
    tensor->requires_grad = flag.boolean();
    return Status();
  }

  static Result<DType> DTypeArgument(const Value& value, uint64_t byte) {
    if (value.is(Kind::kGlobal)) {
      if (KindOf(value.global()) == GlobalKind::kDType) {
        return DTypeOf(value.global());
      }
      return Status(Code::kUnsupported,
                    fmt::format("dtype {} is not one with elements of whole "
                                "bytes",
                                Quote(value.global().name)))
          .At(byte);
    }
    return CorruptAt("a tensor needs a dtype", byte);
  }

  // Applies rules M01 and M02.
  Status Shape(const Value& size, const Value& stride, uint64_t byte,
               TensorInfo* tensor) {
    const auto sizes = Ints(size);
    const auto strides = Ints(stride);
    if (!sizes.has_value() || !strides.has_value()) {
      return CorruptAt("size or stride is not a tuple", byte);
    }
    if (sizes->size() != strides->size()) {
      return CorruptAt(fmt::format("stride has {} numbers: expected {}",
                                   strides->size(), sizes->size()),
                       byte);
    }
    const size_t rank = sizes->size();
    if (rank > limits_.max_rank) {
      return Status(Code::kLimit, fmt::format("{} dimensions pass max_rank {}",
                                              rank, limits_.max_rank))
          .At(byte);
    }
    auto* numbers =
        static_cast<int64_t*>(arena_.Allocate(2 * rank * sizeof(int64_t)));
    for (size_t d = 0; d < rank; ++d) {
      const Value& s = (*sizes)[d];
      const Value& t = (*strides)[d];
      if (!s.is(Kind::kInt) || s.integer() < 0) {
        return CorruptAt("size is not a number from 0", byte);
      }
      if (!t.is(Kind::kInt) || t.integer() < 0) {
        return CorruptAt("stride is not a number from 0", byte);
      }
      numbers[d] = s.integer();
      numbers[rank + d] = t.integer();
    }
    tensor->shape = {numbers, rank};
    tensor->strides = {numbers + rank, rank};
    const auto count = CountElements(tensor->shape);
    if (!count.has_value() ||
        !CheckedMultiply(*count, ItemBytes(tensor->dtype), &tensor->nbytes)) {
      return CorruptAt("number of bytes overflows", byte);
    }
    return Status();
  }

  // Applies rule M03.
  Status CheckReach(const TensorInfo& tensor, const StorageUse& use,
                    uint64_t byte) const {
    const uint64_t held = use.nbytes / ItemBytes(tensor.dtype);
    const auto extent = ElementExtent(tensor.shape, tensor.strides);
    uint64_t end = 0;
    if (!extent.has_value() ||
        !CheckedAdd(tensor.storage_offset, *extent, &end)) {
      return CorruptAt("the last element's index overflows", byte);
    }
    if (*extent > 0 && end > held) {
      return CorruptAt(
          fmt::format("tensor ends past its storage {}: expected at "
                      "most {} elements, found {}",
                      Quote(index_.storages[use.row].key), held, end),
          byte);
    }
    return Status();
  }

  // Resolves a persistent id, once per mention. Stores the row next to the id
  // in the tree, for code that walks it later.
  Result<StorageUse> Storage(const Value& persistent, uint64_t byte) {
    Sequence& held = persistent.sequence();
    auto use = resolve_(held.data[0]);
    if (!use.ok()) return std::move(use).status().At(byte);
    if (held.size == 1) {
      auto* items = static_cast<Value*>(arena_.Allocate(2 * sizeof(Value)));
      items[0] = held.data[0];
      items[1] = Value::Int(use->row);
      held = {items, 2, 2};
    }
    return use;
  }

  static GlobalKind KindFor(const Global* callable) {
    return callable == nullptr ? GlobalKind::kUnknown : KindOf(*callable);
  }

  const ParseLimits& limits_;
  const TreeBudget most_;
  const uint64_t most_bytes_;  // Limit of the arena, including the tree.
  const StorageResolver& resolve_;
  TreeArena& arena_;
  CheckpointIndex& index_;
  const bool of_process_;
  ShardingReader shardings_;

  bool joined_ = false;
  bool cut_ = false;
  const Paths* paths_ = nullptr;
  LongVector<Entry> entries_;
  bool is_inner_ = false;  // What is visited is part of a mesh.
  std::vector<Pending> pending_;
  std::unordered_set<const void*> visited_;
  std::unordered_map<uint32_t, uint32_t> storage_tensors_;
  // Tensors of objects that wrap a tensor.
  std::unordered_map<const Object*, uint32_t> wrapped_;
};

}  // namespace

std::string NamePart(const Value& key, bool escaped) {
  const char also = escaped ? '.' : char{0};
  switch (key.kind()) {
    case Kind::kString:
    case Kind::kRawString:
      return Escape(key.text(), also);
    case Kind::kInt:
      return fmt::format("{}{}", escaped ? "\\" : "", key.integer());
    case Kind::kBool:
      return fmt::format("{}{}", escaped ? "\\" : "", key.boolean());
    case Kind::kFloat:
      return fmt::format("\\{}", key.real());
    case Kind::kNone:
      return "\\None";
    case Kind::kBytes:
      return fmt::format("\\b{}", Escape(key.text(), '.'));
    case Kind::kTuple: {
      std::string text = "\\(";
      for (const Value& item : key.sequence().items()) {
        text += item.is(Kind::kTuple) ? "..." : NamePart(item, escaped);
        text += ',';
      }
      return text + ')';
    }
    default:
      return "\\key";
  }
}

Status ResolveTensors(const ParseLimits& limits, const TreeBudget& most,
                      const StorageResolver& resolve, TreeArena* arena,
                      CheckpointIndex* index, bool of_process) {
  return Resolver(limits, most, resolve, arena, index, of_process).Run();
}

}  // namespace haulway::torch
