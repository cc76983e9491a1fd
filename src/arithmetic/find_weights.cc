// Design: an operation is a row of a table: the method that declares it, the
// ending of the root's name, the endings of its companions, and the function
// that makes the weight. Each name is tried with each row of the declared
// method. A weight is quantized if the key companion is there; lists of modules
// in config.json only explain why others are not, and are not read. What is
// left over must be plain: a quantized dtype or a companion alone is an error.

#include "arithmetic/find_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "arithmetic/making.h"
#include "base/name_index.h"
#include "base/text.h"
#include "decode/encoding_traits.h"
#include "decode/stored_tensor.h"
#include "haulway/nearest.h"
#include "tensor/dtype_kind.h"
#include "tensor/scaled_tensors.h"
#include "tensor/strided.h"

namespace haulway::arithmetic {

namespace {

// Tensors of this size at most tell the shape of a weight.
constexpr uint64_t kMostStated = 64 * kKiB;

struct PartName {
  Role role = Role::kRoot;
  std::string_view ending;
  bool is_needed = false;
};

enum class RootDType : uint8_t { kAny, kF8, kF8OrI8, kU8, kI8 };

bool Fits(RootDType wanted, DType dtype) {
  switch (wanted) {
    case RootDType::kAny:
      return true;
    case RootDType::kF8:
      return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
    case RootDType::kF8OrI8:
      return Fits(RootDType::kF8, dtype) || dtype == DType::kI8;
    case RootDType::kU8:
      return dtype == DType::kU8;
    case RootDType::kI8:
      return dtype == DType::kI8;
  }
  return false;
}

constexpr size_t kMostParts = 6;

struct Operation {
  std::string_view method = {};
  std::string_view root = {};    // The ending of the root's name,
  std::string_view result = {};  // and what the result has in its place.
  RootDType dtype = RootDType::kAny;
  // The first one is the key.
  std::array<PartName, kMostParts> parts = {};
  Status (*make)(const Making& making) = nullptr;
  // A name with the root's ending is that of a quantized weight; else only if
  // the key is there.
  bool is_marked = false;
  // The key belongs to no other tensor: without a weight, it is an error.
  bool has_own_key = true;
};

constexpr PartName kScaleInv = {Role::kScale, "_scale_inv", true};
constexpr PartName kScale = {Role::kScale, "_scale", true};

// FP8 of transformers; experts may be FP4. DeepSeek and Mistral have other
// names. vLLM writes the scale of a tensor as fbgemm does.
constexpr Operation kOperations[] = {
    {.method = "fp8",
     .dtype = RootDType::kF8OrI8,
     .parts = {{kScaleInv}},
     .make = MakeFloat},
    {.method = "fp8",
     .root = ".weight",
     .result = ".weight",
     .dtype = RootDType::kF8OrI8,
     .parts = {{{Role::kScale, ".scale", true}}},
     .make = MakeFloat,
     .has_own_key = false},
    {.method = "fp8",
     .root = ".weight",
     .result = ".weight",
     .dtype = RootDType::kF8,
     .parts = {{{Role::kScale, ".qscale_weight", true}}},
     .make = MakeFloat},
    {.method = "fp8",
     .dtype = RootDType::kF8,
     .parts = {{kScale}},
     .make = MakeFloat,
     .has_own_key = false},
    {.method = "mxfp8",
     .dtype = RootDType::kF8OrI8,
     .parts = {{kScaleInv}},
     .make = MakeFloat},
    {.method = "fbgemm_fp8",
     .dtype = RootDType::kF8,
     .parts = {{kScale}},
     .make = MakeFloat,
     .has_own_key = false},
    {.method = "compressed-tensors",
     .root = "_packed",
     .parts = {{kScale,
                {Role::kZero, "_zero_point"},
                {Role::kGlobalScale, "_global_scale"},
                {Role::kGroupIndex, "_g_idx"},
                {Role::kShape, "_shape"}}},
     .make = MakePacked,
     .is_marked = true,
     .has_own_key = false},
    {.method = "compressed-tensors",
     .root = ".weight",
     .result = ".weight",
     .dtype = RootDType::kF8OrI8,
     .parts = {{{Role::kScale, ".weight_scale", true},
                {Role::kZero, ".weight_zero_point"}}},
     .make = MakeCompressed},
    {.method = "gptq",
     .root = ".qweight",
     .result = ".weight",
     .parts = {{{Role::kScale, ".scales", true},
                {Role::kZero, ".qzeros", true},
                {Role::kGroupIndex, ".g_idx"}}},
     .make = MakeGptq,
     .is_marked = true},
    {.method = "awq",
     .root = ".qweight",
     .result = ".weight",
     .parts = {{{Role::kScale, ".scales", true},
                {Role::kZero, ".qzeros", true}}},
     .make = MakeAwq,
     .is_marked = true},
    {.method = "mxfp4",
     .root = "_blocks",
     .dtype = RootDType::kU8,
     .parts = {{{Role::kScale, "_scales", true}}},
     .make = MakeStacked,
     .is_marked = true},
    {.method = "modelopt",
     .dtype = RootDType::kU8,
     .parts = {{kScale, {Role::kGlobalScale, "_scale_2", true}}},
     .make = MakeNvfp4,
     .has_own_key = false},
    {.method = "modelopt",
     .dtype = RootDType::kF8,
     .parts = {{kScale}},
     .make = MakeFloat,
     .has_own_key = false},
    {.method = "bitsandbytes",
     .parts = {{{Role::kScale, ".absmax", true},
                {Role::kMap, ".quant_map", true},
                {Role::kState, ".quant_state.bitsandbytes__nf4"},
                {Role::kState, ".quant_state.bitsandbytes__fp4"},
                {Role::kNestedScale, ".nested_absmax"},
                {Role::kNestedMap, ".nested_quant_map"}}},
     .make = MakeFourBits},
    {.method = "bitsandbytes",
     .root = ".weight",
     .result = ".weight",
     .dtype = RootDType::kI8,
     .parts = {{{Role::kScale, ".SCB", true}}},
     .make = MakeEightBits},
};

// Tensors of activations and of the KV cache, which plain weights do not need.
constexpr std::string_view kDropped[] = {
    ".activation_scale",
    "_activation_scale",
    ".input_scale",
    "_input_scale",
    ".input_scale_ub",
    ".input_zero_point",
    ".input_global_scale",
    ".output_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".qscale_act",
    ".weight_format",
};
// A name with one of these belongs to a weight; alone it is an error.
constexpr std::string_view kOrphans[] = {
    ".weight_scale",
    ".weight_scale_2",
    ".weight_zero_point",
    ".weight_global_scale",
    ".weight_shape",
    ".weight_g_idx",
    ".qzeros",
    ".quant_map",
    ".nested_absmax",
};

// Whose operations need no declaration.
constexpr std::string_view kSelfEvident[] = {"fp8", "mxfp4", "bitsandbytes"};

bool EndsWithOneOf(std::string_view name,
                   std::span<const std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view ending) {
    return name.size() > ending.size() && name.ends_with(ending);
  });
}

// A row that fits a name, before the weight is made.
struct Match {
  const Operation* operation = nullptr;
  uint32_t entry = 0;
  Weight weight;
  std::array<std::string_view, kRoles> names;
  std::vector<std::byte> stated;
};

class Finder {
 public:
  Finder(const FormatReader& reader, const Declaration& declaration,
         std::optional<DType> to, bool widens_halves)
      : reader_(reader),
        index_(reader.index()),
        declaration_(declaration),
        to_(to),
        widens_halves_(widens_halves) {}

  Result<FoundWeights> Run() {
    made_.method = declaration_.method;
    made_.format = declaration_.format;
    made_.weight_of.assign(index_.entries.size(), kIsKept);
    const std::vector<std::string_view> known = KnownMethods();
    if (!declaration_.method.empty() &&
        std::ranges::find(known, declaration_.method) == known.end()) {
      return UnknownMethod();
    }
    HAULWAY_TRY(CheckFormat());
    HAULWAY_TRY(FindBlocks());
    HAULWAY_TRY(FindMatches());
    HAULWAY_TRY(DropOthers());
    HAULWAY_TRY(ReadStated());
    HAULWAY_TRY(MakeAll());
    return std::move(made_);
  }

 private:
  Status UnknownMethod() const {
    return Status(
        Code::kUnsupported,
        fmt::format("quantization method {} is not known: expected one of {}",
                    Quote(declaration_.method),
                    fmt::join(KnownMethods(), ", ")));
  }

  Status CheckFormat() const {
    constexpr std::array<std::string_view, 2> kNotKnown = {"sparse-24-bitmask",
                                                           "marlin-24"};
    constexpr std::array<std::string_view, 2> kOfModelOpt = {"FP8", "NVFP4"};
    const auto refuse = [&](std::string_view format) {
      return Status(Code::kUnsupported,
                    fmt::format("format {} of {} is not known", Quote(format),
                                declaration_.method));
    };
    const std::string& format = declaration_.format;
    if (declaration_.method == "modelopt" && !format.empty() &&
        std::ranges::find(kOfModelOpt, format) == kOfModelOpt.end()) {
      return refuse(format);
    }
    if (declaration_.method != "compressed-tensors") return Status();
    const auto is_unknown = [&](const std::string& one) {
      return std::ranges::find(kNotKnown, one) != kNotKnown.end();
    };
    if (is_unknown(format)) return refuse(format);
    for (const WeightGroup& group : declaration_.groups) {
      if (is_unknown(group.format)) return refuse(group.format);
    }
    return Status();
  }

  const TensorInfo& InfoOf(uint32_t entry) const {
    return index_.tensors[index_.entries[entry].tensor];
  }

  std::optional<uint32_t> Find(const std::string& name) {
    const auto name_of = [&](uint32_t i) { return index_.entries[i].name; };
    if (!is_filled_) {
      names_.Reserve(index_.entries.size());
      for (uint32_t i = 0; i < index_.entries.size(); ++i) {
        names_.Add(index_.entries[i].name, i, name_of);
      }
      is_filled_ = true;
    }
    const uint32_t found = names_.Find(name, name_of);
    if (found == NameIndex::kNone) return std::nullopt;
    return found;
  }

  // ggml's types need no declaration and no companions.
  Status FindBlocks() {
    static constexpr Operation kBlocks = {.method = "gguf", .make = MakeBlocks};
    const bool widens_halves = widens_halves_ && index_.format == Format::kGguf;
    for (uint32_t i = 0; i < index_.entries.size(); ++i) {
      const DType dtype = InfoOf(i).dtype;
      const bool is_block = Describe(dtype).kind == DTypeKind::kBlocks;
      const bool is_half =
          widens_halves && (dtype == DType::kF16 || dtype == DType::kBF16);
      if (!is_block && !is_half) continue;
      Match& match = matches_.emplace_back();
      match.operation = &kBlocks;
      Take(i, Role::kRoot, &match);
      match.entry = i;
      made_.method = "gguf";
    }
    return Status();
  }

  Status FindMatches() {
    for (uint32_t i = 0; i < index_.entries.size(); ++i) {
      for (const Operation& operation : kOperations) {
        if (!Applies(operation)) continue;
        HAULWAY_ASSIGN(const bool is_found, Try(operation, i));
        if (is_found) break;
      }
    }
    if (!declaration_.method.empty() || !matches_.empty()) return Status();
    return RefuseUndeclared();
  }

  // Without a declaration, the first weight that is found tells the method.
  bool Applies(const Operation& operation) const {
    if (!made_.method.empty()) return operation.method == made_.method;
    return operation.has_own_key &&
           std::ranges::find(kSelfEvident, operation.method) !=
               std::end(kSelfEvident);
  }

  // Returns whether the operation makes a weight of an entry.
  Result<bool> Try(const Operation& operation, uint32_t entry) {
    const std::string_view name = index_.entries[entry].name;
    if (made_.weight_of[entry] != kIsKept || !name.ends_with(operation.root)) {
      return false;
    }
    const std::string stem(name.substr(0, name.size() - operation.root.size()));
    const auto key = Find(stem + std::string(operation.parts[0].ending));
    const bool is_marked = operation.is_marked && !declaration_.method.empty();
    if (!key.has_value() && !is_marked) return false;
    if (!Fits(operation.dtype, InfoOf(entry).dtype)) {
      if (!operation.has_own_key || declaration_.method.empty()) return false;
      return Status(Code::kMismatch,
                    fmt::format("it has scales beside it, and dtype {}, which "
                                "is not that of a quantized weight",
                                Name(InfoOf(entry).dtype)))
          .In(Quote(name));
    }
    if (made_.method.empty()) made_.method = operation.method;
    Match& match = matches_.emplace_back();
    match.operation = &operation;
    match.entry = entry;
    Take(entry, Role::kRoot, &match);
    for (const PartName& part : operation.parts) {
      if (part.ending.empty()) break;
      const auto found = Find(stem + std::string(part.ending));
      if (found.has_value()) {
        Take(*found, part.role, &match);
        if (*found != entry) made_.weight_of[*found] = kIsDropped;
      } else if (part.is_needed) {
        return Status(Code::kMismatch,
                      fmt::format("its companion {} is not there",
                                  Quote(stem + std::string(part.ending))))
            .In(Quote(name));
      }
    }
    // So that a scale is no root of its own.
    made_.weight_of[entry] = 0;
    return true;
  }

  void Take(uint32_t entry, Role role, Match* match) const {
    const auto slot = static_cast<size_t>(role);
    match->weight.tensors[slot] = index_.entries[entry].tensor;
    match->names[slot] = index_.entries[entry].name;
  }

  // Drops what plain weights do not need, and finds what should belong to a
  // weight.
  Status DropOthers() {
    if (made_.method.empty() || made_.method == "gguf") return Status();
    for (uint32_t i = 0; i < index_.entries.size(); ++i) {
      if (made_.weight_of[i] != kIsKept) continue;
      const std::string_view name = index_.entries[i].name;
      if (EndsWithOneOf(name, kDropped)) {
        made_.weight_of[i] = kIsDropped;
      } else if (IsCompanion(name)) {
        return Status(Code::kMismatch,
                      "the weight that it belongs to is not "
                      "there")
            .In(Quote(name));
      } else if (IsQuantizedDType(name, InfoOf(i).dtype)) {
        return Status(Code::kMismatch,
                      fmt::format("it has dtype {}, of weights quantized by "
                                  "{}, and no scales are beside it",
                                  Name(InfoOf(i).dtype), made_.method))
            .In(Quote(name));
      }
    }
    return Status();
  }

  bool IsCompanion(std::string_view name) const {
    const auto is_key = [&](const Operation& operation) {
      return operation.method == made_.method && operation.has_own_key &&
             name.ends_with(operation.parts[0].ending);
    };
    return std::ranges::any_of(kOperations, is_key) ||
           EndsWithOneOf(name, kOrphans);
  }

  bool IsQuantizedDType(std::string_view name, DType dtype) const {
    if (!name.ends_with("weight")) return false;
    // Four bits of bitsandbytes lie in U8 unless another dtype is asked for.
    if (made_.method == "bitsandbytes" && dtype == DType::kU8) return true;
    return std::ranges::any_of(kOperations, [&](const Operation& operation) {
      return operation.method == made_.method &&
             operation.dtype != RootDType::kAny && !operation.is_marked &&
             Fits(operation.dtype, dtype);
    });
  }

  // Weights that look quantized, and nothing says how.
  Status RefuseUndeclared() const {
    const ScaledTensors scaled(index_);
    for (uint32_t i = 0; i < index_.entries.size(); ++i) {
      const Status status = scaled.CheckCast(index_.entries[i].tensor);
      if (status.ok()) continue;
      return Status(Code::kUnsupported,
                    "it seems to be quantized, and no config.json beside the "
                    "checkpoint says how: expected quantization_config")
          .In(Quote(index_.entries[i].name));
    }
    return Status();
  }

  // Reads the tensors that state shapes, all at once.
  Status ReadStated() {
    std::vector<ReadRequest> requests;
    for (Match& match : matches_) {
      for (const Role role : {Role::kShape, Role::kState}) {
        if (!match.weight.has(role)) continue;
        const TensorInfo& info = index_.tensors[match.weight.tensor(role)];
        const std::string_view name = match.names[static_cast<size_t>(role)];
        if (info.storage == kNoStorage || info.nbytes > kMostStated) {
          return Status(Code::kMismatch,
                        fmt::format("it has {} bytes: expected at most {}",
                                    info.nbytes, kMostStated))
              .In(Quote(name));
        }
        match.stated.resize(info.nbytes);
        const StorageInfo& storage = index_.storages[info.storage];
        if (IsAsInMemory(storage) &&
            storage.frame_end - storage.frame_offset == storage.stored_bytes) {
          requests.push_back(
              {storage.offset + info.storage_offset * ItemBytes(info.dtype),
               match.stated});
        } else {
          HAULWAY_TRY(ReadTensor(reader_, info, match.stated));
        }
      }
    }
    if (requests.empty()) return Status();
    return reader_.source()->ReadMany(requests);
  }

  Status MakeAll() {
    HAULWAY_ASSIGN(const GroupFinder groups, GroupFinder::Make(declaration_));
    made_.weights.reserve(matches_.size());
    for (Match& match : matches_) {
      const Operation& operation = *match.operation;
      Weight& weight = match.weight;
      HAULWAY_TRY(CheckDense(match));
      const std::string_view root = match.names[0];
      const std::string_view stem =
          root.substr(0, root.size() - operation.root.size());
      weight.name = std::string(stem) + std::string(operation.result);
      weight.terms.to = ResultDType(operation);
      std::string_view module = weight.name;
      constexpr std::string_view kWeight = ".weight";
      if (module.ends_with(kWeight)) module.remove_suffix(kWeight.size());
      const Making making{.index = index_,
                          .declaration = declaration_,
                          .groups = groups,
                          .module = module,
                          .names = match.names,
                          .stated = match.stated,
                          .weight = &weight};
      HAULWAY_TRY(operation.make(making));
      HAULWAY_TRY(CheckNew(match));
      made_.weight_of[match.entry] =
          static_cast<uint32_t>(made_.weights.size());
      made_.weights.push_back(std::move(weight));
    }
    return Status();
  }

  DType ResultDType(const Operation& operation) const {
    if (to_.has_value()) return *to_;
    if (operation.make == MakeBlocks) return DType::kF32;
    return declaration_.dtype.value_or(DType::kBF16);
  }

  // Fails unless all tensors have data, in rows.
  Status CheckDense(const Match& match) const {
    for (size_t role = 0; role < kRoles; ++role) {
      const uint32_t tensor = match.weight.tensors[role];
      if (tensor == kNoTensor) continue;
      const TensorInfo& info = index_.tensors[tensor];
      const bool is_dense = info.kind == TensorKind::kDense &&
                            info.storage != kNoStorage &&
                            IsContiguous(info.shape, info.strides) &&
                            !info.conjugate && !info.negative;
      if (is_dense || info.nbytes == 0) continue;
      return Status(Code::kUnsupported,
                    "a quantized weight is not stored densely, in rows")
          .In(Quote(match.names[role]));
    }
    return Status();
  }

  // Fails if another tensor has the name of the result.
  Status CheckNew(const Match& match) {
    const auto other = Find(match.weight.name);
    if (!other.has_value() || *other == match.entry ||
        made_.weight_of[*other] == kIsDropped) {
      return Status();
    }
    return Status(Code::kMismatch,
                  fmt::format("its plain weight would be {}, which is there "
                              "already",
                              Quote(match.weight.name)))
        .In(Quote(match.names[0]));
  }

  const FormatReader& reader_;
  const CheckpointIndex& index_;
  const Declaration& declaration_;
  const std::optional<DType> to_;
  const bool widens_halves_;
  NameIndex names_;
  bool is_filled_ = false;
  std::vector<Match> matches_;
  FoundWeights made_;
};

}  // namespace

std::vector<std::string_view> KnownMethods() {
  std::vector<std::string_view> methods;
  for (const Operation& operation : kOperations) {
    if (std::ranges::find(methods, operation.method) == methods.end()) {
      methods.push_back(operation.method);
    }
  }
  return methods;
}

Result<FoundWeights> FindWeights(const FormatReader& reader,
                                 const Declaration& declaration,
                                 std::optional<DType> to, bool widens_halves) {
  return Finder(reader, declaration, to, widens_halves).Run();
}

}  // namespace haulway::arithmetic
