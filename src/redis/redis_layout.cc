#include "redis/redis_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "haulway/options.h"
#include "tensorizer/tensorizer_format.h"

namespace haulway::redis {

std::string HeaderKey(std::string_view prefix) {
  return fmt::format("{}:header:0", prefix);
}

Result<KeyLayout> LayOutKeys(std::string_view prefix,
                             std::span<const std::byte> head) {
  // The file size is known only from the index.
  constexpr uint64_t kUnknown = std::numeric_limits<int64_t>::max();
  const OpenOptions options;
  HAULWAY_ASSIGN(
      tensorizer::Preamble preamble,
      tensorizer::ParsePreamble(
          head.first(std::min<size_t>(head.size(), tensorizer::kPreambleBytes)),
          kUnknown, options));
  const uint64_t start = preamble.index_offset + preamble.index_bytes;
  if (start > head.size()) {
    return Status(Code::kTruncated,
                  fmt::format("the header is cut: expected {} bytes, found {}",
                              start, head.size()));
  }
  HAULWAY_ASSIGN(const tensorizer::TensorIndex index,
                 tensorizer::ParseIndex(
                     head.subspan(preamble.index_offset, preamble.index_bytes),
                     kUnknown, options, &preamble));
  if (preamble.layout != tensorizer::Layout::kInterleaved) {
    return Status(Code::kUnsupported,
                  fmt::format("a file of the layout '{}' has no keys in Redis: "
                              "expected the one of Tensorizer's releases",
                              tensorizer::Name(preamble.layout)));
  }
  KeyLayout layout;
  layout.pieces.push_back({0, start, fmt::format("{}:header", prefix)});
  for (const tensorizer::IndexEntry& entry : index.entries) {
    const std::string stem = fmt::format("{}:{}", prefix, entry.name);
    layout.pieces.push_back(
        {entry.header_offset, entry.data_offset - entry.header_offset, stem});
    layout.pieces.push_back({entry.data_offset, entry.data_bytes, stem});
  }
  layout.file_bytes = index.end_mark + tensorizer::kEndMarkBytes;
  return layout;
}

}  // namespace haulway::redis
