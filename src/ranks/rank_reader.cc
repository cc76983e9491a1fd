// Design: each file is opened as a file of torch.save() by itself. Then its
// tensors are compared with those of the first file, and the algebra
// (placement.h) says which elements of the whole each process holds: pieces. Of
// processes that hold the same elements the first one gives them, and the
// others are replicas. The object is that of the first file, with the whole
// tensors in place of the parts.
//
// Alternative not taken: compare all other values of the files. Random states
// and counters differ between processes, and each file opens by itself.

#include "ranks/rank_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/checked.h"
#include "base/json_text.h"
#include "base/text.h"
#include "decode/stored_tensor.h"
#include "io/model_names.h"
#include "ranks/assembled_reader.h"
#include "ranks/open_ranks.h"
#include "ranks/pieced_source.h"
#include "ranks/placement.h"
#include "tensor/dtype_kind.h"
#include "tensor/strided.h"

namespace haulway::ranks {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;

constexpr std::string_view kModelPart = "model";
// The end of the name of a parameter in which FSDP joined others.
constexpr std::string_view kFlatParameter = "_flat_param";
constexpr size_t kMostPieces = size_t{1} << 22;

std::string ShapeText(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string PlacementsText(std::span<const Placement> placements) {
  std::vector<std::string> texts;
  for (const Placement& placement : placements) {
    texts.push_back(ToString(placement));
  }
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

// A mesh of a file, with the numbers of its processes.
struct Mesh {
  const ProcessMesh* mesh = nullptr;
  std::vector<int64_t> ranks;
  std::vector<int64_t> shape;  // The shape of the tensor with the numbers.
  std::optional<MeshPlace> place;
  std::set<uint32_t> same_as;  // Meshes of the first file.
};

bool IsSame(const Mesh& a, const Mesh& b) {
  return a.mesh->has_layout == b.mesh->has_layout &&
         a.mesh->axes == b.mesh->axes && a.ranks == b.ranks &&
         a.shape == b.shape;
}

// The processes in all meshes of a file.
constexpr uint64_t kMostNumbers = uint64_t{1} << 22;

// Returns the numbers that a tensor of integers holds, and takes them off
// `*left`, how many there may be.
Result<std::vector<int64_t>> ReadNumbers(const FormatReader& reader,
                                         const TensorInfo& tensor,
                                         uint64_t* left) {
  const uint64_t item = ItemBytes(tensor.dtype);
  const bool is_integer =
      tensor.dtype == DType::kI32 || tensor.dtype == DType::kI64;
  if (!is_integer || tensor.kind != TensorKind::kDense) {
    return Status(Code::kCorrupt, "the processes of a mesh are no integers");
  }
  const uint64_t count = tensor.nbytes / item;
  if (count > *left) {
    return Status(Code::kLimit,
                  fmt::format("the meshes of the file have more than {} "
                              "processes",
                              kMostNumbers));
  }
  *left -= count;
  std::vector<int64_t> numbers(count);
  if (item == sizeof(int64_t)) {
    HAULWAY_TRY(
        ReadTensor(reader, tensor, std::as_writable_bytes(std::span(numbers))));
    return numbers;
  }
  std::vector<int32_t> small(numbers.size());
  HAULWAY_TRY(
      ReadTensor(reader, tensor, std::as_writable_bytes(std::span(small))));
  std::ranges::copy(small, numbers.begin());
  return numbers;
}

// A RankJoin finds the pieces of every tensor.
class RankJoin {
 public:
  // `missing`: a file that is not among `files`; "" if none is missing.
  RankJoin(std::vector<RankFile> files, Replicas replicas, std::string missing)
      : replicas_(replicas), missing_(std::move(missing)) {
    assembly_.files = std::move(files);
  }

  Result<Assembly> Run() {
    for (const RankFile& file : assembly_.files) HAULWAY_TRY(ReadMeshes(file));
    HAULWAY_TRY(MatchNames());
    const CheckpointIndex& first = IndexOf(0);
    for (uint32_t e = 0; e < first.entries.size(); ++e) {
      Status status = AddEntry(e);
      if (!status.ok()) {
        return std::move(status).In(Quote(first.entries[e].name));
      }
    }
    for (PiecedTensor& tensor : assembly_.tensors) {
      if (!IsWhole(tensor)) tensor.missing = missing_;
    }
    HAULWAY_TRY(CheckCover(assembly_.tensors));
    if (!first.flat) assembly_.root = first.root;
    AddFacts();
    return std::move(assembly_);
  }

 private:
  const CheckpointIndex& IndexOf(size_t file) const {
    return assembly_.files[file].reader->index();
  }
  size_t count() const { return assembly_.files.size(); }
  uint64_t RankOf(size_t file) const { return assembly_.files[file].rank; }
  const TensorInfo& TensorOf(uint32_t entry, size_t file) const {
    return IndexOf(file).tensors[rows_[file][entry]];
  }
  const Sharding& ShardingOf(const TensorInfo& tensor, size_t file) const {
    return IndexOf(file).shardings[tensor.sharding];
  }

  // A fault of the file of a process.
  Status Of(Status status, size_t file) const {
    return std::move(status).Of(assembly_.files[file].name);
  }
  Status Contradiction(size_t file, std::string_view what, std::string expected,
                       std::string found) const {
    return Of(
        Status(Code::kMismatch,
               fmt::format("rank {} saved the tensor with another {}: "
                           "expected {} as rank {}, found {}",
                           RankOf(file), what, expected, RankOf(0), found)),
        file);
  }

  Status ReadMeshes(const RankFile& file) {
    const CheckpointIndex& index = file.reader->index();
    std::vector<Mesh>& meshes = meshes_.emplace_back();
    uint64_t left = kMostNumbers;
    for (const ProcessMesh& mesh : index.meshes) {
      const auto rank = static_cast<int64_t>(file.rank);
      if (mesh.rank.has_value() && *mesh.rank != rank) {
        return Status(Code::kMismatch,
                      fmt::format("the file is named for rank {} and was "
                                  "written by rank {}: expected the same",
                                  rank, *mesh.rank))
            .Of(file.name);
      }
      const TensorInfo& tensor = index.tensors[mesh.ranks];
      auto ranks = ReadNumbers(*file.reader, tensor, &left);
      if (!ranks.ok()) return std::move(ranks).status().Of(file.name);
      meshes.push_back({&mesh,
                        *std::move(ranks),
                        {tensor.shape.begin(), tensor.shape.end()},
                        std::nullopt,
                        {}});
    }
    return Status();
  }

  // Finds the row of each tensor of the first file in the others.
  Status MatchNames() {
    const auto& first = IndexOf(0).entries;
    for (size_t f = 0; f < count(); ++f) {
      std::unordered_map<std::string_view, uint32_t> by_name;
      for (const Entry& entry : IndexOf(f).entries) {
        by_name.emplace(entry.name, entry.tensor);
      }
      std::vector<uint32_t>& rows = rows_.emplace_back();
      rows.reserve(first.size());
      for (const Entry& entry : first) {
        const auto found = by_name.find(entry.name);
        if (found == by_name.end()) return Lacks(entry.name, 0, f);
        rows.push_back(found->second);
        by_name.erase(found);
      }
      if (!by_name.empty()) return Lacks(by_name.begin()->first, f, 0);
    }
    return Status();
  }

  Status Lacks(std::string_view name, size_t having, size_t lacking) const {
    return Of(Status(Code::kMismatch,
                     fmt::format("rank {} lacks tensor {}, which rank {} saved",
                                 RankOf(lacking), Quote(name), RankOf(having))),
              lacking);
  }

  Status AddEntry(uint32_t entry) {
    if (IndexOf(0).entries[entry].name.ends_with(kFlatParameter)) {
      return Status(Code::kUnsupported,
                    "a flat parameter of FSDP (LOCAL_STATE_DICT): the files do "
                    "not have the shapes of its parameters; expected "
                    "SHARDED_STATE_DICT or FULL_STATE_DICT");
    }
    const TensorInfo& first = TensorOf(entry, 0);
    const uint32_t row = rows_[0][entry];
    if (const auto known = FindTie(entry); known.has_value()) {
      return AddRow(entry, first, *known);
    }
    PiecedTensor tensor;
    tensor.name = IndexOf(0).entries[entry].name;
    tensor.item_bytes = ItemBytes(first.dtype);
    if (first.sharding == kNoSharding) {
      tensor.shape.assign(first.shape.begin(), first.shape.end());
    } else {
      tensor.shape = ShardingOf(first, 0).shape;
    }
    for (size_t f = 0; f < count(); ++f) {
      HAULWAY_TRY(AddPart(entry, f, &tensor));
    }
    HAULWAY_TRY(CheckBytes(tensor));
    groups_.clear();
    const auto pieced = static_cast<uint32_t>(assembly_.tensors.size());
    assembly_.tensors.push_back(std::move(tensor));
    entry_of_pieced_.push_back(entry);
    ties_.emplace(StorageKey(row), pieced);
    return AddRow(entry, first, pieced);
  }

  // Returns whether the pieces have as many elements as the tensor.
  static bool IsWhole(const PiecedTensor& tensor) {
    uint64_t lacking = CountElements(tensor.shape).value_or(UINT64_MAX);
    for (const Piece& piece : tensor.pieces) {
      lacking -= std::min(lacking, CountElements(piece.sizes).value_or(0));
    }
    return lacking == 0;
  }

  static Status CheckBytes(const PiecedTensor& tensor) {
    uint64_t bytes = tensor.item_bytes;
    for (const int64_t size : tensor.shape) {
      if (!CheckedMultiply(bytes, static_cast<uint64_t>(size), &bytes) ||
          bytes > (uint64_t{1} << 60)) {
        return Status(Code::kCorrupt,
                      "shape is of more bytes than there can be");
      }
    }
    return Status();
  }

  Status AddRow(uint32_t entry, const TensorInfo& info, uint32_t pieced) {
    const auto row = static_cast<uint32_t>(assembly_.rows.size());
    assembly_.rows.push_back({std::string(IndexOf(0).entries[entry].name), info,
                              assembly_.tensors[pieced].shape, pieced});
    assembly_.row_of.emplace(rows_[0][entry], row);
    return Status();
  }

  // What tied tensors have in common in one file.
  uint32_t StorageKey(uint32_t row) const {
    return IndexOf(0).tensors[row].storage;
  }
  bool IsTied(uint32_t a, uint32_t b) const {
    for (size_t f = 0; f < count(); ++f) {
      const TensorInfo& x = TensorOf(a, f);
      const TensorInfo& y = TensorOf(b, f);
      if (x.storage != y.storage || x.storage == kNoStorage ||
          x.storage_offset != y.storage_offset || x.dtype != y.dtype ||
          !std::ranges::equal(x.shape, y.shape) ||
          !std::ranges::equal(x.strides, y.strides) ||
          (x.sharding == kNoSharding) != (y.sharding == kNoSharding)) {
        return false;
      }
      if (x.sharding == kNoSharding) continue;
      const Sharding& p = ShardingOf(x, f);
      const Sharding& q = ShardingOf(y, f);
      const bool is_same_mesh =
          p.mesh == q.mesh ||
          (p.mesh != Sharding::kNoMesh && q.mesh != Sharding::kNoMesh &&
           IsSame(meshes_[f][p.mesh], meshes_[f][q.mesh]));
      if (p.shape != q.shape || p.placements != q.placements ||
          p.all != q.all || !is_same_mesh) {
        return false;
      }
    }
    return true;
  }
  std::optional<uint32_t> FindTie(uint32_t entry) const {
    const auto [begin, end] = ties_.equal_range(StorageKey(rows_[0][entry]));
    for (auto it = begin; it != end; ++it) {
      if (IsTied(entry_of_pieced_[it->second], entry)) return it->second;
    }
    return std::nullopt;
  }

  // Adds what a process holds of a tensor.
  Status AddPart(uint32_t entry, size_t f, PiecedTensor* tensor) {
    const TensorInfo& first = TensorOf(entry, 0);
    const TensorInfo& info = TensorOf(entry, f);
    if (IsQuantized(info.dtype) || Describe(info.dtype).item_elements > 1) {
      return Of(Status(Code::kUnsupported,
                       fmt::format("tensors of {} are not put together",
                                   Name(info.dtype))),
                f);
    }
    if (info.dtype != first.dtype) {
      return Contradiction(f, "dtype", std::string(Name(first.dtype)),
                           std::string(Name(info.dtype)));
    }
    if (info.conjugate != first.conjugate || info.negative != first.negative) {
      return Contradiction(f, "sign or conjugation", "the same", "another");
    }
    const bool is_sharded = info.sharding != kNoSharding;
    if (is_sharded != (first.sharding != kNoSharding)) {
      return Contradiction(f, "kind", is_sharded ? "a plain one" : "a part",
                           is_sharded ? "a part" : "a plain one");
    }
    if (!is_sharded) {
      if (!std::ranges::equal(info.shape, first.shape)) {
        return Contradiction(f, "shape", ShapeText(first.shape),
                             ShapeText(info.shape));
      }
      std::vector<Runs> runs;
      for (const int64_t size : info.shape) runs.push_back({{0, size}});
      return AddPieces(runs, info, f, tensor);
    }
    const Sharding& sharding = ShardingOf(info, f);
    const Sharding& other = ShardingOf(first, 0);
    if (sharding.shape != other.shape) {
      return Contradiction(f, "shape", ShapeText(other.shape),
                           ShapeText(sharding.shape));
    }
    if (sharding.mesh == Sharding::kNoMesh || other.mesh == Sharding::kNoMesh) {
      if (sharding.mesh != other.mesh || sharding.all != other.all) {
        return Contradiction(f, "list of shards", "the same", "another");
      }
      return AddShards(sharding, f, tensor);
    }
    return AddDTensor(sharding, other, info, f, tensor);
  }

  Status AddDTensor(const Sharding& sharding, const Sharding& first,
                    const TensorInfo& info, size_t f, PiecedTensor* tensor) {
    if (sharding.placements != first.placements) {
      return Contradiction(f, "placement", PlacementsText(first.placements),
                           PlacementsText(sharding.placements));
    }
    Mesh& mesh = meshes_[f][sharding.mesh];
    if (!mesh.same_as.contains(first.mesh)) {
      // Before torch 2.10, a mesh has only its own processes.
      const Mesh& expected = meshes_[0][first.mesh];
      const bool is_other_part = !mesh.mesh->has_layout &&
                                 !expected.mesh->has_layout &&
                                 mesh.shape == expected.shape &&
                                 AreDisjoint(mesh.ranks, expected.ranks);
      if (!IsSame(mesh, expected) && !is_other_part) {
        return Contradiction(f, "mesh", ShapeText(expected.ranks),
                             ShapeText(mesh.ranks));
      }
      mesh.same_as.insert(first.mesh);
    }
    if (!mesh.place.has_value()) {
      auto place = PlaceIn(*mesh.mesh, mesh.ranks, mesh.shape,
                           static_cast<int64_t>(RankOf(f)));
      if (!place.ok()) return Of(std::move(place).status(), f);
      mesh.place = *std::move(place);
    }
    auto runs = RunsOf(sharding.shape, sharding.placements, *mesh.place);
    if (!runs.ok()) return Of(std::move(runs).status(), f);
    std::vector<int64_t> lengths;
    for (const Runs& of_dim : *runs) lengths.push_back(LengthOf(of_dim));
    if (!std::ranges::equal(lengths, info.shape)) {
      return Of(Status(Code::kCorrupt,
                       fmt::format("rank {} holds a part of shape {}: expected "
                                   "{}, by placements {} of shape {}",
                                   RankOf(f), ShapeText(info.shape),
                                   ShapeText(lengths),
                                   PlacementsText(sharding.placements),
                                   ShapeText(sharding.shape))),
                f);
    }
    return AddPieces(*runs, info, f, tensor);
  }

  static bool AreDisjoint(std::span<const int64_t> a,
                          std::span<const int64_t> b) {
    return std::ranges::none_of(
        a, [&](int64_t rank) { return std::ranges::find(b, rank) != b.end(); });
  }

  Status AddShards(const Sharding& sharding, size_t f, PiecedTensor* tensor) {
    for (const LocalShard& shard : sharding.local) {
      if (std::ranges::find(sharding.all, shard.box) == sharding.all.end()) {
        return Of(Status(Code::kCorrupt,
                         fmt::format("rank {} holds a shard at {} that its "
                                     "list of shards lacks",
                                     RankOf(f), ShapeText(shard.box.offsets))),
                  f);
      }
      std::vector<Runs> runs;
      for (size_t d = 0; d < sharding.shape.size(); ++d) {
        const IndexRun run{shard.box.offsets[d], shard.box.sizes[d]};
        if (run.length > sharding.shape[d] ||
            run.begin > sharding.shape[d] - run.length) {
          return Of(Status(Code::kCorrupt, "a shard leaves its tensor"), f);
        }
        runs.push_back({run});
      }
      HAULWAY_TRY(AddPieces(runs, IndexOf(f).tensors[shard.tensor], f, tensor));
    }
    return Status();
  }

  // Adds the elements of a local tensor, which are those of the runs.
  Status AddPieces(const std::vector<Runs>& runs, const TensorInfo& info,
                   size_t f, PiecedTensor* tensor) {
    uint64_t count = 1;
    std::vector<int64_t> key;
    for (const Runs& of_dim : runs) {
      key.push_back(static_cast<int64_t>(of_dim.size()));
      for (const IndexRun& run : of_dim) {
        key.push_back(run.begin);
        key.push_back(run.length);
      }
      if (LengthOf(of_dim) == 0) return Status();  // No element.
      count *= of_dim.size();
      if (count > kMostPieces) break;
    }
    pieces_ += count;
    if (count > kMostPieces || pieces_ > kMostPieces) {
      return Status(Code::kLimit,
                    fmt::format("the parts of the tensors are more than {} "
                                "rectangles",
                                kMostPieces));
    }
    Status raw = CheckIsRaw(IndexOf(f), info);
    if (!raw.ok()) return Of(std::move(raw), f);
    const bool is_first = groups_.insert(std::move(key)).second;
    if (!is_first && replicas_ == Replicas::kFirst) return Status();
    auto& pieces = is_first ? tensor->pieces : tensor->replicas;
    const size_t rank = runs.size();
    std::vector<size_t> at(rank);       // Which run, by dimension,
    std::vector<int64_t> before(rank);  // and the elements before it.
    for (uint64_t i = 0; i < count; ++i) {
      Piece piece;
      piece.file = static_cast<uint32_t>(f);
      piece.storage = info.storage;
      auto offset = static_cast<int64_t>(info.storage_offset);
      for (size_t d = 0; d < rank; ++d) {
        piece.begin.push_back(runs[d][at[d]].begin);
        piece.sizes.push_back(runs[d][at[d]].length);
        piece.strides.push_back(info.strides[d]);
        offset += before[d] * info.strides[d];
      }
      piece.offset = static_cast<uint64_t>(offset) * tensor->item_bytes;
      pieces.push_back(std::move(piece));
      for (size_t d = rank; d-- > 0;) {
        before[d] += runs[d][at[d]].length;
        if (++at[d] < runs[d].size()) break;
        at[d] = 0;
        before[d] = 0;
      }
    }
    return Status();
  }

  // Adds the mesh with the most dimensions, and all placements.
  void AddFacts() {
    const Mesh* largest = nullptr;
    size_t most = 0;
    for (const Mesh& mesh : meshes_[0]) {
      const size_t dims =
          mesh.mesh->has_layout ? mesh.mesh->axes.size() : mesh.shape.size();
      if (largest != nullptr && dims <= most) continue;
      largest = &mesh;
      most = dims;
    }
    auto& facts = assembly_.facts;
    facts.push_back({"world_size", uint64_t{count()}});
    if (largest != nullptr) {
      std::vector<std::string> names;
      for (const std::string_view name : largest->mesh->names) {
        names.push_back(JsonText(name));
      }
      const auto place = PlaceIn(*largest->mesh, largest->ranks, largest->shape,
                                 static_cast<int64_t>(RankOf(0)));
      const std::vector<int64_t> sizes =
          place.ok() ? place->sizes : largest->shape;
      facts.push_back(
          {"mesh", FactJson{fmt::format("{{\"shape\":[{}],\"names\":[{}]}}",
                                        fmt::join(sizes, ","),
                                        fmt::join(names, ","))}});
    }
    std::vector<std::string> placements;
    for (uint32_t e = 0; e < IndexOf(0).entries.size(); ++e) {
      const TensorInfo& info = TensorOf(e, 0);
      if (info.sharding == kNoSharding) continue;
      const Sharding& sharding = ShardingOf(info, 0);
      if (sharding.mesh == Sharding::kNoMesh) continue;
      std::vector<std::string> texts;
      for (const Placement& placement : sharding.placements) {
        texts.push_back(JsonText(ToString(placement)));
      }
      placements.push_back(fmt::format("{}:[{}]",
                                       JsonText(IndexOf(0).entries[e].name),
                                       fmt::join(texts, ",")));
    }
    facts.push_back({"placements", FactJson{fmt::format(
                                       "{{{}}}", fmt::join(placements, ","))}});
  }

  const Replicas replicas_;
  const std::string missing_;
  Assembly assembly_;
  std::vector<std::vector<Mesh>> meshes_;    // By file.
  std::vector<std::vector<uint32_t>> rows_;  // By file and entry.
  std::unordered_multimap<uint32_t, uint32_t> ties_;
  std::vector<uint32_t> entry_of_pieced_;
  std::set<std::vector<int64_t>> groups_;  // Elements that a process gave.
  uint64_t pieces_ = 0;
};

Status NoSuchPart(std::string_view part, const std::set<std::string>& parts) {
  std::vector<std::string> quoted;
  for (const std::string& one : parts) quoted.push_back(Quote(one));
  return Status(Code::kNotFound,
                fmt::format("folder holds no state {} of processes: found {}",
                            Quote(part), fmt::join(quoted, ", ")));
}

// Returns the part that is the model, if nobody says which.
std::string ModelPart(const std::set<std::string>& parts) {
  if (parts.size() == 1) return *parts.begin();
  std::vector<std::string> models;
  for (const std::string& part : parts) {
    if (part.starts_with(kFsdpModel)) models.push_back(part);
  }
  const bool is_one = models.size() == 1 && !parts.contains(kModelPart.data());
  return is_one ? models.front() : std::string(kModelPart);
}

// Returns how many processes there were. If the names do not state that, they
// are as many as the highest rank says.
uint64_t WorldOf(std::span<const std::string> names, const RankName& one) {
  uint64_t world = one.world;
  if (world != 0) return world;
  for (const std::string& name : names) {
    const auto found = ParseRankName(name);
    if (found.has_value() && found->part == one.part) {
      world = std::max(world, found->rank < UINT64_MAX ? found->rank + 1 : 0);
    }
  }
  return world;
}

}  // namespace

Result<RankSet> ChooseRanks(std::span<const std::string> names,
                            std::string_view part, Strictness strictness) {
  std::set<std::string> parts;
  for (const std::string& name : names) {
    if (const auto found = ParseRankName(name)) parts.emplace(found->part);
  }
  const std::string chosen =
      part.empty() ? ModelPart(parts) : std::string(part);
  if (!parts.contains(chosen)) return NoSuchPart(chosen, parts);
  std::optional<RankName> first;
  std::string first_name;
  uint64_t world = 0;
  RankSet set{chosen, {}, ""};
  for (const std::string& name : names) {
    const auto found = ParseRankName(name);
    if (!found.has_value() || found->part != chosen) continue;
    if (!first.has_value()) {
      first = found;
      first_name = name;
      world = WorldOf(names, *found);
      if (world > names.size() && strictness == Strictness::kStrict) {
        // Most of the files are missing.
        set.files.resize(names.size() + 1);
      } else {
        set.files.resize(std::min<uint64_t>(world, names.size() * 2));
      }
    }
    if (found->world != first->world) {
      return Status(Code::kMismatch,
                    fmt::format("files are of runs of {} and of {} processes, "
                                "{} and {}: expected those of one",
                                first->world, found->world, Quote(first_name),
                                Quote(name)));
    }
    if (found->rank >= world) {
      return Status(Code::kMismatch,
                    fmt::format("file is of rank {}: expected 0 to {}",
                                found->rank, world - 1))
          .Of(name);
    }
    if (found->rank < set.files.size()) set.files[found->rank] = name;
  }
  const auto missing = std::ranges::find(set.files, "");
  if (missing == set.files.end()) return set;
  const auto rank = static_cast<uint64_t>(missing - set.files.begin());
  set.missing = first->Other(rank);
  if (strictness == Strictness::kStrict) {
    return Status(
        Code::kMismatch,
        fmt::format("file of rank {} of {} is missing: expected {}; the option "
                    "lenient, which load and convert have, reads the tensors "
                    "that the others hold whole",
                    rank, world, Quote(set.missing)));
  }
  return set;
}

namespace {

Result<std::unique_ptr<const AssembledReader>> JoinRankFiles(
    SourcePtr list, const OpenOptions& options) {
  HAULWAY_ASSIGN(const std::vector<std::string> names, ReadList(*list));
  HAULWAY_ASSIGN(const RankSet set,
                 ChooseRanks(names, options.part, options.strictness));
  HAULWAY_ASSIGN(std::vector<RankFile> files,
                 OpenFiles(*list, set.files, options));
  std::erase_if(files,
                [](const RankFile& file) { return file.reader == nullptr; });
  HAULWAY_ASSIGN(
      Assembly assembly,
      RankJoin(std::move(files), options.replicas, set.missing).Run());
  assembly.facts.push_back({"part", set.part});
  return AssembledReader::Make(Format::kTorchRanks, std::move(assembly),
                               std::move(list));
}

}  // namespace

Result<std::unique_ptr<const FormatReader>> OpenRanks(
    SourcePtr list, const OpenOptions& options) {
  HAULWAY_ASSIGN(auto reader, JoinRankFiles(std::move(list), options));
  return std::unique_ptr<const FormatReader>(std::move(reader));
}

Result<VerifyReport> VerifyRanks(SourcePtr list, const VerifyOptions& options) {
  return VerifyFiles(std::move(list), Format::kTorchRanks, JoinRankFiles,
                     options);
}

}  // namespace haulway::ranks
