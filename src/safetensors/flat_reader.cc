#include "safetensors/flat_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/checked.h"
#include "base/text.h"

namespace haulway::safetensors {

namespace {

// Whether the source failed, rather than what it holds.
bool IsOfSource(const Status& status) {
  return status.os_error() != 0 || status.code() == Code::kUnavailable ||
         status.code() == Code::kTimeout;
}

constexpr uint64_t kLongHeaderBytes = 256 * kKiB;

}  // namespace

FlatReader::FlatReader(std::shared_ptr<const ByteSource> source)
    : source_(std::move(source)) {
  index_.format = Format::kSafetensors;
  index_.flat = true;
  index_.offsets_computed = true;
  index_.metadata.emplace();
}

Status FlatReader::CheckFrame(uint32_t, std::span<const std::byte>,
                              std::span<const std::byte>) const {
  return Status();
}

Status FlatReader::Decode(uint32_t, std::span<const std::byte>, uint64_t,
                          std::span<const std::byte>,
                          std::span<std::byte>) const {
  return Status(Code::kInternal, "safetensors are never encoded");
}

Result<OpenedHeader> FlatReader::ReadHeader(const ByteSource& file,
                                            const OpenOptions& options) {
  std::array<std::byte, kPrefixBytes> prefix;
  const auto head =
      std::span(prefix).subspan(0, std::min(file.size(), kPrefixBytes));
  HAULWAY_TRY(file.ReadAt(0, head));
  OpenedHeader opened;
  HAULWAY_ASSIGN(opened.json_bytes,
                 ParsePrefix(head, file.size(), options.limits));
  opened.data_offset = kPrefixBytes + opened.json_bytes;
  // A copy, so that what is parsed cannot change meanwhile, with room behind
  // it for the shapes; a long one in huge pages.
  const size_t json_bytes = opened.json_bytes + kPaddingBytes;
  if (opened.json_bytes >= kLongHeaderBytes) {
    arena_.Reserve(json_bytes + opened.json_bytes / 4);
  }
  const std::span<std::byte> json(
      static_cast<std::byte*>(arena_.Allocate(json_bytes)), json_bytes);
  std::ranges::fill(json.subspan(opened.json_bytes), std::byte{0});
  HAULWAY_TRY(file.ReadAt(kPrefixBytes, json.first(opened.json_bytes)));
  HAULWAY_ASSIGN(
      opened.header,
      ParseHeader(json, opened.json_bytes, file.size() - opened.data_offset,
                  options.strictness, options.limits, &arena_));
  return opened;
}

void FlatReader::Reserve(size_t tensors) {
  index_.entries.reserve(tensors);
  index_.tensors.reserve(tensors);
  index_.storages.reserve(tensors);
}

Status FlatReader::Append(const HeaderTensor& tensor, uint64_t data_offset) {
  const DtypeFacts& facts = Describe(tensor.dtype);
  const auto row = static_cast<uint32_t>(index_.tensors.size());
  StorageInfo& storage = index_.storages.emplace_back();
  storage.key = tensor.name;
  storage.location = "cpu";
  storage.dtype = facts.dtype;
  storage.nbytes = storage.stored_bytes = tensor.end - tensor.begin;
  storage.frame_offset = storage.offset = data_offset + tensor.begin;
  storage.frame_end = storage.offset + storage.nbytes;

  TensorInfo& info = index_.tensors.emplace_back();
  info.dtype = facts.dtype;
  info.storage = row;
  info.nbytes = storage.nbytes;
  info.shape = tensor.shape;
  if (facts.in_item > 1) {
    // Items hold several elements of the last dimension; where they would
    // reach over its end, only a list of items can express the tensor.
    const bool fits =
        !tensor.shape.empty() && tensor.shape.back() % facts.in_item == 0;
    const size_t rank = fits ? tensor.shape.size() : 1;
    auto* shape =
        static_cast<int64_t*>(arena_.Allocate(rank * sizeof(int64_t)));
    if (fits) std::ranges::copy(tensor.shape, shape);
    shape[rank - 1] =
        fits ? tensor.shape.back() / facts.in_item
             : static_cast<int64_t>(info.nbytes / ItemBytes(facts.dtype));
    info.shape = {shape, rank};
  }
  auto* strides = static_cast<int64_t*>(
      arena_.Allocate(info.shape.size() * sizeof(int64_t)));
  uint64_t stride = 1;
  for (size_t d = info.shape.size(); d-- > 0;) {
    if (stride > static_cast<uint64_t>(INT64_MAX)) {
      return Status(Code::kUnsupported,
                    "strides are more than tensors can have")
          .In(Quote(tensor.name));
    }
    strides[d] = static_cast<int64_t>(stride);
    // Without elements the product of the others may be anything.
    if (!CheckedMultiply(
            stride, static_cast<uint64_t>(std::max<int64_t>(info.shape[d], 1)),
            &stride)) {
      stride = UINT64_MAX;
    }
  }
  info.strides = {strides, info.shape.size()};
  index_.entries.push_back({tensor.name, row});
  return Status();
}

Result<VerifyReport> ReportOpening(
    const ByteSource& source, const VerifyOptions& options,
    const Result<std::unique_ptr<const FormatReader>>& opened) {
  VerifyReport report;
  report.file = source.name();
  report.format = Format::kSafetensors;
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

Result<ScanReport> ReportNoPickles(
    const ByteSource& source,
    const Result<std::unique_ptr<const FormatReader>>& opened) {
  ScanReport report;
  report.file = source.name();
  if (!opened.ok()) {
    const Status status = opened.status();
    if (IsOfSource(status)) return status;
    report.safe = false;
    report.findings.push_back(
        {status.code(), std::string(status.message()), status.byte()});
  }
  return report;
}

}  // namespace haulway::safetensors
