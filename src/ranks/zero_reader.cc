// Design: the optimizer keeps a 32-bit copy of the parameters of each group in
// one vector. Stages 1 and 2 cut the vector once, so that a process holds one
// slice of it. Stage 3 cuts each parameter into equal slices, the last of which
// is padded, and joins a process's slices. Either way a parameter is a
// concatenation of ranges of the processes' tensors: pieces of one dimension.
//
// Buffers are saved whole, in the precision of the model; those of floating
// point are cast to 32 bits when the checkpoint is opened, as
// zero_to_fp32.py does. It also casts integers, which loses bits; these stay as
// they are.

#include "ranks/zero_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "decode/stored_tensor.h"
#include "format/flat_reader.h"
#include "ranks/assembled_reader.h"
#include "ranks/open_ranks.h"
#include "ranks/zero_files.h"
#include "tensor/cast.h"
#include "tensor/dtype_kind.h"
#include "tensor/strided.h"
#include "torch/torch_calls.h"

namespace haulway::ranks {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;

constexpr uint64_t kMostBuffers = uint64_t{1} << 30;  // Bytes that are cast.

const Value* Find(const Value* in, std::string_view key) {
  return in == nullptr || !in->is_mapping() ? nullptr : in->mapping().Find(key);
}

std::span<const Value> ItemsOf(const Value* value) {
  return value == nullptr || !value->is_sequence() ? std::span<const Value>()
                                                   : value->sequence().items();
}
std::span<const MappingItem> PairsOf(const Value* value) {
  return value == nullptr || !value->is_mapping()
             ? std::span<const MappingItem>()
             : value->mapping().items();
}

// Returns a number, or that of an enumeration's member.
std::optional<int64_t> NumberOf(const Value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is(Kind::kInt)) return value->integer();
  if (!value->is(Kind::kObject)) return std::nullopt;
  const auto args = ItemsOf(&value->object().args);
  return args.size() == 1 && args[0].is(Kind::kInt)
             ? std::optional(args[0].integer())
             : std::nullopt;
}

std::optional<std::vector<int64_t>> SizeOf(const Value& value) {
  const auto items = torch::Ints(value);
  if (!items.has_value()) return std::nullopt;
  std::vector<int64_t> size;
  for (const Value& item : *items) {
    if (!item.is(Kind::kInt) || item.integer() < 0) return std::nullopt;
    size.push_back(item.integer());
  }
  return size;
}

// Consecutive elements of a flat tensor.
struct Segment {
  uint32_t file = 0;
  uint32_t storage = 0;
  uint64_t first = 0;  // In elements, in the storage.
  uint64_t count = 0;
};
using Vector = std::vector<Segment>;

uint64_t LengthOf(const Vector& vector) {
  uint64_t length = 0;
  for (const Segment& segment : vector) length += segment.count;
  return length;
}

// The vectors of one kind of state, and its name: "exp_avg".
struct State {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::vector<Vector>> groups;  // By group and rank.
};

struct Parameter {
  std::string_view name;
  std::vector<int64_t> shape;
  size_t group = 0;
  uint64_t count = 0;
  // At stage 3, the offset in the vector of a process; else in that of the
  // group.
  uint64_t offset = 0;
};

class ZeroJoin {
 public:
  ZeroJoin(std::vector<RankFile> models, std::vector<RankFile> optimizers,
           bool is_stage3)
      : models_(models.size()), is_stage3_(is_stage3) {
    assembly_.files = std::move(models);
    std::ranges::move(optimizers, std::back_inserter(assembly_.files));
  }

  // The 32-bit weights.
  Result<Assembly> Master() {
    HAULWAY_TRY(ReadVectors());
    HAULWAY_TRY(AddBuffers());
    HAULWAY_TRY(AddFrozen());
    HAULWAY_TRY(AddParameters(weights_, "", ""));
    HAULWAY_TRY(AddShared("", ""));
    AddFacts();
    return std::move(assembly_);
  }

  // The weights with which the model computes.
  Result<Assembly> Model() {
    if (is_stage3_) {
      return Status(Code::kUnsupported,
                    "stage 3 saves no weights of the model: expected weights "
                    "\"master\"");
    }
    for (const MappingItem& item : PairsOf(Find(&Root(0), "module"))) {
      if (!item.key.is(Kind::kString)) continue;
      const TensorInfo* const tensor = TensorOf(item.value, 0);
      if (tensor == nullptr) continue;
      Status status = AddWhole(item.key.text(), *tensor, 0);
      if (!status.ok()) return std::move(status).In(Quote(item.key.text()));
    }
    AddFacts();
    return std::move(assembly_);
  }

  // The state that the optimizer keeps of each parameter.
  Result<Assembly> Optimizer() {
    HAULWAY_TRY(ReadVectors());
    HAULWAY_ASSIGN(const std::vector<State> states, ReadStates());
    for (const State& state : states) {
      HAULWAY_TRY(AddParameters(state, "state.", "." + state.name));
      HAULWAY_TRY(AddShared("state.", "." + state.name));
    }
    AddFacts();
    return std::move(assembly_);
  }

 private:
  size_t world() const { return assembly_.files.size() - models_; }
  const CheckpointIndex& IndexOf(size_t file) const {
    return assembly_.files[file].reader->index();
  }
  const Value& Root(size_t file) const { return IndexOf(file).root; }
  Status Of(Status status, size_t file) const {
    return std::move(status).Of(assembly_.files[file].name);
  }

  const TensorInfo* TensorOf(const Value& value, size_t file) const {
    if (!value.is(Kind::kObject) ||
        value.object().tensor == Object::kNoTensor) {
      return nullptr;
    }
    return &IndexOf(file).tensors[value.object().tensor];
  }

  Result<Segment> SegmentOf(const Value& value, size_t file, DType* dtype,
                            std::string_view what) const {
    const TensorInfo* const tensor = TensorOf(value, file);
    if (tensor == nullptr || tensor->shape.size() > 1 ||
        !IsContiguous(tensor->shape, tensor->strides)) {
      return Of(Status(Code::kCorrupt,
                       fmt::format("{} is no flat tensor: expected one", what)),
                file);
    }
    Status status = CheckIsRaw(IndexOf(file), *tensor);
    if (!status.ok()) return Of(std::move(status), file);
    *dtype = tensor->dtype;
    return Segment{static_cast<uint32_t>(file), tensor->storage,
                   tensor->storage_offset,
                   tensor->nbytes / ItemBytes(tensor->dtype)};
  }

  // Reads the stage, the vectors of weights and the parameters in them.
  Status ReadVectors() {
    if (world() == 0) {
      return Status(Code::kMismatch,
                    "folder lacks the optimizer files: expected one for each "
                    "process, or weights \"model\"");
    }
    for (size_t r = 0; r < world(); ++r) HAULWAY_TRY(ReadOptimizer(r));
    HAULWAY_TRY(ReadShapes());
    return is_stage3_ ? PlaceAtStage3() : PlaceInGroups();
  }

  Status ReadOptimizer(size_t rank) {
    const size_t file = models_ + rank;
    const Value* const state = Find(&Root(file), "optimizer_state_dict");
    const auto stage = NumberOf(Find(state, "zero_stage"));
    if (!stage.has_value()) {
      return Of(Status(Code::kUnsupported,
                       "the file states no stage of ZeRO: expected "
                       "zero_stage in optimizer_state_dict"),
                file);
    }
    if ((*stage == 3) != is_stage3_) {
      return Of(Status(Code::kMismatch,
                       fmt::format("the file is of stage {}, and the model "
                                   "files are of another",
                                   *stage)),
                file);
    }
    if (rank == 0) stage_ = *stage;
    const Value* const counts = Find(state, "partition_count");
    int64_t parts = NumberOf(counts).value_or(0);
    for (const Value& one : ItemsOf(counts)) {
      parts = std::max(parts, NumberOf(&one).value_or(0));
    }
    if (counts != nullptr && parts != static_cast<int64_t>(world())) {
      return Of(Status(Code::kMismatch,
                       fmt::format("the file is one of {} processes: found {} "
                                   "optimizer files",
                                   parts, world())),
                file);
    }
    const auto groups =
        ItemsOf(Find(state, is_stage3_ ? "fp32_flat_groups"
                                       : "single_partition_of_fp32_groups"));
    if (groups.empty()) {
      return Of(
          Status(Code::kUnsupported, "the file has no 32-bit weights of ZeRO"),
          file);
    }
    if (rank == 0) weights_.groups.resize(groups.size());
    if (groups.size() != weights_.groups.size()) {
      return Of(
          Status(Code::kMismatch,
                 fmt::format("rank {} has {} groups of parameters: "
                             "expected {} as rank 0",
                             rank, groups.size(), weights_.groups.size())),
          file);
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      DType dtype = DType::kF32;
      HAULWAY_ASSIGN(const Segment segment,
                     SegmentOf(groups[g], file, &dtype, "a group of weights"));
      if (dtype != DType::kF32) {
        return Of(Status(Code::kCorrupt,
                         fmt::format("a group of weights is of {}: expected "
                                     "F32",
                                     Name(dtype))),
                  file);
      }
      weights_.groups[g].push_back({segment});
    }
    return Status();
  }

  // Reads the parameters in the order in which they fill the vectors.
  Status ReadShapes() {
    const Value* const shapes = Find(&Root(0), "param_shapes");
    if (shapes == nullptr) return Of(NoShapes(), 0);
    size_t group = 0;
    std::map<std::string_view, int> seen;
    const auto add = [&](const Value& of_group) -> Status {
      for (const MappingItem& item : PairsOf(&of_group)) {
        auto shape = SizeOf(item.value);
        if (!item.key.is(Kind::kString) || !shape.has_value()) {
          return Of(NoShapes(), 0);
        }
        Parameter parameter{item.key.text(), *std::move(shape), group, 1, 0};
        for (const int64_t size : parameter.shape) {
          if (!CheckedMultiply(parameter.count, static_cast<uint64_t>(size),
                               &parameter.count) ||
              parameter.count > (uint64_t{1} << 56)) {
            return Of(Beyond(parameter.name), 0);
          }
        }
        if (seen[parameter.name]++ != 0) {
          return Of(Status(Code::kCorrupt, "parameter stands twice"), 0);
        }
        parameters_.push_back(std::move(parameter));
      }
      ++group;
      return Status();
    };
    if (shapes->is_mapping()) return add(*shapes);
    for (const Value& of_group : ItemsOf(shapes)) HAULWAY_TRY(add(of_group));
    return Status();
  }

  static Status NoShapes() {
    return Status(Code::kCorrupt,
                  "param_shapes are not the shapes of parameters by name");
  }
  static Status Beyond(std::string_view name) {
    return Status(Code::kCorrupt,
                  fmt::format("parameter {} lies beyond the vectors of its "
                              "group",
                              Quote(name)));
  }

  // Stages 1 and 2: the parameters of a group lie in its vector, one after
  // another. The end may be padded, by less than a multiple of twice the
  // number of processes.
  Status PlaceInGroups() {
    std::vector<uint64_t> used(weights_.groups.size());
    for (Parameter& parameter : parameters_) {
      if (parameter.group >= used.size()) return Beyond(parameter.name);
      parameter.offset = used[parameter.group];
      used[parameter.group] += parameter.count;
    }
    const uint64_t multiple = 2 * world();
    const auto rounded = [&](uint64_t n) {
      return (n + multiple - 1) / multiple;
    };
    for (size_t g = 0; g < used.size(); ++g) {
      uint64_t held = 0;
      for (const Vector& of_rank : weights_.groups[g]) {
        held += LengthOf(of_rank);
      }
      if (used[g] <= held && rounded(used[g]) == rounded(held)) continue;
      return Status(Code::kCorrupt,
                    fmt::format("the parameters of group {} have {} elements, "
                                "and its vector {}: expected as many",
                                g, used[g], held));
    }
    return Status();
  }

  // Stage 3: a parameter takes equally many elements of each process, of which
  // all groups are one vector.
  Status PlaceAtStage3() {
    const auto processes = static_cast<uint64_t>(world());
    uint64_t used = 0;
    for (Parameter& parameter : parameters_) {
      parameter.offset = used;
      used += (parameter.count + processes - 1) / processes;
    }
    for (size_t r = 0; r < world(); ++r) {
      uint64_t held = 0;
      for (const auto& group : weights_.groups) held += LengthOf(group[r]);
      if (used == held) continue;
      return Of(Status(Code::kCorrupt,
                       fmt::format("the parameters take {} elements of each "
                                   "process, and rank {} has {}: expected as "
                                   "many",
                                   used, r, held)),
                models_ + r);
    }
    return Status();
  }

  // Appends the elements [begin, begin + count) of concatenated segments to
  // pieces that end at element `at` of a tensor.
  static void AppendPieces(const Vector& vector, uint64_t begin, uint64_t count,
                           uint64_t item, uint64_t at,
                           std::vector<Piece>* pieces) {
    for (const Segment& segment : vector) {
      if (count == 0) return;
      if (begin >= segment.count) {
        begin -= segment.count;
        continue;
      }
      const uint64_t taken = std::min(segment.count - begin, count);
      Piece piece;
      piece.file = segment.file;
      piece.storage = segment.storage;
      piece.offset = (segment.first + begin) * item;
      piece.begin = {static_cast<int64_t>(at)};
      piece.sizes = {static_cast<int64_t>(taken)};
      piece.strides = {1};
      pieces->push_back(std::move(piece));
      at += taken;
      count -= taken;
      begin = 0;
    }
  }

  Status AddParameters(const State& state, std::string_view before,
                       std::string_view after) {
    // The vectors from which parameters are cut: of each group, or of each
    // process.
    std::vector<Vector> vectors(is_stage3_ ? world() : state.groups.size());
    for (size_t g = 0; g < state.groups.size(); ++g) {
      for (size_t r = 0; r < state.groups[g].size(); ++r) {
        Vector& vector = vectors[is_stage3_ ? r : g];
        const Vector& part = state.groups[g][r];
        vector.insert(vector.end(), part.begin(), part.end());
      }
    }
    const uint64_t item = ItemBytes(state.dtype);
    for (const Parameter& parameter : parameters_) {
      PiecedTensor tensor;
      tensor.item_bytes = item;
      tensor.shape = {static_cast<int64_t>(parameter.count)};
      if (is_stage3_) {
        const uint64_t part = (parameter.count + world() - 1) / world();
        for (size_t r = 0; r < world(); ++r) {
          const uint64_t at = std::min(part * r, parameter.count);
          AppendPieces(vectors[r], parameter.offset,
                       std::min(part, parameter.count - at), item, at,
                       &tensor.pieces);
        }
      } else {
        AppendPieces(vectors[parameter.group], parameter.offset,
                     parameter.count, item, 0, &tensor.pieces);
      }
      Add(fmt::format("{}{}{}", before, parameter.name, after), state.dtype,
          parameter.shape, std::move(tensor));
    }
    return CheckCover(assembly_.tensors);
  }

  // Adds a tensor under a name.
  void Add(std::string name, DType dtype, const std::vector<int64_t>& shape,
           PiecedTensor tensor) {
    const auto pieced = static_cast<uint32_t>(assembly_.tensors.size());
    tensor.name = std::move(name);
    Assembly::Row row;
    row.name = tensor.name;
    row.info.dtype = dtype;
    row.shape = shape;
    row.pieced = pieced;
    row_of_name_[row.name] = assembly_.rows.size();
    assembly_.rows.push_back(std::move(row));
    assembly_.tensors.push_back(std::move(tensor));
  }

  // Adds a tensor of one file as it is.
  Status AddWhole(std::string_view name, const TensorInfo& info, size_t file) {
    Status status = CheckIsRaw(IndexOf(file), info);
    if (!status.ok()) return Of(std::move(status), file);
    for (const auto& [row, pieced] : whole_) {
      // Tied tensors are one view of one storage.
      const TensorInfo& other = *row;
      if (other.storage == info.storage &&
          other.storage_offset == info.storage_offset &&
          std::ranges::equal(other.shape, info.shape) &&
          std::ranges::equal(other.strides, info.strides)) {
        AddTie(std::string(name), pieced);
        return Status();
      }
    }
    PiecedTensor tensor;
    tensor.item_bytes = ItemBytes(info.dtype);
    tensor.shape.assign(info.shape.begin(), info.shape.end());
    if (info.nbytes != 0) {
      Piece piece;
      piece.file = static_cast<uint32_t>(file);
      piece.storage = info.storage;
      piece.offset = info.storage_offset * tensor.item_bytes;
      piece.begin.resize(info.shape.size());
      piece.sizes = tensor.shape;
      piece.strides.assign(info.strides.begin(), info.strides.end());
      tensor.pieces.push_back(std::move(piece));
    }
    const std::vector<int64_t> shape = tensor.shape;
    whole_.emplace_back(&info, static_cast<uint32_t>(assembly_.rows.size()));
    Add(std::string(name), info.dtype, shape, std::move(tensor));
    return Status();
  }

  void AddTie(std::string name, size_t to) {
    Assembly::Row row = assembly_.rows[to];
    row.name = std::move(name);
    row_of_name_[row.name] = assembly_.rows.size();
    assembly_.rows.push_back(std::move(row));
  }

  // Adds the buffers of the model, in 32 bits.
  Status AddBuffers() {
    const Value* const module = Find(&Root(0), "module");
    std::vector<std::pair<std::string_view, Buffer>> cast;
    std::vector<const TensorInfo*> tensors;
    uint64_t bytes = 0;
    for (const Value& name : ItemsOf(Find(&Root(0), "buffer_names"))) {
      const Value* const value =
          name.is(Kind::kString) ? Find(module, name.text()) : nullptr;
      const TensorInfo* const info =
          value == nullptr ? nullptr : TensorOf(*value, 0);
      if (info == nullptr) continue;
      if (!IsFloating(info->dtype) || info->dtype == DType::kF32) {
        HAULWAY_TRY(AddWhole(name.text(), *info, 0));
        continue;
      }
      const uint64_t count = info->nbytes / ItemBytes(info->dtype);
      bytes += info->nbytes + count * sizeof(float);
      if (bytes > kMostBuffers || !CanCast(info->dtype, DType::kF32)) {
        return Of(Status(Code::kUnsupported,
                         fmt::format("buffer {} cannot be cast to 32 bits",
                                     Quote(name.text()))),
                  0);
      }
      std::vector<std::byte> stored(info->nbytes);
      Status status = ReadTensor(*assembly_.files[0].reader, *info, stored);
      if (!status.ok()) return Of(std::move(status), 0);
      HAULWAY_ASSIGN(Buffer floats, AllocateBuffer(count * sizeof(float)));
      CastElements(stored.data(), info->dtype, floats.mutable_bytes().data(),
                   DType::kF32, count);
      cast.emplace_back(name.text(), std::move(floats));
      tensors.push_back(info);
    }
    for (size_t i = 0; i < cast.size(); ++i) {
      HAULWAY_TRY(AddCast(cast[i].first, *tensors[i], cast[i].second));
    }
    return Status();
  }

  // Adds a tensor in memory, as a file of its own.
  Status AddCast(std::string_view name, const TensorInfo& info,
                 const Buffer& floats) {
    auto reader = std::make_unique<FlatReader>(
        Format::kDeepSpeed, MakeBufferSource(floats, std::string(name)));
    HAULWAY_TRY(reader->Append({.name = name,
                                .dtype = DType::kF32,
                                .shape = info.shape,
                                .offset = 0,
                                .nbytes = floats.size()}));
    const size_t file = assembly_.files.size() + more_.size();
    PiecedTensor tensor;
    tensor.item_bytes = sizeof(float);
    tensor.shape.assign(info.shape.begin(), info.shape.end());
    if (floats.size() != 0) {
      const TensorInfo& made = reader->index().tensors[0];
      Piece piece;
      piece.file = static_cast<uint32_t>(file);
      piece.begin.resize(info.shape.size());
      piece.sizes = tensor.shape;
      piece.strides.assign(made.strides.begin(), made.strides.end());
      tensor.pieces.push_back(std::move(piece));
    }
    const std::vector<int64_t> shape = tensor.shape;
    more_.push_back({std::string(name), 0, std::move(reader)});
    Add(std::string(name), DType::kF32, shape, std::move(tensor));
    return Status();
  }

  // Adds the parameters that are not trained, which keep their dtype.
  Status AddFrozen() {
    for (const MappingItem& item :
         PairsOf(Find(&Root(0), "frozen_param_shapes"))) {
      const auto shape = SizeOf(item.value);
      if (!item.key.is(Kind::kString) || !shape.has_value()) {
        return Of(Status(Code::kCorrupt,
                         "frozen_param_shapes are not shapes by name"),
                  0);
      }
      Status status = AddFrozen(item.key.text(), *shape);
      if (!status.ok()) return std::move(status).In(Quote(item.key.text()));
    }
    return Status();
  }

  Status AddFrozen(std::string_view name, const std::vector<int64_t>& shape) {
    uint64_t count = 1;
    for (const int64_t size : shape) {
      if (!CheckedMultiply(count, static_cast<uint64_t>(size), &count) ||
          count > (uint64_t{1} << 56)) {
        return Of(Beyond(name), 0);
      }
    }
    Vector vector;
    DType dtype = DType::kF32;
    for (size_t f = 0; f < models_; ++f) {
      const Value* const fragment =
          Find(Find(&Root(f), "frozen_param_fragments"), name);
      if (fragment == nullptr) {
        return Of(Status(Code::kMismatch,
                         "the file lacks a parameter that is not trained"),
                  f);
      }
      const TensorInfo* const info = TensorOf(*fragment, f);
      if (info == nullptr || !IsContiguous(info->shape, info->strides)) {
        return Of(Status(Code::kCorrupt, "a fragment is no tensor in rows"), f);
      }
      if (f == 0) dtype = info->dtype;
      if (info->dtype != dtype) {
        return Of(Status(Code::kMismatch,
                         fmt::format("a fragment is of {}: expected {}",
                                     Name(info->dtype), Name(dtype))),
                  f);
      }
      Status status = CheckIsRaw(IndexOf(f), *info);
      if (!status.ok()) return Of(std::move(status), f);
      vector.push_back({static_cast<uint32_t>(f), info->storage,
                        info->storage_offset, info->nbytes / ItemBytes(dtype)});
    }
    if (LengthOf(vector) < count) return Of(Beyond(name), 0);
    PiecedTensor tensor;
    tensor.item_bytes = ItemBytes(dtype);
    tensor.shape = {static_cast<int64_t>(count)};
    AppendPieces(vector, 0, count, tensor.item_bytes, 0, &tensor.pieces);
    Add(std::string(name), dtype, shape, std::move(tensor));
    return Status();
  }

  // Adds the other names of tied parameters: a dict, or pairs.
  Status AddShared(std::string_view before, std::string_view after) {
    const auto add = [&](const Value& alias, const Value& of) -> Status {
      if (!alias.is(Kind::kString) || !of.is(Kind::kString)) return Status();
      const auto found =
          row_of_name_.find(fmt::format("{}{}{}", before, of.text(), after));
      if (found == row_of_name_.end()) return Status();
      AddTie(fmt::format("{}{}{}", before, alias.text(), after), found->second);
      return Status();
    };
    const Value* const shared = Find(&Root(0), "shared_params");
    for (const MappingItem& item : PairsOf(shared)) {
      HAULWAY_TRY(add(item.key, item.value));
    }
    for (const Value& pair : ItemsOf(shared)) {
      const auto items = ItemsOf(&pair);
      if (items.size() == 2) HAULWAY_TRY(add(items[0], items[1]));
    }
    return Status();
  }

  // Reads the states of the optimizer that are as long as the weights.
  Result<std::vector<State>> ReadStates() const {
    std::vector<State> states;
    for (size_t r = 0; r < world(); ++r) {
      const size_t file = models_ + r;
      const Value* const whole = Find(&Root(file), "optimizer_state_dict");
      const Value* const base = Find(
          whole, is_stage3_ ? "optimizer_state_dict" : "base_optimizer_state");
      const Value* const by_group = Find(base, "state");
      const auto groups = PairsOf(by_group);
      if (groups.size() != weights_.groups.size()) {
        return Of(Status(Code::kUnsupported,
                         "the state of the optimizer is not that of one "
                         "vector for each group"),
                  file);
      }
      for (size_t g = 0; g < groups.size(); ++g) {
        HAULWAY_TRY(ReadGroup(groups[g].value, g, r, &states));
      }
    }
    return states;
  }

  Status ReadGroup(const Value& group, size_t g, size_t rank,
                   std::vector<State>* states) const {
    const size_t file = models_ + rank;
    const uint64_t wanted = LengthOf(weights_.groups[g][rank]);
    for (const MappingItem& item : PairsOf(&group)) {
      const TensorInfo* const info = TensorOf(item.value, file);
      if (info == nullptr || info->shape.size() != 1 ||
          !item.key.is(Kind::kString)) {
        continue;
      }
      const std::string_view name = item.key.text();
      auto state = std::ranges::find(*states, name, &State::name);
      if (state == states->end()) {
        if (g != 0 || rank != 0) continue;
        state =
            states->insert(states->end(), {std::string(name), info->dtype, {}});
        state->groups.resize(weights_.groups.size());
      }
      DType dtype = DType::kF32;
      HAULWAY_ASSIGN(Segment segment,
                     SegmentOf(item.value, file, &dtype, name));
      if (dtype != state->dtype || segment.count < wanted) {
        return Of(Status(Code::kCorrupt,
                         fmt::format("{} is of {} and {} elements: expected {} "
                                     "and {}",
                                     Quote(name), Name(dtype), segment.count,
                                     Name(state->dtype), wanted)),
                  file);
      }
      // The weights lack the padding at the end.
      segment.count = wanted;
      if (state->groups[g].size() != rank) {
        return Of(
            Status(Code::kMismatch,
                   fmt::format("a rank before {} lacks {}", rank, Quote(name))),
            file);
      }
      state->groups[g].push_back({segment});
    }
    return Status();
  }

  void AddFacts() {
    for (RankFile& file : more_) assembly_.files.push_back(std::move(file));
    if (stage_.has_value()) {
      assembly_.facts.push_back({"zero_stage", *stage_});
    }
    assembly_.facts.push_back(
        {"world_size",
         uint64_t{std::max(is_stage3_ ? models_ : size_t{1},
                           assembly_.files.size() - models_ - more_.size())}});
    const Value* const version = Find(&Root(0), "ds_version");
    if (version != nullptr && version->is(Kind::kString)) {
      assembly_.facts.push_back({"ds_version", std::string(version->text())});
    }
  }

  Assembly assembly_;
  const size_t models_;
  const bool is_stage3_;
  std::optional<int64_t> stage_;
  State weights_;
  std::vector<Parameter> parameters_;
  std::vector<RankFile> more_;  // In memory.
  std::vector<std::pair<const TensorInfo*, uint32_t>> whole_;
  std::map<std::string, size_t, std::less<>> row_of_name_;
};

Result<std::unique_ptr<const AssembledReader>> JoinZeroFiles(
    SourcePtr list, const OpenOptions& options) {
  HAULWAY_ASSIGN(const std::vector<std::string> names, ReadList(*list));
  HAULWAY_ASSIGN(const ZeroFiles files, FindZeroFiles(names));
  const bool is_model = options.part.empty() || options.part == "model";
  if (!is_model && options.part != "optim") {
    return Status(
        Code::kNotFound,
        fmt::format("folder holds no state {}: found 'model', 'optim'",
                    Quote(options.part)));
  }
  const bool is_computing =
      is_model && options.weights == TrainedWeights::kModel;
  HAULWAY_ASSIGN(std::vector<RankFile> models,
                 OpenFiles(*list, files.models, options));
  std::vector<RankFile> optimizers;
  if (!is_computing) {
    HAULWAY_ASSIGN(optimizers, OpenFiles(*list, files.optimizers, options));
  }
  ZeroJoin join(std::move(models), std::move(optimizers), files.is_stage3);
  auto joined = is_computing ? join.Model()
                : is_model   ? join.Master()
                             : join.Optimizer();
  HAULWAY_ASSIGN(Assembly assembly, std::move(joined));
  return AssembledReader::Make(Format::kDeepSpeed, std::move(assembly),
                               std::move(list));
}

}  // namespace

Result<std::unique_ptr<const FormatReader>> OpenZero(
    SourcePtr list, const OpenOptions& options) {
  HAULWAY_ASSIGN(auto reader, JoinZeroFiles(std::move(list), options));
  return std::unique_ptr<const FormatReader>(std::move(reader));
}

Result<VerifyReport> VerifyZero(SourcePtr list, const VerifyOptions& options) {
  return VerifyFiles(std::move(list), Format::kDeepSpeed, JoinZeroFiles,
                     options);
}

}  // namespace haulway::ranks
