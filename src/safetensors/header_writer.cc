#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "base/name_index.h"
#include "base/text.h"
#include "safetensors/safetensors_header.h"

namespace haulway::safetensors {

namespace {

// The alignment of the reference, whose padding is at the end.
constexpr uint64_t kUsualAlignment = 8;

// Appends `text` as a JSON string, with the minimum of escapes.
void AppendString(std::string_view text, std::string* out) {
  out->push_back('"');
  for (const char c : text) {
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\b':
        *out += "\\b";
        break;
      case '\t':
        *out += "\\t";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\f':
        *out += "\\f";
        break;
      case '\r':
        *out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          fmt::format_to(std::back_inserter(*out), "\\u{:04x}", c);
        } else {
          out->push_back(c);
        }
    }
  }
  out->push_back('"');
}

Status CheckText(std::string_view text, std::string_view what) {
  if (IsUtf8(text)) return Status();
  return Status(Code::kInvalidArgument,
                fmt::format("{} {} is not UTF-8", what, Quote(text)));
}

Status CheckNames(std::span<const TensorSpec> tensors) {
  NameIndex names;
  names.Reserve(tensors.size());
  const auto name_of = [&](uint32_t i) { return tensors[i].name; };
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    const std::string_view name = tensors[i].name;
    HAULWAY_TRY(CheckText(name, "name"));
    if (name == kMetadataKey) {
      return Status(Code::kInvalidArgument,
                    "a tensor cannot be named __metadata__ in safetensors");
    }
    if (names.Add(name, i, name_of) != NameIndex::kNone) {
      return Status(Code::kInvalidArgument,
                    fmt::format("two tensors are named {}", Quote(name)));
    }
  }
  return Status();
}

// Returns the size of a tensor in bytes. Requires: the shape is that of a
// tensor in memory.
Result<uint64_t> BytesOf(const TensorSpec& tensor) {
  uint64_t bits = ElementBits(tensor.dtype);
  uint64_t count = 1;
  bool fits = true;
  for (const int64_t dim : tensor.shape) {
    // Multiply in the order that readers use.
    fits = fits && dim >= 0 &&
           CheckedMultiply(count, static_cast<uint64_t>(dim), &count);
  }
  if (!fits || !CheckedMultiply(bits, count, &bits)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("shape [{}] has no size",
                              fmt::join(tensor.shape, ", ")))
        .In(Quote(tensor.name));
  }
  if (bits % 8 != 0) {
    return Status(Code::kInvalidArgument,
                  fmt::format("elements of {} do not fill whole bytes",
                              Describe(tensor.dtype).safetensors_name))
        .In(Quote(tensor.name));
  }
  return bits / 8;
}

void AppendMetadata(Metadata metadata, std::string* json) {
  std::ranges::sort(metadata);
  *json += "\"__metadata__\":{";
  for (size_t i = 0; i < metadata.size(); ++i) {
    if (i != 0) json->push_back(',');
    AppendString(metadata[i].first, json);
    json->push_back(':');
    AppendString(metadata[i].second, json);
  }
  json->push_back('}');
}

}  // namespace

Result<EncodedHeader> EncodeHeader(std::span<const TensorSpec> tensors,
                                   const std::optional<Metadata>& metadata,
                                   uint64_t alignment, bool in_order,
                                   const ParseLimits& limits) {
  if (alignment == 0 || (alignment % 8 != 0 && !in_order)) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("alignment is {}: expected a multiple of 8", alignment));
  }
  HAULWAY_TRY(CheckNames(tensors));
  EncodedHeader encoded;
  encoded.order.resize(tensors.size());
  std::iota(encoded.order.begin(), encoded.order.end(), 0);
  const auto precedes = [&](uint32_t a, uint32_t b) {
    if (tensors[a].dtype != tensors[b].dtype) {
      return RankOf(tensors[a].dtype) > RankOf(tensors[b].dtype);
    }
    return tensors[a].name < tensors[b].name;
  };
  if (!in_order) std::ranges::sort(encoded.order, precedes);

  std::string& out = encoded.bytes;
  out.assign(kPrefixBytes, '\0');
  out.push_back('{');
  // Where padding may be inserted before the end; 0 if nowhere.
  size_t room_at = 0;
  if (metadata.has_value()) {
    for (const auto& [key, value] : *metadata) {
      HAULWAY_TRY(CheckText(key, "key of metadata"));
      HAULWAY_TRY(CheckText(value, "value of metadata"));
    }
    AppendMetadata(*metadata, &out);
    room_at = out.size();
  }
  uint64_t at = 0;
  encoded.offsets.reserve(tensors.size());
  for (const uint32_t row : encoded.order) {
    const TensorSpec& tensor = tensors[row];
    HAULWAY_ASSIGN(const uint64_t bytes, BytesOf(tensor));
    const uint64_t begin = at;
    if (!CheckedAdd(at, bytes, &at)) {
      return Status(Code::kInvalidArgument, "tensors have no size in all");
    }
    if (out.back() != '{') out.push_back(',');
    AppendString(tensor.name, &out);
    fmt::format_to(std::back_inserter(out),
                   R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                   Describe(tensor.dtype).safetensors_name,
                   fmt::join(tensor.shape, ","), begin, at);
    encoded.offsets.push_back(begin);
  }
  out.push_back('}');
  uint64_t header_bytes = 0;
  if (!CheckedRoundUp(out.size(), alignment, &header_bytes) ||
      header_bytes - kPrefixBytes > limits.max_header_bytes) {
    return Status(
        Code::kLimit,
        fmt::format("header of {} bytes passes max_header_bytes {}",
                    out.size() - kPrefixBytes, limits.max_header_bytes));
  }
  // Put the padding after the metadata, so that the metadata can grow without
  // moving what follows.
  if (alignment == kUsualAlignment || room_at == 0 ||
      (in_order && alignment % kRoomyAlignment != 0)) {
    room_at = out.size();
  }
  out.insert(room_at, header_bytes - out.size(), ' ');
  uint64_t json_bytes = header_bytes - kPrefixBytes;
  for (size_t i = 0; i < kPrefixBytes; ++i) {
    out[i] = static_cast<char>(json_bytes & 0xFF);
    json_bytes >>= 8;
  }
  for (uint64_t& offset : encoded.offsets) offset += header_bytes;
  if (!CheckedAdd(header_bytes, at, &encoded.file_bytes)) {
    return Status(Code::kInvalidArgument, "tensors have no size in all");
  }
  return encoded;
}

}  // namespace haulway::safetensors
