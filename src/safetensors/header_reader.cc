#include "safetensors/header_reader.h"

#include <algorithm>
#include <array>
#include <utility>

namespace haulway::safetensors {

namespace {

constexpr uint64_t kLongHeaderBytes = 256 * kKiB;

}  // namespace

HeaderReader::HeaderReader(std::shared_ptr<const ByteSource> source)
    : FlatReader(Format::kSafetensors, std::move(source)) {
  mutable_index().metadata.emplace();
}

Result<OpenedHeader> HeaderReader::ReadHeader(const ByteSource& file,
                                              const OpenOptions& options) {
  std::array<std::byte, kPrefixBytes> prefix;
  const auto head =
      std::span(prefix).subspan(0, std::min(file.size(), kPrefixBytes));
  HAULWAY_TRY(file.ReadAt(0, head));
  OpenedHeader opened;
  HAULWAY_ASSIGN(opened.json_bytes,
                 ParsePrefix(head, file.size(), options.limits));
  opened.data_offset = kPrefixBytes + opened.json_bytes;
  // Copy the header, so that it cannot change while it is parsed, with room
  // behind it for the shapes. A long one uses huge pages.
  const size_t json_bytes = opened.json_bytes + kPaddingBytes;
  if (opened.json_bytes >= kLongHeaderBytes) {
    arena().Reserve(json_bytes + opened.json_bytes / 4);
  }
  const std::span<std::byte> json(
      static_cast<std::byte*>(arena().Allocate(json_bytes)), json_bytes);
  std::ranges::fill(json.subspan(opened.json_bytes), std::byte{0});
  HAULWAY_TRY(file.ReadAt(kPrefixBytes, json.first(opened.json_bytes)));
  HAULWAY_ASSIGN(
      opened.header,
      ParseHeader(json, opened.json_bytes, file.size() - opened.data_offset,
                  options.strictness, options.limits, &arena()));
  return opened;
}

Status HeaderReader::Append(const HeaderTensor& tensor, uint64_t data_offset) {
  const uint8_t in_item = Describe(tensor.dtype).item_elements;
  FlatTensor flat = {.name = tensor.name,
                     .dtype = tensor.dtype,
                     .shape = tensor.shape,
                     .offset = data_offset + tensor.begin,
                     .nbytes = tensor.end - tensor.begin};
  if (in_item > 1) {
    // An item contains several elements of the last dimension. If items would
    // extend past the end of that dimension, the tensor can only be expressed
    // as a flat list of items.
    const bool fits =
        !tensor.shape.empty() && tensor.shape.back() % in_item == 0;
    const size_t rank = fits ? tensor.shape.size() : 1;
    auto* shape =
        static_cast<int64_t*>(arena().Allocate(rank * sizeof(int64_t)));
    if (fits) std::ranges::copy(tensor.shape, shape);
    shape[rank - 1] =
        fits ? tensor.shape.back() / in_item
             : static_cast<int64_t>(flat.nbytes / ItemBytes(flat.dtype));
    flat.shape = {shape, rank};
  }
  return FlatReader::Append(flat);
}

}  // namespace haulway::safetensors
