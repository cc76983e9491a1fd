// Design: the object is walked once. Where it calls one of torch's functions
// that compose a tensor of tensors, their shapes are compared with one another,
// and tensors whose elements are indices are read as a load reads them.
//
// The rules are torch's own (_validate_sparse_coo_tensor_args and
// _validate_sparse_compressed_tensor_args). python/haulway/_making/sparse.py
// applies the same rules to loaded tensors, and
// python/tests/torch_files/test_sparse.py checks that both give the same
// verdicts. Tried instead: check while the index is read. Then opening a file
// reads payloads, which neither `ls` nor loading a shard needs.
#include "torch/composed_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/is_of_source.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "decode/stored_tensor.h"
#include "pickle/pickle_globals.h"
#include "tensor/strided.h"
#include "tensor/tree_walk.h"
#include "torch/torch_calls.h"

namespace haulway::torch {

namespace {

using Sizes = std::span<const int64_t>;

// Limit on the bytes read, as a multiple of the size of all storages: tensors
// may be views that show few bytes as many, or be mentioned repeatedly.
constexpr uint64_t kMostReadings = 16;
constexpr uint64_t kFreeBytes = 64 * kMiB;

struct Compressed {
  std::string_view layout;
  std::string_view compressed;  // Names of the two index tensors.
  std::string_view plain;
  bool is_by_row;
  bool is_blocked;
};
constexpr std::array kCompressed = {
    Compressed{"torch.sparse_csr", "crow_indices", "col_indices", true, false},
    Compressed{"torch.sparse_bsr", "crow_indices", "col_indices", true, true},
    Compressed{"torch.sparse_csc", "ccol_indices", "row_indices", false, false},
    Compressed{"torch.sparse_bsc", "ccol_indices", "row_indices", false, true},
};

Status Wrong(std::string_view what) { return Status(Code::kCorrupt, what); }

std::span<const Value> Items(const Value& value) {
  return value.is_sequence() ? value.sequence().items()
                             : std::span<const Value>();
}

// Returns the numbers of a tuple, a list or a torch.Size; nullopt unless all
// are non-negative integers.
std::optional<std::vector<int64_t>> Numbers(const Value& value) {
  const auto items = Ints(value);
  if (!items.has_value()) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const Value& item : *items) {
    if (!item.is(Kind::kInt) || item.integer() < 0) return std::nullopt;
    numbers.push_back(item.integer());
  }
  return numbers;
}

GlobalKind KindOfCall(const Object& object) {
  return object.callable == nullptr ? GlobalKind::kUnknown
                                    : KindOf(*object.callable);
}

class Checker {
 public:
  explicit Checker(const FormatReader& reader) : reader_(reader) {
    uint64_t held = kFreeBytes;
    for (const StorageInfo& storage : reader.index().storages) {
      if (!CheckedAdd(held, storage.nbytes, &held)) held = UINT64_MAX;
    }
    if (!CheckedMultiply(held, kMostReadings, &most_)) most_ = UINT64_MAX;
  }

  Status Run() {
    walk_.Push(reader_.index().root);
    Value value;
    while (walk_.Next(&value)) {
      if (value.is(Kind::kObject)) {
        HAULWAY_TRY(Visit(value.object()));
      } else if (!value.is(Kind::kPersistent)) {
        walk_.PushItems(value);
      }
    }
    return Status();
  }

 private:
  Status Visit(const Object& object) {
    walk_.Push(object.state);
    // A tensor built from a storage alone, as nearly all are, contains no
    // other.
    if (object.tensor != Object::kNoTensor &&
        KindOfCall(object) != GlobalKind::kRebuildQTensor) {
      return Status();
    }
    walk_.Push(object.args);
    walk_.PushExtras(object);
    return Check(KindOfCall(object), Items(object.args), object.byte);
  }

  Status Check(GlobalKind kind, std::span<const Value> args, uint64_t byte) {
    Status status;
    if (kind == GlobalKind::kRebuildSparseTensor) {
      status = std::move(CheckSparse(args)).In("sparse tensor");
    } else if (kind == GlobalKind::kRebuildNestedTensor) {
      status = std::move(CheckNested(args)).In("nested tensor");
    } else if (kind == GlobalKind::kRebuildQTensor) {
      status = std::move(CheckQuantized(args)).In("quantized tensor");
    } else if (kind == GlobalKind::kRebuildFromType ||
               kind == GlobalKind::kRebuildFromTypeV2) {
      // (function, type, arguments, state)
      if (args.size() < 3 || !args[0].is(Kind::kGlobal)) return Status();
      return Check(KindOf(args[0].global()), Items(args[2]), byte);
    }
    return status.ok() || status.byte().has_value()
               ? status
               : std::move(status).At(byte);
  }

  // Returns the tensor at `value`; null, with `status` set, if there is none.
  const TensorInfo* Tensor(const Value& value, std::string_view name,
                           Status* status) const {
    Value at = value;
    while (at.is(Kind::kObject) && at.object().tensor == Object::kNoTensor) {
      const GlobalKind kind = KindOfCall(at.object());
      if (kind != GlobalKind::kRebuildParameter &&
          kind != GlobalKind::kRebuildParameterWithState) {
        break;
      }
      const auto args = Items(at.object().args);
      at = args.empty() ? Value() : args[0];
    }
    if (at.is(Kind::kObject) && at.object().tensor != Object::kNoTensor) {
      return &reader_.index().tensors[at.object().tensor];
    }
    *status = Wrong(fmt::format("{} is not a tensor", name));
    return nullptr;
  }

  // Reads the elements of an integer tensor, in row-major order.
  Result<std::vector<int64_t>> Read(const TensorInfo& tensor) {
    const StorageInfo& storage = reader_.index().storages[tensor.storage];
    const uint64_t bytes = std::max(tensor.nbytes, storage.nbytes);
    if (bytes > most_ - read_) {
      return Status(Code::kLimit,
                    fmt::format("indices have more bytes than all storages "
                                "{}-fold: expected at most {}",
                                kMostReadings, most_));
    }
    read_ += bytes;
    const uint64_t item = ItemBytes(tensor.dtype);
    std::vector<int64_t> numbers(tensor.nbytes / item);
    if (item == sizeof(int64_t)) {
      HAULWAY_TRY(ReadTensor(reader_, tensor,
                             std::as_writable_bytes(std::span(numbers))));
    } else {
      std::vector<int32_t> small(numbers.size());
      HAULWAY_TRY(ReadTensor(reader_, tensor,
                             std::as_writable_bytes(std::span(small))));
      std::ranges::copy(small, numbers.begin());
    }
    return numbers;
  }

  static Status CheckInside(std::span<const int64_t> indices, int64_t size,
                            std::string_view name) {
    for (const int64_t index : indices) {
      if (index < 0) {
        return Wrong(fmt::format("{} has a negative index", name));
      }
      if (index >= size) {
        return Wrong(
            fmt::format("{} has an index past the end: expected "
                        "below {}, found {}",
                        name, size, index));
      }
    }
    return Status();
  }

  Status CheckSparse(std::span<const Value> args) {
    std::string_view layout;
    if (!args.empty() && args[0].is(Kind::kObject)) {
      const auto name = Items(args[0].object().args);
      if (!name.empty() && name[0].is(Kind::kString)) layout = name[0].text();
    }
    if (args.size() != 2 || !args[1].is(Kind::kTuple)) {
      return Wrong("parts are not a tuple");
    }
    const auto parts = Items(args[1]);
    if (layout == "torch.sparse_coo") return CheckCoo(parts);
    const auto* kind =
        std::ranges::find(kCompressed, layout, &Compressed::layout);
    if (kind == kCompressed.end()) {
      return Wrong(fmt::format("layout {} is not known", Quote(layout)));
    }
    return CheckCompressed(*kind, parts);
  }

  // `parts`: indices, values, size and, optionally, whether it is coalesced.
  Status CheckCoo(std::span<const Value> parts) {
    if (parts.size() != 3 && parts.size() != 4) {
      return Wrong("expected 3 or 4 parts");
    }
    Status status;
    const TensorInfo* const indices = Tensor(parts[0], "indices", &status);
    const TensorInfo* const values = Tensor(parts[1], "values", &status);
    if (indices == nullptr || values == nullptr) return status;
    const auto size = Numbers(parts[2]);
    if (!size.has_value()) {
      return Wrong("size is not a tuple of numbers from 0");
    }
    if (indices->shape.size() != 2) return Wrong("indices are not a matrix");
    if (indices->dtype != DType::kI64) return Wrong("indices are not int64");
    const auto dims = static_cast<size_t>(indices->shape[0]);
    const int64_t count = indices->shape[1];
    const Sizes shape = values->shape;
    if (shape.empty() || shape[0] != count) {
      return Wrong(fmt::format("expected {} values, found {}", count,
                               shape.empty() ? 0 : shape[0]));
    }
    if (dims > size->size() || size->size() - dims != shape.size() - 1 ||
        !std::ranges::equal(Sizes(*size).subspan(dims), shape.subspan(1))) {
      return Wrong("values do not have the shape that size wants");
    }
    if (indices->kind == TensorKind::kMeta) return Status();
    HAULWAY_ASSIGN(const std::vector<int64_t> all, Read(*indices));
    const auto row = [&](size_t d) {
      return Sizes(all).subspan(d * static_cast<size_t>(count),
                                static_cast<size_t>(count));
    };
    for (size_t d = 0; d < dims; ++d) {
      HAULWAY_TRY(CheckInside(row(d), (*size)[d], "indices"));
    }
    const bool is_coalesced =
        parts.size() == 4 && parts[3].is(Kind::kBool) && parts[3].boolean();
    for (size_t i = 1; is_coalesced && i < static_cast<size_t>(count); ++i) {
      size_t d = 0;
      while (d < dims && row(d)[i] == row(d)[i - 1]) ++d;
      if (d == dims) {
        return Wrong("indices repeat, though said to be coalesced");
      }
      if (row(d)[i] < row(d)[i - 1]) {
        return Wrong("indices are not sorted, though said to be coalesced");
      }
    }
    return Status();
  }

  // Checks each row of plain indices. `compressed` has the start of each row.
  // Indices ascend within a row.
  static Status CheckRows(const Compressed& kind, Sizes compressed, Sizes plain,
                          int64_t columns) {
    const auto count = static_cast<int64_t>(plain.size());
    if (compressed.front() != 0) {
      return Wrong(fmt::format("{} does not begin with 0", kind.compressed));
    }
    if (compressed.back() != count) {
      return Wrong(
          fmt::format("{} does not end with {}", kind.compressed, count));
    }
    HAULWAY_TRY(CheckInside(compressed, count + 1, kind.compressed));
    HAULWAY_TRY(CheckInside(plain, columns, kind.plain));
    for (size_t r = 1; r < compressed.size(); ++r) {
      const int64_t step = compressed[r] - compressed[r - 1];
      if (step < 0 || step > columns) {
        return Wrong(fmt::format("{} has a step below 0 or above {}",
                                 kind.compressed, columns));
      }
      for (int64_t i = compressed[r - 1] + 1; i < compressed[r]; ++i) {
        if (plain[static_cast<size_t>(i)] <=
            plain[static_cast<size_t>(i - 1)]) {
          return Wrong(fmt::format("{} are not sorted, or repeat, in a row",
                                   kind.plain));
        }
      }
    }
    return Status();
  }

  // `parts`: compressed indices, plain indices, values, size.
  Status CheckCompressed(const Compressed& kind, std::span<const Value> parts) {
    if (parts.size() != 4) return Wrong("expected 4 parts");
    Status status;
    const TensorInfo* const outer = Tensor(parts[0], kind.compressed, &status);
    const TensorInfo* const inner = Tensor(parts[1], kind.plain, &status);
    const TensorInfo* const values = Tensor(parts[2], "values", &status);
    if (outer == nullptr || inner == nullptr || values == nullptr) {
      return status;
    }
    const auto size = Numbers(parts[3]);
    if (!size.has_value()) {
      return Wrong("size is not a tuple of numbers from 0");
    }
    if (outer->dtype != inner->dtype) {
      return Wrong("index tensors differ in dtype");
    }
    if (outer->dtype != DType::kI32 && outer->dtype != DType::kI64) {
      return Wrong(fmt::format("{} is not int32 or int64", kind.compressed));
    }
    for (const auto& [part, name] :
         {std::pair(outer, kind.compressed), std::pair(inner, kind.plain)}) {
      if (!IsContiguous(part->shape, part->strides)) {
        return Wrong(fmt::format("{} is not contiguous", name));
      }
    }
    if (outer->shape.empty()) {
      return Wrong(fmt::format("{} has no dimension", kind.compressed));
    }
    const size_t dims = outer->shape.size() - 1;
    const Sizes batch = outer->shape.first(dims);
    if (inner->shape.size() != dims + 1 ||
        !std::ranges::equal(inner->shape.first(dims), batch)) {
      return Wrong("index tensors differ in batch dimensions");
    }
    const size_t blocks = kind.is_blocked ? 2 : 0;
    const Sizes wanted(*size);
    const Sizes shape = values->shape;
    if (wanted.size() < dims + 2 ||
        shape.size() != wanted.size() - 1 + blocks ||
        !std::ranges::equal(shape.first(dims + 1), inner->shape) ||
        !std::ranges::equal(shape.subspan(dims + 1 + blocks),
                            wanted.subspan(dims + 2)) ||
        !std::ranges::equal(wanted.first(dims), batch)) {
      return Wrong("parts do not have the shapes that size wants");
    }
    std::array<int64_t, 2> matrix = {wanted[dims], wanted[dims + 1]};
    for (size_t d = 0; d < 2; ++d) {
      const int64_t block = kind.is_blocked ? shape[dims + 1 + d] : 1;
      if (block <= 0 || matrix[d] % block != 0) {
        return Wrong("blocks do not fill the size");
      }
      matrix[d] /= block;
    }
    if (!kind.is_by_row) std::swap(matrix[0], matrix[1]);
    const auto [rows, columns] = matrix;
    if (outer->shape.back() - 1 != rows) {
      return Wrong(
          fmt::format("{}: expected one number more than {} rows, "
                      "found {}",
                      kind.compressed, rows, outer->shape.back()));
    }
    if (outer->kind == TensorKind::kMeta || inner->kind == TensorKind::kMeta) {
      return Status();
    }
    HAULWAY_ASSIGN(const std::vector<int64_t> starts, Read(*outer));
    HAULWAY_ASSIGN(const std::vector<int64_t> plain, Read(*inner));
    const auto per = static_cast<size_t>(outer->shape.back());
    const auto count = static_cast<size_t>(inner->shape.back());
    for (size_t b = 0; b * per < starts.size(); ++b) {
      HAULWAY_TRY(CheckRows(kind, Sizes(starts).subspan(b * per, per),
                            Sizes(plain).subspan(b * count, count), columns));
    }
    return Status();
  }

  // `args`: storage, offset, size, stride and quantizer. The quantizer is a
  // scheme and, if it is per channel, the scales, zero points and axis.
  Status CheckQuantized(std::span<const Value> args) const {
    const auto parts =
        args.size() > 4 ? Items(args[4]) : std::span<const Value>();
    if (parts.size() != 4 || !parts[3].is(Kind::kInt)) return Status();
    const auto size = Numbers(args[2]);
    const auto axis = static_cast<size_t>(parts[3].integer());
    if (!size.has_value() || axis >= size->size())
      return Wrong("axis is wrong");
    for (const Value& part : parts.subspan(1, 2)) {
      uint64_t count = 0;
      if (part.is(Kind::kList)) {
        count = Items(part).size();
      } else {
        Status status;
        const TensorInfo* const row =
            Tensor(part, "scales or zero points", &status);
        if (row == nullptr) return status;
        if (row->shape.size() != 1) {
          return Wrong("scales or zero points are not a row");
        }
        count = static_cast<uint64_t>(row->shape[0]);
      }
      if (count != static_cast<uint64_t>((*size)[axis])) {
        return Wrong(fmt::format("expected {} scales and zero points, found {}",
                                 (*size)[axis], count));
      }
    }
    return Status();
  }

  // `parts`: buffer, sizes, strides and offsets. The offsets are a tensor or a
  // tuple.
  Status CheckNested(std::span<const Value> parts) {
    if (parts.size() != 4) return Wrong("expected 4 parts");
    Status status;
    const TensorInfo* const buffer = Tensor(parts[0], "buffer", &status);
    const TensorInfo* const sizes = Tensor(parts[1], "sizes", &status);
    const TensorInfo* const strides = Tensor(parts[2], "strides", &status);
    if (buffer == nullptr || sizes == nullptr || strides == nullptr) {
      return status;
    }
    if (buffer->shape.size() != 1) return Wrong("buffer is not flat");
    const bool is_meta =
        sizes->kind == TensorKind::kMeta || strides->kind == TensorKind::kMeta;
    std::vector<int64_t> offsets;
    if (const auto numbers = Numbers(parts[3])) {
      offsets = *numbers;
    } else {
      const TensorInfo* const tensor = Tensor(parts[3], "offsets", &status);
      if (tensor == nullptr) return status;
      if (tensor->kind == TensorKind::kMeta) return Status();
      if (tensor->shape.size() != 1 || tensor->dtype != DType::kI64) {
        return Wrong("offsets are not a row of int64");
      }
      HAULWAY_ASSIGN(offsets, Read(*tensor));
    }
    if (offsets.empty()) return Status();  // No components.
    if (sizes->shape.size() != 2 ||
        !std::ranges::equal(sizes->shape, strides->shape) ||
        sizes->shape[0] != static_cast<int64_t>(offsets.size())) {
      return Wrong("sizes, strides and offsets differ in length");
    }
    if (is_meta) return Status();
    const bool has_any = sizes->nbytes != 0;
    if (has_any &&
        (sizes->dtype != DType::kI64 || strides->dtype != DType::kI64)) {
      return Wrong("sizes or strides are not int64");
    }
    std::vector<int64_t> all_sizes;
    std::vector<int64_t> all_strides;
    if (has_any) {
      HAULWAY_ASSIGN(all_sizes, Read(*sizes));
      HAULWAY_ASSIGN(all_strides, Read(*strides));
    }
    const auto rank = static_cast<size_t>(sizes->shape[1]);
    for (size_t c = 0; c < offsets.size(); ++c) {
      HAULWAY_TRY(CheckComponent(static_cast<uint64_t>(buffer->shape[0]),
                                 Sizes(all_sizes).subspan(c * rank, rank),
                                 Sizes(all_strides).subspan(c * rank, rank),
                                 offsets[c]));
    }
    return Status();
  }

  static Status CheckComponent(uint64_t elements, Sizes size, Sizes stride,
                               int64_t offset) {
    const auto is_negative = [](int64_t n) { return n < 0; };
    if (offset < 0 || std::ranges::any_of(size, is_negative) ||
        std::ranges::any_of(stride, is_negative)) {
      return Wrong("a size, stride or offset is negative");
    }
    const auto extent = ElementExtent(size, stride);
    uint64_t end = 0;
    if (!extent.has_value() ||
        !CheckedAdd(static_cast<uint64_t>(offset), *extent, &end) ||
        (*extent != 0 && end > elements)) {
      return Wrong(
          fmt::format("a component ends past its buffer of {} "
                      "elements",
                      elements));
    }
    return Status();
  }

  const FormatReader& reader_;
  uint64_t most_ = 0;  // Maximum number of bytes to read,
  uint64_t read_ = 0;  // and bytes read so far.
  TreeWalk walk_;
};

}  // namespace

Status CheckComposedTensors(const FormatReader& reader) {
  return OrNoMemory([&] { return Checker(reader).Run(); });
}

Status VerifyComposedTensors(const FormatReader& reader, VerifyReport* report) {
  if (auto note = NoteOfCode(reader.index())) {
    report->notes.push_back(*std::move(note));
  }
  Status status = CheckComposedTensors(reader);
  if (status.ok() || IsOfSource(status)) return status;
  report->ok = false;
  report->findings.push_back(
      {status.code(), std::string(status.message()), status.byte()});
  return Status();
}

}  // namespace haulway::torch
