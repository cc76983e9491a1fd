#include "versions/kept_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "haulway/index.h"
#include "haulway/options.h"
#include "tensor/strided.h"

namespace haulway {

namespace {

constexpr uint64_t kKeptAlignment = 64;

}  // namespace

Result<uint64_t> BytesOfShape(DType dtype, std::span<const int64_t> shape) {
  bool fits = true;
  for (const int64_t size : shape) fits = fits && size >= 0;
  const auto count = fits ? CountElements(shape) : std::nullopt;
  uint64_t bytes = 0;
  if (!count.has_value() ||
      !CheckedMultiply(*count, ItemBytes(dtype), &bytes)) {
    return Status(Code::kInvalidArgument,
                  "the shape is too large, or negative");
  }
  return bytes;
}

Status CheckLength(const TensorToWrite& tensor, uint64_t bytes) {
  if (tensor.bytes.length == bytes &&
      (bytes == 0 || tensor.bytes.bytes != nullptr)) {
    return Status();
  }
  return Status(
      Code::kInvalidArgument,
      fmt::format("tensor {} is given {} bytes: expected {} in memory",
                  Quote(tensor.name), tensor.bytes.length, bytes));
}

Status KeptWeights::Add(KeptTensor tensor) {
  HAULWAY_ASSIGN(tensor.bytes, BytesOfShape(tensor.dtype, tensor.shape));
  if (!rows_.try_emplace(tensor.name, tensors_.size()).second) {
    return Status(Code::kInvalidArgument,
                  fmt::format("two tensors are named {}", Quote(tensor.name)));
  }
  tensors_.push_back(std::move(tensor));
  return Status();
}

Status KeptWeights::AddAll(const Checkpoint& checkpoint) {
  for (const Entry& entry : checkpoint.entries()) {
    const TensorInfo& tensor = checkpoint.index().tensors[entry.tensor];
    const bool has_data = tensor.storage != kNoStorage &&
                          tensor.kind != TensorKind::kMeta &&
                          !tensor.conjugate && !tensor.negative;
    if (!has_data) {
      return Status(Code::kUnsupported,
                    fmt::format("tensor {} has no data of its own",
                                Quote(entry.name)))
          .Of(checkpoint.source().name());
    }
    HAULWAY_TRY(Add({.name = std::string(entry.name),
                     .dtype = tensor.dtype,
                     .shape = {tensor.shape.begin(), tensor.shape.end()}}));
  }
  return Status();
}

Status KeptWeights::Copy(std::span<const TensorToWrite> tensors, int threads) {
  for (const TensorToWrite& tensor : tensors) {
    HAULWAY_TRY(Add(
        {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape}));
    HAULWAY_TRY(CheckLength(tensor, tensors_.back().bytes));
  }
  std::vector<size_t> rows(tensors_.size());
  std::iota(rows.begin(), rows.end(), size_t{0});
  HAULWAY_TRY(Allocate(rows));
  return ParallelFor(rows.size(), threads, [&](uint64_t i) -> Status {
    if (tensors_[i].bytes == 0) return Status();
    std::memcpy(tensors_[i].memory->mutable_bytes().data(),
                tensors[i].bytes.bytes, tensors_[i].bytes);
    return Status();
  });
}

Status KeptWeights::Load(const Checkpoint& checkpoint, std::vector<size_t> rows,
                         int threads) {
  HAULWAY_TRY(Allocate(rows));
  // The largest first, so that threads end together.
  std::ranges::stable_sort(rows, std::ranges::greater(),
                           [&](size_t row) { return tensors_[row].bytes; });
  Status loaded = ParallelFor(rows.size(), threads, [&](uint64_t i) -> Status {
    if (CancelScope::IsCancelled()) {
      return Status(Code::kCancelled, "loading was cancelled");
    }
    const KeptTensor& one = tensors_[rows[i]];
    const TensorInfo* const tensor = checkpoint.Find(one.name);
    if (tensor == nullptr || tensor->nbytes != one.bytes) {
      return Status(Code::kMismatch, fmt::format("tensor {} is not what it was",
                                                 Quote(one.name)))
          .Of(checkpoint.source().name());
    }
    if (one.bytes == 0) return Status();
    return checkpoint.Read(*tensor, one.memory->mutable_bytes());
  });
  if (!loaded.ok()) {
    for (const size_t row : rows) tensors_[row].memory.reset();
  }
  return loaded;
}

std::optional<size_t> KeptWeights::Find(std::string_view name) const {
  const auto found = rows_.find(name);
  if (found == rows_.end()) return std::nullopt;
  return found->second;
}

Status KeptWeights::Allocate(const std::vector<size_t>& rows) {
  uint64_t total = 0;
  std::vector<uint64_t> offsets;
  for (const size_t row : rows) {
    offsets.push_back(total);
    uint64_t end = 0;
    if (!CheckedAdd(total, tensors_[row].bytes, &end) ||
        !CheckedAdd(end, kKeptAlignment - 1, &total)) {
      return Status(Code::kLimit, "out of memory");
    }
    total = total / kKeptAlignment * kKeptAlignment;
  }
  HAULWAY_ASSIGN(const Buffer memory, AllocateBuffer(total));
  for (size_t i = 0; i < rows.size(); ++i) {
    tensors_[rows[i]].memory =
        memory.Slice(offsets[i], tensors_[rows[i]].bytes);
  }
  return Status();
}

}  // namespace haulway
