// Design: each function checks every dtype and shape that the kernels rely on,
// and fills a Weight. So kernels need no checks, and nothing is read or
// allocated by what a file claims before it is known to fit the bytes that are
// there. Where a size is declared and also follows from the shapes, both must
// agree: a wrong group size would give other weights without an error. FP8 is
// the exception, as folders declare one block for weights of several grids.

#include "arithmetic/making.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>

#include "arithmetic/shapes.h"
#include "base/text.h"

namespace haulway::arithmetic {

namespace {

// The block of FP8 that is meant if nothing is declared.
constexpr BlockSize kDefaultBlock = {128, 128};
// 1 / 127 as bitsandbytes has it, which is not the nearest float32.
constexpr float kPerLevel = 7.874015718698502e-3F;

Status CheckScaleDType(const Making& making, bool may_be_exponent) {
  using enum DType;
  if (may_be_exponent) {
    return CheckDType(making, Role::kScale,
                      {kF32, kBF16, kF16, kF8E4M3, kF8E8M0, kU8});
  }
  return CheckDType(making, Role::kScale, {kF32, kBF16, kF16, kF8E8M0});
}

Status Unsupported(std::string_view what) {
  return Status(Code::kUnsupported, what);
}

std::vector<int64_t> WithColumns(std::span<const int64_t> shape,
                                 uint64_t columns) {
  std::vector<int64_t> made(shape.begin(), shape.end());
  made.back() = static_cast<int64_t>(columns);
  return made;
}

// Returns the columns of groups of `size` that there are `count` of. Fails
// unless that is what is declared, if it is.
Result<uint64_t> GroupSize(const Making& making, uint64_t columns,
                           uint64_t count, uint64_t declared) {
  if (columns == 0 || (count == 1 && (declared == 0 || declared >= columns))) {
    return std::max<uint64_t>(columns, 1);
  }
  if (declared != 0 && count != 0 && CeilDivide(columns, declared) == count &&
      (columns % count != 0 || columns / count == declared)) {
    return declared;
  }
  if (declared == 0 && count != 0 && columns % count == 0) {
    return columns / count;
  }
  return making.Wrong(
      Role::kScale,
      fmt::format("{} groups do not divide {} columns{}", count, columns,
                  declared == 0 ? std::string()
                                : fmt::format(" in groups of {}, as config."
                                              "json says",
                                              declared)));
}

// Two numbers of I64.
Result<std::vector<int64_t>> StatedShape(const Making& making) {
  HAULWAY_TRY(CheckDType(making, Role::kShape, {DType::kI64, DType::kI32}));
  HAULWAY_TRY(CheckShape(making, Role::kShape, {2}));
  std::vector<int64_t> shape(2);
  const bool is_short = making.info(Role::kShape).dtype == DType::kI32;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (is_short) {
      int32_t size = 0;
      std::memcpy(&size, making.stated.data() + i * sizeof(size), sizeof(size));
      shape[i] = size;
    } else {
      std::memcpy(&shape[i], making.stated.data() + i * sizeof(int64_t),
                  sizeof(int64_t));
    }
  }
  if (shape[0] < 0 || shape[1] < 0) {
    return making.Wrong(Role::kShape, "it holds a negative size");
  }
  return shape;
}

}  // namespace

Status MakeBlocks(const Making& making) {
  Weight& weight = *making.weight;
  const TensorInfo& root = making.info(Role::kRoot);
  const DTypeInfo& type = Describe(root.dtype);
  weight.arrangement = Arrangement::kBlocks;
  weight.blocks = BlocksFunctionOf(root.dtype);
  if (weight.blocks == nullptr) {
    return Unsupported(fmt::format("nothing dequantizes type {}", type.name))
        .In(Quote(making.names[0]));
  }
  HAULWAY_TRY(SetShape(making, ElementShape(root.dtype, root.shape)));
  const bool is_plain = type.block_elements == 0;
  weight.matrices = 1;
  weight.terms.columns = is_plain ? 1 : type.block_elements;
  weight.rows = weight.elements / weight.terms.columns;
  weight.row_bytes = is_plain ? type.item_bytes : type.block_bytes;
  if (weight.rows * weight.row_bytes != root.nbytes) {
    return making.Wrong(Role::kRoot, "its blocks are not whole");
  }
  return Status();
}

Status MakeFloat(const Making& making) {
  Weight& weight = *making.weight;
  const TensorInfo& root = making.info(Role::kRoot);
  const bool is_fp4 = root.dtype == DType::kI8;
  HAULWAY_TRY(CheckDType(making, Role::kRoot,
                         {DType::kF8E4M3, DType::kF8E5M2, DType::kI8}));
  HAULWAY_TRY(CheckScaleDType(making, /*may_be_exponent=*/true));
  const Matrices stored = MatricesOf(root.shape);
  if (is_fp4 && root.shape.empty()) {
    return making.Wrong(Role::kRoot, "it has no dimension to unpack");
  }
  weight.terms.code = is_fp4 ? Numbers::kE2M1 : Numbers::kF8;
  weight.terms.stored = root.dtype;
  weight.terms.scale = making.info(Role::kScale).dtype;
  weight.row_bytes = stored.columns;
  HAULWAY_TRY(SetShape(
      making,
      is_fp4 ? WithColumns(root.shape, 2 * stored.columns)
             : std::vector<int64_t>(root.shape.begin(), root.shape.end())));
  // FP4 experts lie in folders that declare the blocks of FP8.
  if (is_fp4) return SetGrid(making, BlockSize{1, 32}, /*is_fixed=*/true);
  return SetGrid(making, making.declaration.block.value_or(kDefaultBlock));
}

namespace {

Status Missing(const Making& making, std::string_view companion,
               std::string_view why) {
  return making.Wrong(Role::kRoot,
                      fmt::format("its companion {} is not there, and "
                                  "config.json says {}",
                                  Quote(companion), why));
}

// Fails if the weight should have zero points, which it has not.
Status CheckNoZeros(const Making& making) {
  const WeightGroup* const group = making.groups.Find(making.module);
  if (group == nullptr || !group->has_zeros) return Status();
  return Missing(making, making.weight->name + "_zero_point",
                 "that it is not symmetric");
}

}  // namespace

Status MakeCompressed(const Making& making) {
  Weight& weight = *making.weight;
  const TensorInfo& root = making.info(Role::kRoot);
  const TensorInfo& scale = making.info(Role::kScale);
  HAULWAY_TRY(CheckDType(making, Role::kRoot, {DType::kF8E4M3, DType::kI8}));
  HAULWAY_TRY(CheckScaleDType(making, /*may_be_exponent=*/true));
  RowTerms& terms = weight.terms;
  terms.code = root.dtype == DType::kI8 ? Numbers::kI8 : Numbers::kF8;
  terms.scale = scale.dtype;
  const bool is_exponent =
      scale.dtype == DType::kU8 || scale.dtype == DType::kF8E8M0;
  terms.through = is_exponent ? DType::kBF16 : scale.dtype;
  weight.row_bytes = MatricesOf(root.shape).columns;
  HAULWAY_TRY(SetShape(making, {root.shape.begin(), root.shape.end()}));
  const WeightGroup* const group = making.groups.Find(making.module);
  std::optional<BlockSize> block;
  if (group != nullptr) block = group->block;
  if (group != nullptr && !block.has_value() && group->group_size != 0) {
    block = {1, group->group_size};
  }
  HAULWAY_TRY(SetGrid(making, block));
  if (!weight.has(Role::kZero)) return CheckNoZeros(making);
  HAULWAY_TRY(CheckDType(making, Role::kZero, {DType::kI8}));
  if (making.info(Role::kZero).nbytes != ElementsOf(scale.shape)) {
    return making.Wrong(Role::kZero, "it has another shape than the scales");
  }
  return Status();
}

namespace {

// Weights of U8: NVFP4 with a global scale, else MXFP4 or MXFP6.
Status MakePackedFloat(const Making& making) {
  Weight& weight = *making.weight;
  RowTerms& terms = weight.terms;
  const TensorInfo& root = making.info(Role::kRoot);
  const TensorInfo& scale = making.info(Role::kScale);
  if (root.shape.size() < 2 || scale.shape.size() != root.shape.size()) {
    return making.Wrong(Role::kScale,
                        "it has another number of dimensions than the packed "
                        "weight: expected a matrix");
  }
  const uint64_t width = MatricesOf(root.shape).columns;
  const uint64_t groups = MatricesOf(scale.shape).columns;
  const bool is_nvfp4 = weight.has(Role::kGlobalScale);
  uint64_t columns = 2 * width;
  terms.code = Numbers::kE2M1;
  if (is_nvfp4) {
    HAULWAY_TRY(CheckDType(making, Role::kScale, {DType::kF8E4M3}));
    HAULWAY_TRY(CheckDType(making, Role::kGlobalScale, {DType::kF32}));
    HAULWAY_TRY(CheckOne(making, Role::kGlobalScale));
  } else {
    HAULWAY_TRY(CheckDType(making, Role::kScale, {DType::kU8, DType::kF8E8M0}));
    if (width == 24 * groups) {
      columns = 32 * groups;
      terms.code = Numbers::kE2M3;
    }
  }
  terms.scale = scale.dtype;
  terms.through = DType::kBF16;
  weight.row_bytes = width;
  HAULWAY_TRY(SetShape(making, WithColumns(root.shape, columns)));
  const BlockSize block = {1, is_nvfp4 ? 16 : 32};
  if (groups != CeilDivide(columns, block.second)) {
    return making.Wrong(Role::kScale,
                        fmt::format("it has {} groups in a row of {} columns: "
                                    "expected groups of {}",
                                    groups, columns, block.second));
  }
  return SetGrid(making, block, /*is_fixed=*/true);
}

// Returns whether the values are dense in rows of `width` words; false if words
// with unused bits hold them.
Result<bool> IsDense(const Making& making, uint64_t columns, int bits,
                     uint64_t width) {
  const auto size = static_cast<uint64_t>(bits);
  if (columns <= UINT64_MAX / 8 && CeilDivide(columns * size, 32) == width) {
    return true;
  }
  if (CeilDivide(columns, 32 / size) == width) return false;
  return making.Wrong(Role::kRoot,
                      fmt::format("rows of {} words do not hold {} columns of "
                                  "{} bits",
                                  width, columns, bits));
}

// The only number of bits with which rows are dense.
Result<int> BitsOf(const Making& making, uint64_t columns, uint64_t width) {
  const WeightGroup* const group = making.groups.Find(making.module);
  if (group != nullptr && group->bits != 0) {
    if (group->bits <= 8) return group->bits;
    return Unsupported(fmt::format("weights of {} bits are not known: expected "
                                   "1 to 8",
                                   group->bits))
        .In(Quote(making.names[0]));
  }
  int found = 0;
  for (int bits = 1; bits <= 8; ++bits) {
    const auto size = static_cast<uint64_t>(bits);
    if (columns > UINT32_MAX || CeilDivide(columns * size, 32) != width) {
      continue;
    }
    if (found != 0) found = -1;
    if (found == 0) found = bits;
  }
  if (found > 0) return found;
  return making.Wrong(Role::kRoot,
                      "config.json names no group for it, and its width does "
                      "not tell how many bits its values have");
}

Status SetPackedZeros(const Making& making) {
  Weight& weight = *making.weight;
  const uint64_t groups = weight.terms.groups;
  const auto bits = static_cast<uint64_t>(weight.terms.bits);
  if (making.info(Role::kZero).dtype == DType::kI8) {
    return CheckShape(making, Role::kZero, {weight.scale_rows, groups});
  }
  HAULWAY_TRY(CheckDType(making, Role::kZero, {DType::kI32, DType::kI8}));
  weight.has_packed_zeros = true;
  return CheckShape(making, Role::kZero,
                    {CeilDivide(weight.scale_rows * bits, 32), groups});
}

}  // namespace

Status MakePacked(const Making& making) {
  Weight& weight = *making.weight;
  RowTerms& terms = weight.terms;
  const TensorInfo& root = making.info(Role::kRoot);
  const TensorInfo& scale = making.info(Role::kScale);
  if (root.dtype == DType::kU8) return MakePackedFloat(making);
  HAULWAY_TRY(CheckDType(making, Role::kRoot, {DType::kI32, DType::kU8}));
  HAULWAY_TRY(CheckScaleDType(making, /*may_be_exponent=*/false));
  if (!weight.has(Role::kShape)) {
    return making.Wrong(Role::kRoot, "no weight_shape is beside it");
  }
  HAULWAY_ASSIGN(const std::vector<int64_t> shape, StatedShape(making));
  const Matrices stored = MatricesOf(root.shape);
  const auto columns = static_cast<uint64_t>(shape[1]);
  if (root.shape.size() != 2 ||
      stored.rows != static_cast<uint64_t>(shape[0])) {
    return making.Wrong(Role::kShape,
                        fmt::format("it says [{}, {}], and the packed weight "
                                    "has {} rows",
                                    shape[0], shape[1], stored.rows));
  }
  HAULWAY_ASSIGN(terms.bits, BitsOf(making, columns, stored.columns));
  HAULWAY_ASSIGN(const bool is_dense,
                 IsDense(making, columns, terms.bits, stored.columns));
  terms.code = is_dense ? Numbers::kPacked : Numbers::kPackedWords;
  terms.scale = terms.through = scale.dtype;
  weight.row_bytes = 4 * stored.columns;
  HAULWAY_TRY(SetShape(making, shape));
  if (ElementsOf(scale.shape) != 1) {
    if (scale.shape.size() != 2) {
      return making.Wrong(Role::kScale, "it is no matrix");
    }
    const WeightGroup* const group = making.groups.Find(making.module);
    const uint64_t declared = group == nullptr ? 0 : group->group_size;
    const uint64_t groups = MatricesOf(scale.shape).columns;
    // A scale for each row has one group, whatever the groups of others.
    HAULWAY_ASSIGN(const uint64_t size,
                   GroupSize(making, columns, groups,
                             weight.has(Role::kGroupIndex) ? 0 : declared));
    HAULWAY_TRY(CheckShape(making, Role::kScale, {weight.rows, groups}));
    HAULWAY_TRY(SetGrid(making, BlockSize{1, size}));
  } else {
    HAULWAY_TRY(SetGrid(making, std::nullopt));
  }
  if (weight.has(Role::kGroupIndex)) {
    HAULWAY_TRY(CheckDType(making, Role::kGroupIndex, {DType::kI32}));
    HAULWAY_TRY(CheckShape(making, Role::kGroupIndex, {columns}));
  }
  return weight.has(Role::kZero) ? SetPackedZeros(making)
                                 : CheckNoZeros(making);
}

namespace {

// What GPTQ and AWQ have in common. `words`: in a row of the zeros.
Status SetColumns(const Making& making, uint64_t columns, uint64_t rows,
                  uint64_t words) {
  Weight& weight = *making.weight;
  RowTerms& terms = weight.terms;
  weight.arrangement = Arrangement::kColumns;
  HAULWAY_TRY(CheckDType(making, Role::kRoot, {DType::kI32}));
  HAULWAY_TRY(CheckDType(making, Role::kZero, {DType::kI32}));
  HAULWAY_TRY(CheckDType(making, Role::kScale,
                         {DType::kF16, DType::kBF16, DType::kF32}));
  const TensorInfo& scale = making.info(Role::kScale);
  const uint64_t groups = MatricesOf(scale.shape).rows;
  HAULWAY_TRY(CheckShape(making, Role::kScale, {groups, rows}));
  HAULWAY_TRY(CheckShape(making, Role::kZero, {groups, words}));
  HAULWAY_ASSIGN(terms.group, GroupSize(making, columns, groups,
                                        making.declaration.group_size));
  terms.groups = groups;
  terms.scale = terms.through = scale.dtype;
  weight.row_bytes = 4 * MatricesOf(making.info(Role::kRoot).shape).columns;
  HAULWAY_TRY(SetShape(
      making, {static_cast<int64_t>(rows), static_cast<int64_t>(columns)}));
  if (!weight.has(Role::kGroupIndex)) return Status();
  HAULWAY_TRY(CheckDType(making, Role::kGroupIndex, {DType::kI32}));
  return CheckShape(making, Role::kGroupIndex, {columns});
}

Status CheckMatrix(const Making& making, Role role) {
  if (making.info(role).shape.size() == 2) return Status();
  return making.Wrong(role, "it is no matrix");
}

}  // namespace

Status MakeGptq(const Making& making) {
  const Declaration& declaration = making.declaration;
  Weight& weight = *making.weight;
  HAULWAY_TRY(CheckMatrix(making, Role::kRoot));
  HAULWAY_TRY(CheckMatrix(making, Role::kScale));
  HAULWAY_TRY(CheckMatrix(making, Role::kZero));
  constexpr std::array<int, 4> kBits = {2, 3, 4, 8};
  const int bits = declaration.bits;
  if (std::ranges::find(kBits, bits) == kBits.end()) {
    return Unsupported(
        fmt::format("GPTQ with {} bits is not known: expected "
                    "2, 3, 4 or 8",
                    bits));
  }
  const std::string& format = declaration.format;
  if (!format.empty() && format != "gptq" && format != "gptq_v2") {
    return Unsupported(
        fmt::format("GPTQ in the format {} is not known: "
                    "expected gptq or gptq_v2",
                    Quote(format)));
  }
  const Matrices stored = MatricesOf(making.info(Role::kRoot).shape);
  const auto size = static_cast<uint64_t>(bits);
  if (stored.rows * 32 % size != 0) {
    return making.Wrong(Role::kRoot,
                        fmt::format("{} words do not hold whole values of {} "
                                    "bits",
                                    stored.rows, bits));
  }
  weight.packing = Packing::kGptq;
  weight.terms.bits = bits;
  weight.added_to_zeros = format == "gptq_v2" ? 0 : 1;
  HAULWAY_TRY(SetColumns(making, stored.rows * 32 / size, stored.columns,
                         CeilDivide(stored.columns * size, 32)));
  // With one group, its order means nothing.
  if (!declaration.is_reordered || weight.has(Role::kGroupIndex) ||
      weight.terms.groups <= 1) {
    return Status();
  }
  return Missing(making, fmt::format("{}.g_idx", making.module), "desc_act");
}

Status MakeAwq(const Making& making) {
  const Declaration& declaration = making.declaration;
  Weight& weight = *making.weight;
  HAULWAY_TRY(CheckMatrix(making, Role::kRoot));
  HAULWAY_TRY(CheckMatrix(making, Role::kScale));
  HAULWAY_TRY(CheckMatrix(making, Role::kZero));
  std::string version = declaration.format;
  std::ranges::transform(version, version.begin(), [](char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  if (!version.empty() && version != "gemm") {
    return Unsupported(
        fmt::format("AWQ in the version {} is not known: "
                    "expected gemm",
                    Quote(version)));
  }
  if (declaration.bits != 0 && declaration.bits != 4) {
    return Unsupported(fmt::format("AWQ with {} bits is not known: expected 4",
                                   declaration.bits));
  }
  const Matrices stored = MatricesOf(making.info(Role::kRoot).shape);
  weight.packing = Packing::kAwq;
  weight.terms.bits = 4;
  return SetColumns(making, stored.rows, 8 * stored.columns, stored.columns);
}

Status MakeStacked(const Making& making) {
  Weight& weight = *making.weight;
  const TensorInfo& root = making.info(Role::kRoot);
  const TensorInfo& scale = making.info(Role::kScale);
  const std::span<const int64_t> blocks = root.shape;
  HAULWAY_TRY(CheckDType(making, Role::kRoot, {DType::kU8}));
  HAULWAY_TRY(CheckDType(making, Role::kScale, {DType::kU8}));
  if (blocks.size() < 3 || blocks.back() != 16) {
    return making.Wrong(Role::kRoot, "it has no blocks of 16 bytes");
  }
  if (!std::ranges::equal(scale.shape, blocks.first(blocks.size() - 1))) {
    return making.Wrong(Role::kScale,
                        "its shape is not that of the blocks: expected one "
                        "scale for each");
  }
  std::vector<int64_t> shape(blocks.begin(), blocks.end() - 3);
  const int64_t groups = blocks[blocks.size() - 2];
  shape.push_back(groups * 32);
  shape.push_back(blocks[blocks.size() - 3]);
  weight.arrangement = Arrangement::kTransposed;
  weight.row_bytes = static_cast<uint64_t>(groups) * 16;
  return SetShape(making, std::move(shape));
}

Status MakeNvfp4(const Making& making) {
  Weight& weight = *making.weight;
  const TensorInfo& root = making.info(Role::kRoot);
  HAULWAY_TRY(CheckDType(making, Role::kRoot, {DType::kU8}));
  HAULWAY_TRY(CheckDType(making, Role::kScale, {DType::kF8E4M3}));
  HAULWAY_TRY(CheckDType(making, Role::kGlobalScale, {DType::kF32}));
  HAULWAY_TRY(CheckOne(making, Role::kGlobalScale));
  if (root.shape.size() < 2) {
    return making.Wrong(Role::kRoot, "it is no matrix");
  }
  const uint64_t width = MatricesOf(root.shape).columns;
  weight.terms.code = Numbers::kE2M1;
  weight.terms.scale = DType::kF8E4M3;
  weight.terms.through = DType::kBF16;
  weight.multiplies_global = true;
  weight.row_bytes = width;
  HAULWAY_TRY(SetShape(making, WithColumns(root.shape, 2 * width)));
  const TensorInfo& scale = making.info(Role::kScale);
  if (MatricesOf(scale.shape).columns != CeilDivide(2 * width, 16)) {
    return making.Wrong(
        Role::kScale, fmt::format("it has {} groups in a row of {} columns: "
                                  "expected groups of 16",
                                  MatricesOf(scale.shape).columns, 2 * width));
  }
  return SetGrid(making, BlockSize{1, 16}, /*is_fixed=*/true);
}

Status MakeEightBits(const Making& making) {
  Weight& weight = *making.weight;
  const TensorInfo& root = making.info(Role::kRoot);
  HAULWAY_TRY(CheckDType(making, Role::kRoot, {DType::kI8}));
  HAULWAY_TRY(CheckDType(making, Role::kScale, {DType::kF32}));
  HAULWAY_TRY(CheckMatrix(making, Role::kRoot));
  const Matrices stored = MatricesOf(root.shape);
  HAULWAY_TRY(CheckShape(making, Role::kScale, {stored.rows}));
  weight.terms.code = Numbers::kI8;
  weight.terms.after = kPerLevel;
  weight.terms.groups = 1;
  weight.terms.group = std::max<uint64_t>(stored.columns, 1);
  weight.scale_rows = stored.rows;
  weight.row_bytes = stored.columns;
  return SetShape(making, {root.shape.begin(), root.shape.end()});
}

namespace {

// The state of a 4-bit weight of bitsandbytes.
struct QuantState {
  std::vector<int64_t> shape;
  uint64_t block = 0;
  DType dtype = DType::kF32;
  uint64_t nested_block = 0;
  double nested_offset = 0;
};

Result<QuantState> ParseState(const Making& making) {
  namespace dom = simdjson::dom;
  const auto wrong = [&](std::string_view what) {
    return making.Wrong(Role::kState, what);
  };
  dom::parser parser;
  dom::object state;
  if (parser
          .parse(reinterpret_cast<const char*>(making.stated.data()),
                 making.stated.size())
          .get_object()
          .get(state)) {
    return wrong("it is no JSON object");
  }
  QuantState made;
  dom::array sizes;
  if (state["shape"].get_array().get(sizes)) return wrong("it has no shape");
  for (const dom::element size : sizes) {
    int64_t number = 0;
    if (size.get_int64().get(number) || number < 0) {
      return wrong("its shape has a size that is none");
    }
    made.shape.push_back(number);
  }
  const auto block = [&](std::string_view key, uint64_t* size) {
    constexpr uint64_t kMost = uint64_t{1} << 24;
    return !state[key].get_uint64().get(*size) && *size > 0 && *size <= kMost;
  };
  if (!block("blocksize", &made.block) || made.block % 2 != 0) {
    return wrong("its blocksize is none: expected an even number above 0");
  }
  std::string_view dtype;
  if (!state["dtype"].get_string().get(dtype)) {
    const auto named = DTypeFromTorchName(dtype);
    if (!named.has_value() || !CanCast(DType::kF32, *named)) {
      return wrong(fmt::format("its dtype {} is not known", Quote(dtype)));
    }
    made.dtype = *named;
  }
  if (!making.weight->has(Role::kNestedScale)) return made;
  if (!block("nested_blocksize", &made.nested_block) ||
      state["nested_offset"].get_double().get(made.nested_offset)) {
    return wrong("it does not describe the scales, which are codes");
  }
  return made;
}

}  // namespace

Status MakeFourBits(const Making& making) {
  Weight& weight = *making.weight;
  RowTerms& terms = weight.terms;
  if (!weight.has(Role::kState)) {
    return making.Wrong(Role::kRoot,
                        "no quant_state.bitsandbytes__nf4 or __fp4 is beside "
                        "it");
  }
  HAULWAY_ASSIGN(const QuantState state, ParseState(making));
  HAULWAY_TRY(CheckDType(making, Role::kMap, {DType::kF32}));
  HAULWAY_TRY(CheckShape(making, Role::kMap, {16}));
  HAULWAY_TRY(SetShape(making, state.shape));
  const TensorInfo& root = making.info(Role::kRoot);
  if (root.nbytes != CeilDivide(weight.elements, 2)) {
    return making.Wrong(Role::kRoot,
                        fmt::format("{} bytes do not hold {} values of 4 bits",
                                    root.nbytes, weight.elements));
  }
  weight.matrices = 1;
  weight.rows = CeilDivide(weight.elements, state.block);
  weight.scale_rows = weight.rows;
  weight.row_bytes = state.block / 2;
  terms.code = Numbers::kMapped;
  terms.columns = terms.group = state.block;
  terms.groups = 1;
  terms.through = state.dtype;
  HAULWAY_TRY(CheckShape(making, Role::kScale, {weight.rows}));
  const bool is_nested = weight.has(Role::kNestedScale);
  HAULWAY_TRY(
      CheckDType(making, Role::kScale, {is_nested ? DType::kU8 : DType::kF32}));
  if (!is_nested) return Status();
  if (!weight.has(Role::kNestedMap)) {
    return making.Wrong(Role::kNestedScale, "no nested_quant_map is beside it");
  }
  HAULWAY_TRY(CheckDType(making, Role::kNestedScale, {DType::kF32}));
  HAULWAY_TRY(CheckDType(making, Role::kNestedMap, {DType::kF32}));
  HAULWAY_TRY(CheckShape(making, Role::kNestedMap, {256}));
  weight.nested_group = state.nested_block;
  weight.nested_offset = static_cast<float>(state.nested_offset);
  return CheckShape(making, Role::kNestedScale,
                    {CeilDivide(weight.rows, state.nested_block)});
}

}  // namespace haulway::arithmetic
