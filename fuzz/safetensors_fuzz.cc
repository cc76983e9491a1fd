// Property: parsing any bytes as a safetensors header results in tensors that
// fill the data or in a typed error. Input that strict reading accepts is
// accepted by lenient reading with the same tensors. Both parsers agree. A file
// written from the tensors reads back the same.

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/options.h"
#include "safetensors/compact_header.h"
#include "safetensors/safetensors_header.h"

namespace {

using haulway::Strictness;
using haulway::TreeArena;
using haulway::safetensors::Header;
using haulway::safetensors::HeaderTensor;
using haulway::safetensors::kPaddingBytes;
using haulway::safetensors::kPrefixBytes;

// A header and the memory it refers to.
struct Parsed {
  std::vector<std::byte> memory;
  TreeArena arena;
  std::optional<Header> header;
};

void Parse(std::span<const std::byte> file, Strictness strictness,
           Parsed* parsed) {
  const haulway::ParseLimits limits;
  const auto json_bytes = haulway::safetensors::ParsePrefix(
      file.subspan(0, std::min<size_t>(file.size(), kPrefixBytes)), file.size(),
      limits);
  if (!json_bytes.ok()) return;
  const auto json = file.subspan(kPrefixBytes, *json_bytes);
  parsed->memory.assign(json.begin(), json.end());
  parsed->memory.resize(json.size() + kPaddingBytes);
  const uint64_t data_bytes = file.size() - kPrefixBytes - *json_bytes;
  auto header =
      haulway::safetensors::ParseHeader(parsed->memory, *json_bytes, data_bytes,
                                        strictness, limits, &parsed->arena);
  if (!header.ok()) return;
  uint64_t at = 0;
  for (const HeaderTensor& tensor : header->tensors) {
    if (tensor.begin != at || tensor.end < at) abort();
    at = tensor.end;
  }
  if (at != data_bytes) abort();
  parsed->header = std::move(*header);
}

bool SameTensor(const HeaderTensor& a, const HeaderTensor& b) {
  return a.name == b.name && a.dtype == b.dtype &&
         std::ranges::equal(a.shape, b.shape) &&
         a.end - a.begin == b.end - b.begin;
}

// Headers that the compact parser accepts must give the same result with the
// JSON parser.
void CompareParsers(std::span<const std::byte> file) {
  if (file.size() < kPrefixBytes) return;
  const auto json = file.subspan(kPrefixBytes);
  std::vector<std::byte> memory(json.begin(), json.end());
  memory.resize(json.size() + kPaddingBytes);
  const haulway::ParseLimits limits;
  TreeArena arena;
  const auto compact = haulway::safetensors::ParseCompactHeader(
      memory, json.size(), limits, &arena);
  if (!compact.has_value()) return;
  const auto general = haulway::safetensors::ParseJsonHeader(
      memory, json.size(), Strictness::kStrict, limits, &arena);
  if (!general.ok() || general->metadata != compact->metadata ||
      !std::ranges::equal(general->tensors, compact->tensors, SameTensor) ||
      !std::ranges::equal(general->tensors, compact->tensors, {},
                          &HeaderTensor::begin, &HeaderTensor::begin)) {
    abort();
  }
}

void RoundTrip(const Header& header) {
  std::vector<haulway::safetensors::TensorSpec> specs;
  for (const HeaderTensor& tensor : header.tensors) {
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  const auto encoded =
      haulway::safetensors::EncodeHeader(specs, header.metadata);
  if (!encoded.ok()) abort();
  std::string file = encoded->bytes;
  // A header of a few bytes can claim much data.
  if (encoded->file_bytes > (1 << 20)) return;
  file.resize(encoded->file_bytes);
  Parsed again;
  Parse(std::as_bytes(std::span<const char>(file)), Strictness::kStrict,
        &again);
  if (!again.header.has_value()) abort();
  if (again.header->tensors.size() != specs.size()) abort();
  std::vector<std::optional<HeaderTensor>> by_row(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    by_row[encoded->order[i]] = again.header->tensors[i];
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!SameTensor(*by_row[i], header.tensors[i])) abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  CompareParsers(bytes);
  Parsed strict, lenient;
  Parse(bytes, Strictness::kStrict, &strict);
  Parse(bytes, Strictness::kLenient, &lenient);
  if (!strict.header.has_value()) return 0;
  if (!lenient.header.has_value()) abort();
  if (!std::ranges::equal(strict.header->tensors, lenient.header->tensors,
                          SameTensor)) {
    abort();
  }
  RoundTrip(*strict.header);
  return 0;
}
