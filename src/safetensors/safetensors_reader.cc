#include "safetensors/safetensors_reader.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

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
  // The parser says what is wrong with a byte order mark.
  constexpr std::string_view kMarked = "\xef\xbb\xbf{";
  if (head.size() >= 12 &&
      std::memcmp(head.data() + 8, kMarked.data(), kMarked.size()) == 0) {
    return true;
  }
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

}  // namespace haulway::safetensors
