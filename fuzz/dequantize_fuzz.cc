// Property: dequantizing any safetensors file, with any config.json beside it,
// results in weights that can be read, each range as part of the whole, or in a
// typed error. The input is the length of config.json as two bytes,
// config.json, and the file.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "arithmetic/dequantize.h"
#include "computed_tensors.h"
#include "haulway/format.h"
#include "safetensors/safetensors_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (size < 2) return 0;
  const size_t length = std::min<size_t>(data[0] | data[1] << 8, size - 2);
  const auto source = std::make_shared<const haulway::fuzzing::Beside>(
      bytes.subspan(2 + length), bytes.subspan(2, length));
  auto reader = haulway::safetensors::OpenSafetensors(source, {});
  if (!reader.ok()) return 0;
  const auto plain = haulway::arithmetic::Dequantize(*std::move(reader),
                                                     *source, std::nullopt);
  if (plain.ok()) haulway::fuzzing::ReadAll(*plain->reader);
  return 0;
}
