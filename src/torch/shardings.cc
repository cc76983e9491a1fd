// Design: the classes are labels of plain attributes, whose names changed over
// the versions of torch; docs/formats/ranks.md lists them. An attribute is read
// if it says what the process holds, and checked against what the call says of
// the whole tensor. Attributes that depend on the process (_hash,
// _dim_group_names) are not read, nor is the root of a mesh, because the axes
// refer to the list of all processes that every mesh has.
//
// Alternative not taken: derive the part from the shapes alone. Parts of equal
// shapes may be shards or replicas.

#include "torch/shardings.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "torch/corrupt_at.h"
#include "torch/torch_calls.h"

namespace haulway::torch {

namespace {

constexpr std::string_view kDTensor = "DTensor";
constexpr std::string_view kShardedTensor = "ShardedTensor";
constexpr std::string_view kModule = "torch.distributed.";

bool IsClass(const Value& value, std::string_view name) {
  return value.is(Kind::kGlobal) && value.global().name == name &&
         value.global().module.starts_with(kModule);
}

// Returns the object, if the value is one of this class that was made empty.
const Object* AsObject(const Value& value, std::string_view name) {
  if (!value.is(Kind::kObject)) return nullptr;
  const Object& object = value.object();
  const bool is_it = object.is_new && object.callable != nullptr &&
                     object.callable->name == name &&
                     object.callable->module.starts_with(kModule);
  return is_it ? &object : nullptr;
}

// Returns the attributes that a state sets: a dict, or the dict of slots in a
// tuple of two.
const Mapping* Attributes(const Value& state) {
  if (state.is_mapping()) return &state.mapping();
  if (!state.is(Kind::kTuple) || state.sequence().size != 2) return nullptr;
  const Value& slots = state.sequence().items()[1];
  return slots.is_mapping() ? &slots.mapping() : nullptr;
}

// Returns the attributes of an object of this class; null if it is none.
const Mapping* FieldsOf(const Value* value, std::string_view name) {
  if (value == nullptr) return nullptr;
  const Object* const object = AsObject(*value, name);
  return object == nullptr ? nullptr : Attributes(object->state);
}

Status Not(std::string_view what, uint64_t byte) {
  return CorruptAt(fmt::format("{} is not what it must be", what), byte);
}

// Returns numbers from 0; nullopt for any other value.
std::optional<std::vector<int64_t>> Numbers(const Value* value) {
  if (value == nullptr) return std::nullopt;
  std::vector<int64_t> numbers;
  if (value->is(Kind::kInt) && value->integer() >= 0) {
    numbers.push_back(value->integer());
    return numbers;
  }
  const auto items = Ints(*value);
  if (!items.has_value()) return std::nullopt;
  for (const Value& item : *items) {
    if (item.is(Kind::kTuple)) {  // A dimension of several.
      const auto inner = Numbers(&item);
      if (!inner.has_value()) return std::nullopt;
      numbers.insert(numbers.end(), inner->begin(), inner->end());
      continue;
    }
    if (!item.is(Kind::kInt) || item.integer() < 0) return std::nullopt;
    numbers.push_back(item.integer());
  }
  return numbers;
}

std::optional<std::vector<int64_t>> NumbersIn(const Mapping& fields,
                                              std::string_view name) {
  return Numbers(fields.Find(name));
}

// Returns a number that may be missing.
std::optional<int64_t> NumberIn(const Mapping& fields, std::string_view name) {
  const Value* const value = fields.Find(name);
  if (value == nullptr || !value->is(Kind::kInt)) return std::nullopt;
  return value->integer();
}

std::optional<Placement> PlacementOf(const Value& value) {
  if (!value.is(Kind::kObject)) return std::nullopt;
  const Object& object = value.object();
  if (!object.is_new || object.callable == nullptr ||
      !object.callable->module.starts_with(kModule)) {
    return std::nullopt;
  }
  const std::string_view name = object.callable->name;
  Placement placement;
  if (name == "Replicate") return placement;
  const Mapping* const fields = Attributes(object.state);
  if (fields == nullptr) return std::nullopt;
  if (name == "Partial" || name == "_Partial") {
    placement.kind = PlacementKind::kPartial;
    const Value* const op = fields->Find("reduce_op");
    if (op != nullptr && op->is(Kind::kString))
      placement.reduce_op = op->text();
    return placement;
  }
  const auto dim = NumberIn(*fields, "dim");
  if (!dim.has_value() || *dim < 0) return std::nullopt;
  placement.dim = *dim;
  placement.kind = PlacementKind::kShard;
  if (name == "Shard") return placement;
  const auto factor = NumberIn(*fields, "split_factor");
  if (name != "_StridedShard" || !factor.has_value() || *factor < 1) {
    return std::nullopt;
  }
  placement.kind = PlacementKind::kStridedShard;
  placement.split_factor = *factor;
  return placement;
}

std::optional<MeshAxis> AxisOf(const Value* shape, const Value* stride) {
  const auto sizes = Numbers(shape);
  const auto strides = Numbers(stride);
  if (!sizes.has_value() || !strides.has_value() ||
      sizes->size() != strides->size()) {
    return std::nullopt;
  }
  return MeshAxis{*sizes, *strides};
}

// Reads a layout: since torch 2.13 an object for each axis, before that two
// tuples with an item for each.
std::optional<std::vector<MeshAxis>> AxesOf(const Mapping& layout) {
  std::vector<MeshAxis> axes;
  const auto add = [&](const Value* shape, const Value* stride) {
    auto axis = AxisOf(shape, stride);
    if (axis.has_value()) axes.push_back(*std::move(axis));
    return axis.has_value();
  };
  if (const Value* const found = layout.Find("axes")) {
    if (!found->is(Kind::kTuple)) return std::nullopt;
    for (const Value& item : found->sequence().items()) {
      const Mapping* const flat = FieldsOf(&item, "_FlatLayout");
      if (flat == nullptr || !add(flat->Find("shape"), flat->Find("stride"))) {
        return std::nullopt;
      }
    }
    return axes;
  }
  const Value* const shape = layout.Find("shape");
  const Value* const stride = layout.Find("stride");
  if (shape == nullptr || stride == nullptr) return std::nullopt;
  if (!shape->is(Kind::kTuple)) {
    if (!add(shape, stride)) return std::nullopt;
    return axes;
  }
  if (!stride->is(Kind::kTuple) ||
      shape->sequence().size != stride->sequence().size) {
    return std::nullopt;
  }
  for (uint32_t i = 0; i < shape->sequence().size; ++i) {
    if (!add(&shape->sequence().data[i], &stride->sequence().data[i])) {
      return std::nullopt;
    }
  }
  return axes;
}

std::vector<std::string_view> NamesIn(const Mapping& fields,
                                      std::string_view name) {
  std::vector<std::string_view> names;
  const Value* const value = fields.Find(name);
  if (value == nullptr || !value->is(Kind::kTuple)) return names;
  for (const Value& item : value->sequence().items()) {
    names.push_back(item.is(Kind::kString) ? item.text() : "");
  }
  return names;
}

std::optional<ShardBox> BoxOf(const Value* value, size_t rank) {
  const Mapping* const fields = FieldsOf(value, "ShardMetadata");
  if (fields == nullptr) return std::nullopt;
  auto offsets = NumbersIn(*fields, "shard_offsets");
  auto sizes = NumbersIn(*fields, "shard_sizes");
  if (!offsets.has_value() || !sizes.has_value() || offsets->size() != rank ||
      sizes->size() != rank) {
    return std::nullopt;
  }
  return ShardBox{*std::move(offsets), *std::move(sizes)};
}

}  // namespace

bool IsSharded(const Value& type) {
  return IsClass(type, kDTensor) || IsClass(type, kShardedTensor);
}

Result<Sharding> ShardingReader::Read(std::span<const Value> args,
                                      const Value& state, const RowOf& row_of,
                                      uint64_t byte, uint32_t* local) {
  Sharding sharding;
  HAULWAY_TRY(ReadWhole(args, byte, &sharding));
  if (IsClass(args[0], kDTensor)) {
    HAULWAY_TRY(ReadDTensor(state, row_of, byte, &sharding, local));
  } else {
    HAULWAY_TRY(ReadShardedTensor(state, row_of, byte, &sharding));
  }
  return sharding;
}

// Reads (class, dtype, size, stride, ...).
Status ShardingReader::ReadWhole(std::span<const Value> args, uint64_t byte,
                                 Sharding* sharding) const {
  if (args.size() != 8 || !IsSharded(args[0])) return Not("a part", byte);
  if (!args[1].is(Kind::kGlobal) ||
      KindOf(args[1].global()) != GlobalKind::kDType) {
    return Not("dtype", byte);
  }
  sharding->dtype = DTypeOf(args[1].global());
  auto shape = Numbers(&args[2]);
  if (!shape.has_value()) return Not("size", byte);
  if (shape->size() > limits_.max_rank) {
    return Status(Code::kLimit, fmt::format("{} dimensions pass max_rank {}",
                                            shape->size(), limits_.max_rank))
        .At(byte);
  }
  sharding->shape = *std::move(shape);
  return Status();
}

Status ShardingReader::ReadDTensor(const Value& state, const RowOf& row_of,
                                   uint64_t byte, Sharding* sharding,
                                   uint32_t* local) {
  const Mapping* const fields = Attributes(state);
  const Value* const part =
      fields == nullptr ? nullptr : fields->Find("_local_tensor");
  const Mapping* const spec =
      fields == nullptr ? nullptr
                        : FieldsOf(fields->Find("_spec"), "DTensorSpec");
  if (part == nullptr || spec == nullptr) return Not("state", byte);
  HAULWAY_ASSIGN(*local, row_of(*part));
  if (index_.tensors[*local].dtype != sharding->dtype) {
    return CorruptAt(
        fmt::format("the local tensor is of {}: expected {}",
                    Name(index_.tensors[*local].dtype), Name(sharding->dtype)),
        byte);
  }
  const Value* const placements = spec->Find("placements");
  if (placements == nullptr || !placements->is(Kind::kTuple)) {
    return Not("placements", byte);
  }
  for (const Value& item : placements->sequence().items()) {
    const auto placement = PlacementOf(item);
    if (!placement.has_value()) return Not("a placement", byte);
    sharding->placements.push_back(*placement);
  }
  // TensorMeta(shape, stride, dtype), or None.
  const Value* const meta = spec->Find("tensor_meta");
  if (meta != nullptr && !meta->is(Kind::kNone)) {
    const Object* const object = AsObject(*meta, "TensorMeta");
    const auto shape = object == nullptr || !object->args.is(Kind::kTuple) ||
                               object->args.sequence().size != 3
                           ? std::nullopt
                           : Numbers(&object->args.sequence().items()[0]);
    if (!shape.has_value()) return Not("tensor_meta", byte);
    if (*shape != sharding->shape) {
      return CorruptAt("tensor_meta is of another shape than the tensor", byte);
    }
  }
  const Value* const mesh = spec->Find("mesh");
  if (mesh == nullptr) return Not("mesh", byte);
  HAULWAY_ASSIGN(sharding->mesh, ReadMesh(*mesh, row_of, byte));
  return Status();
}

Result<uint32_t> ShardingReader::ReadMesh(const Value& value,
                                          const RowOf& row_of, uint64_t byte) {
  const Mapping* const fields = FieldsOf(&value, "DeviceMesh");
  if (fields == nullptr) return Not("mesh", byte);
  const auto [at, is_new] = meshes_.try_emplace(
      &value.object(), static_cast<uint32_t>(index_.meshes.size()));
  if (!is_new) return at->second;
  ProcessMesh mesh;
  const Value* ranks = fields->Find("mesh");
  if (ranks != nullptr) {
    mesh.names = NamesIn(*fields, "mesh_dim_names");
  } else {
    const Mapping* const layout =
        FieldsOf(fields->Find("_layout"), "_MeshLayout");
    auto axes = layout == nullptr ? std::nullopt : AxesOf(*layout);
    ranks = fields->Find("_rank_map");
    if (!axes.has_value() || ranks == nullptr) return Not("mesh", byte);
    mesh.has_layout = true;
    mesh.axes = *std::move(axes);
    mesh.names = NamesIn(*fields, "_mesh_dim_names");
    mesh.rank = NumberIn(*fields, "_rank");
  }
  HAULWAY_ASSIGN(mesh.ranks, row_of(*ranks));
  index_.meshes.push_back(std::move(mesh));
  return at->second;
}

// `state`: the local shards, the metadata, the state of the process group, the
// sharding spec, and the list of initial references.
Status ShardingReader::ReadShardedTensor(const Value& state,
                                         const RowOf& row_of, uint64_t byte,
                                         Sharding* sharding) const {
  if (!state.is(Kind::kTuple) || state.sequence().size != 5) {
    return Not("state", byte);
  }
  const auto parts = state.sequence().items();
  const Mapping* const metadata = FieldsOf(&parts[1], "ShardedTensorMetadata");
  if (!parts[0].is(Kind::kList) || metadata == nullptr) {
    return Not("state", byte);
  }
  const size_t rank = sharding->shape.size();
  const auto size = NumbersIn(*metadata, "size");
  if (size != sharding->shape) {
    return CorruptAt("its metadata is of another shape than the tensor", byte);
  }
  const Value* const all = metadata->Find("shards_metadata");
  if (all == nullptr || !all->is(Kind::kList)) {
    return Not("shards_metadata", byte);
  }
  for (const Value& item : all->sequence().items()) {
    auto box = BoxOf(&item, rank);
    if (!box.has_value()) return Not("shards_metadata", byte);
    sharding->all.push_back(*std::move(box));
  }
  for (const Value& item : parts[0].sequence().items()) {
    const Mapping* const fields = FieldsOf(&item, "Shard");
    const Value* const tensor =
        fields == nullptr ? nullptr : fields->Find("tensor");
    auto box = fields == nullptr ? std::nullopt
                                 : BoxOf(fields->Find("metadata"), rank);
    if (tensor == nullptr || !box.has_value()) {
      return Not("a local shard", byte);
    }
    HAULWAY_ASSIGN(const uint32_t row, row_of(*tensor));
    const TensorInfo& info = index_.tensors[row];
    if (info.dtype != sharding->dtype ||
        !std::ranges::equal(info.shape, box->sizes)) {
      return CorruptAt(
          "a local shard is not of the shape and dtype that its "
          "metadata states",
          byte);
    }
    sharding->local.push_back({*std::move(box), row});
  }
  return Status();
}

}  // namespace haulway::torch
