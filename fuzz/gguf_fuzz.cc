// Property: parsing any bytes as a GGUF header results in tensors within the
// data or in a typed error. Input that strict reading accepts is accepted by
// lenient reading with the same tensors. If only the start of a header is
// given, the parser asks for more, but never for more than there is. A file
// written from the tensors and values, if they name an architecture, reads back
// the same.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gguf/gguf_header.h"
#include "gguf/gguf_writer.h"
#include "haulway/options.h"
#include "haulway/save.h"

namespace {

using haulway::Strictness;
using haulway::TreeArena;
using haulway::gguf::Header;
using haulway::gguf::HeaderTensor;

struct Parsed {
  TreeArena arena;
  std::optional<Header> header;
};

void Parse(std::span<const std::byte> bytes, uint64_t file_bytes,
           Strictness strictness, Parsed* parsed) {
  uint64_t wanted = 0;
  auto header = haulway::gguf::ParseHeader(bytes, file_bytes, strictness,
                                           haulway::ParseLimits(),
                                           &parsed->arena, &wanted);
  if (!header.ok()) return;
  if (!header->has_value()) {
    if (wanted <= bytes.size() || wanted > file_bytes) abort();
    return;
  }
  const Header& found = **header;
  for (const HeaderTensor& tensor : found.tensors) {
    if (found.data_offset > file_bytes && tensor.nbytes == 0) continue;
    const uint64_t data_bytes = file_bytes - found.data_offset;
    if (tensor.offset > data_bytes ||
        tensor.nbytes > data_bytes - tensor.offset) {
      abort();
    }
  }
  parsed->header = *std::move(header);
}

bool Same(const HeaderTensor& a, const HeaderTensor& b) {
  return a.name == b.name && a.dtype == b.dtype && a.nbytes == b.nbytes &&
         std::ranges::equal(a.shape, b.shape);
}

// The writer requires an architecture.
bool HasArchitecture(const Header& header) {
  return std::ranges::any_of(header.metadata, [](const haulway::Fact& fact) {
    const auto* const name = std::get_if<std::string>(&fact.value);
    return fact.name == "general.architecture" && name != nullptr &&
           !name->empty();
  });
}

void WriteAgain(std::span<const std::byte> file, const Header& header) {
  haulway::TensorsToWrite tensors;
  for (const HeaderTensor& tensor : header.tensors) {
    tensors.tensors.push_back(
        {.name = std::string(tensor.name),
         .dtype = tensor.dtype,
         .shape = {tensor.shape.begin(), tensor.shape.end()},
         .bytes = {.length = tensor.nbytes, .bytes = file.data()}});
  }
  tensors.values = header.metadata;
  const auto layout = haulway::gguf::LayOutTensors(tensors, {});
  if (!layout.ok()) abort();
  std::vector<std::byte> written((*layout)->frames()[0].length);
  if (written.size() != header.header_bytes ||
      !(*layout)->EncodeFrame(0, {}, written).ok()) {
    abort();
  }
  Parsed again;
  Parse(written, (*layout)->size(), Strictness::kStrict, &again);
  if (!again.header.has_value() ||
      again.header->metadata.size() != header.metadata.size() ||
      !std::ranges::equal(again.header->tensors, header.tensors, Same)) {
    abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  Parsed strict, lenient, start;
  Parse(file, size, Strictness::kStrict, &strict);
  Parse(file, size, Strictness::kLenient, &lenient);
  Parse(file.first(size / 2), size, Strictness::kStrict, &start);
  if (start.header.has_value() && !strict.header.has_value()) abort();
  if (!strict.header.has_value()) return 0;
  if (!lenient.header.has_value() ||
      !std::ranges::equal(strict.header->tensors, lenient.header->tensors,
                          Same)) {
    abort();
  }
  if (HasArchitecture(*strict.header)) WriteAgain(file, *strict.header);
  return 0;
}
