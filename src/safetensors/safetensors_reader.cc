#include "safetensors/safetensors_reader.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/cursor.h"
#include "safetensors/header_reader.h"
#include "safetensors/safetensors_header.h"

namespace haulway::safetensors {

namespace {

// No header has this length, even in a damaged file.
constexpr uint64_t kNoHeaderBytes = uint64_t{1} << 40;

}  // namespace

bool IsSafetensors(std::span<const std::byte> head) {
  ByteCursor cursor(head);
  const uint64_t json_bytes = cursor.U64();
  if (!cursor.ok() || json_bytes >= kNoHeaderBytes) return false;
  while (cursor.remaining() > 0) {
    const auto c = static_cast<char>(cursor.U8());
    // A GGUF file of 123 tensors begins with the same bytes, followed by a
    // zero.
    if (c == '{') return cursor.remaining() == 0 || cursor.U8() != 0;
    if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return false;
  }
  return false;
}

Result<std::unique_ptr<const FormatReader>> OpenSafetensors(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  const ByteSource& file = *source;
  auto reader = std::make_unique<HeaderReader>(std::move(source));
  HAULWAY_ASSIGN(const OpenedHeader opened, reader->ReadHeader(file, options));
  CheckpointIndex& index = reader->mutable_index();
  index.facts = {
      {"header_bytes", opened.json_bytes},
      {"data_offset", opened.data_offset},
  };
  if (opened.header.metadata.has_value()) {
    for (const auto& [key, value] : *opened.header.metadata) {
      index.metadata->push_back({std::string(key), std::string(value)});
    }
  }
  reader->Reserve(opened.header.tensors.size());
  for (const HeaderTensor& tensor : opened.header.tensors) {
    HAULWAY_TRY(reader->Append(tensor, opened.data_offset));
  }
  return std::unique_ptr<const FormatReader>(std::move(reader));
}

Result<uint64_t> WholeBytes(const ByteSource& cut, const ParseLimits& limits) {
  std::array<std::byte, kPrefixBytes> prefix;
  HAULWAY_TRY(cut.ReadAt(0, prefix));
  HAULWAY_ASSIGN(const uint64_t json_bytes,
                 ParsePrefix(prefix, cut.size(), limits));
  std::string json(json_bytes, '\0');
  HAULWAY_TRY(
      cut.ReadAt(kPrefixBytes, std::as_writable_bytes(std::span(json))));
  simdjson::dom::parser parser;
  simdjson::dom::object tensors;
  if (parser.parse(json).get(tensors) != simdjson::SUCCESS) {
    return Status(Code::kCorrupt, "header is no JSON object").At(kPrefixBytes);
  }
  uint64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    uint64_t offset = 0;
    if (tensor["data_offsets"].at(1).get(offset) == simdjson::SUCCESS) {
      end = std::max(end, offset);
    }
  }
  if (!CheckedAdd(kPrefixBytes + json_bytes, end, &end)) {
    return Status(Code::kCorrupt, "tensors end past every file");
  }
  return end;
}

Result<VerifyReport> VerifySafetensors(std::shared_ptr<const ByteSource> source,
                                       const VerifyOptions& options) {
  return ReportOpening(Format::kSafetensors, *source, options,
                       OpenSafetensors(source, options.open));
}

}  // namespace haulway::safetensors
