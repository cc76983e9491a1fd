// Property: merging any adapter into any safetensors file results in tensors
// that can be read, each range as part of the whole, or in a typed error. The
// input is adapter_config.json and the adapter's file, each after its length as
// two bytes, and the model's file.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "arithmetic/dequantize.h"
#include "arithmetic/find_merges.h"
#include "computed_tensors.h"
#include "haulway/format.h"
#include "haulway/source.h"
#include "safetensors/safetensors_reader.h"

namespace {

constexpr std::string_view kConfig = R"({"tie_word_embeddings": true})";

// Removes a part from the front that begins with its length.
std::span<const std::byte> Take(std::span<const std::byte>* from) {
  if (from->size() < 2) return {};
  const auto stated =
      static_cast<size_t>((*from)[0]) | static_cast<size_t>((*from)[1]) << 8;
  const size_t length = std::min(stated, from->size() - 2);
  const auto part = from->subspan(2, length);
  *from = from->subspan(2 + length);
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto rest = std::as_bytes(std::span(data, size));
  const auto config = Take(&rest);
  auto adapter_reader = haulway::safetensors::OpenSafetensors(
      haulway::MakeMemorySource(Take(&rest)), {});
  if (!adapter_reader.ok()) return 0;
  const auto source = std::make_shared<const haulway::fuzzing::Beside>(
      rest, std::as_bytes(std::span(kConfig)));
  auto opened = haulway::safetensors::OpenSafetensors(source, {});
  if (!opened.ok()) return 0;
  auto reader = *std::move(opened);
  haulway::arithmetic::Adapter adapter;
  adapter.name = "adapter";
  adapter.reader = *std::move(adapter_reader);
  adapter.config =
      std::string(reinterpret_cast<const char*>(config.data()), config.size());
  adapter.weight = 0.5;
  const auto merged =
      haulway::arithmetic::MergeAdapters(*source, {&adapter, 1}, &reader);
  if (merged.ok()) haulway::fuzzing::ReadAll(*reader);
  return 0;
}
