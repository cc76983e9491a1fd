#include "format/flat_reader.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/is_of_source.h"
#include "base/text.h"

namespace haulway {

Status AppendTensor(const FlatTensor& tensor, CheckpointIndex* index,
                    TreeArena* arena) {
  const auto row = static_cast<uint32_t>(index->storages.size());
  StorageInfo& storage = index->storages.emplace_back();
  storage.key = tensor.name;
  storage.location = "cpu";
  storage.dtype = tensor.dtype;
  storage.nbytes = storage.stored_bytes = tensor.nbytes;
  storage.frame_offset = storage.offset = tensor.offset;
  storage.frame_end = storage.offset + storage.nbytes;

  TensorInfo& info = index->tensors.emplace_back();
  info.dtype = tensor.dtype;
  info.storage = row;
  info.nbytes = tensor.nbytes;
  info.shape = tensor.shape;
  const size_t rank = info.shape.size();
  auto* strides =
      static_cast<int64_t*>(arena->Allocate(rank * sizeof(int64_t)));
  uint64_t stride = 1;
  for (size_t i = 0; i < rank; ++i) {
    const size_t d = tensor.column_major ? i : rank - 1 - i;
    if (stride > static_cast<uint64_t>(INT64_MAX)) {
      return Status(Code::kUnsupported,
                    "strides are more than tensors can have")
          .In(Quote(tensor.name));
    }
    strides[d] = static_cast<int64_t>(stride);
    // Without elements, the product of the other sizes may overflow.
    if (!CheckedMultiply(
            stride, static_cast<uint64_t>(std::max<int64_t>(info.shape[d], 1)),
            &stride)) {
      stride = UINT64_MAX;
    }
  }
  info.strides = {strides, rank};
  return Status();
}

uint32_t AppendRows(const CheckpointIndex& part, uint64_t start,
                    CheckpointIndex* index) {
  const auto first = static_cast<uint32_t>(index->storages.size());
  for (StorageInfo storage : part.storages) {
    storage.frame_offset += start;
    storage.offset += start;
    storage.frame_end += start;
    index->storages.push_back(storage);
  }
  for (TensorInfo tensor : part.tensors) {
    if (tensor.storage != kNoStorage) tensor.storage += first;
    index->tensors.push_back(tensor);
  }
  return first;
}

FlatReader::FlatReader(Format format, std::shared_ptr<const ByteSource> source)
    : source_(std::move(source)) {
  index_.format = format;
  index_.flat = true;
  index_.offsets_computed = true;
}

Status FlatReader::CheckFrame(uint32_t, std::span<const std::byte>,
                              std::span<const std::byte>) const {
  return Status();
}

Status FlatReader::Decode(uint32_t, std::span<const std::byte>, uint64_t,
                          std::span<const std::byte>,
                          std::span<std::byte>) const {
  return Status(Code::kInternal, "tensors of this format are never encoded");
}

void FlatReader::Reserve(size_t tensors) {
  index_.entries.reserve(tensors);
  index_.tensors.reserve(tensors);
  index_.storages.reserve(tensors);
}

Status FlatReader::Append(const FlatTensor& tensor) {
  const auto row = static_cast<uint32_t>(index_.tensors.size());
  HAULWAY_TRY(AppendTensor(tensor, &index_, &arena_));
  index_.entries.push_back({tensor.name, row});
  return Status();
}

Result<VerifyReport> ReportOpening(
    Format format, const ByteSource& source, const VerifyOptions& options,
    const Result<std::unique_ptr<const FormatReader>>& opened) {
  VerifyReport report;
  report.file = source.name();
  report.format = format;
  report.file_bytes = source.size();
  if (!opened.ok()) {
    const Status status = opened.status();
    if (IsOfSource(status)) return status;
    report.ok = false;
    report.findings.push_back(
        {status.code(), std::string(status.message()), status.byte()});
  }
  report.unchecked.push_back({"the format has no checksums", 0, source.size()});
  if (options.progress) options.progress(source.size(), source.size());
  return report;
}

}  // namespace haulway
