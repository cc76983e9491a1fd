// Property: any header gets a verdict, and a header that strict reading accepts
// is accepted by the safetensors package.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/options.h"
#include "haulway/safetensors.h"
#include "safetensors/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using haulway::safetensors::kPaddingBytes;
  using haulway::safetensors::kPrefixBytes;
  const auto file = std::as_bytes(std::span(data, size));
  const haulway::ParseLimits limits;
  const auto json_bytes = haulway::safetensors::ParsePrefix(
      file.subspan(0, std::min<size_t>(size, kPrefixBytes)), size, limits);
  if (!json_bytes.ok()) return 0;
  const auto json = file.subspan(kPrefixBytes, *json_bytes);
  const uint64_t data_bytes = size - kPrefixBytes - *json_bytes;
  const bool is_refused =
      haulway::SafetensorsRefusal(
          std::string_view(reinterpret_cast<const char*>(json.data()),
                           json.size()),
          data_bytes)
          .has_value();
  std::vector<std::byte> memory(json.begin(), json.end());
  memory.resize(json.size() + kPaddingBytes);
  haulway::TreeArena arena;
  const bool is_read = haulway::safetensors::ParseHeader(
                           memory, *json_bytes, data_bytes,
                           haulway::Strictness::kStrict, limits, &arena)
                           .ok();
  if (is_read && is_refused) abort();
  return 0;
}
