// Property: opening any bytes as npy or npz, and reading every array, results
// in elements within the file or in a typed error. Input that strict reading
// accepts is accepted by lenient reading. A rewritten header of an array has
// the same content.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "haulway/format.h"
#include "haulway/source.h"
#include "npy/npy_header.h"
#include "npy/npy_reader.h"
#include "npy/npz_reader.h"

namespace {

using haulway::FormatReader;
using haulway::OpenOptions;
using haulway::StorageInfo;
using haulway::Strictness;
using haulway::TensorInfo;

using SourcePtr = std::shared_ptr<const haulway::ByteSource>;

constexpr uint64_t kMostInflated = 1 << 20;

void ReadAll(const FormatReader& reader) {
  const auto& index = reader.index();
  const uint64_t size = reader.source()->size();
  for (uint32_t row = 0; row < index.storages.size(); ++row) {
    const StorageInfo& storage = index.storages[row];
    if (storage.frame_offset > storage.offset ||
        storage.offset > storage.frame_end || storage.frame_end > size ||
        storage.stored_bytes > storage.frame_end - storage.offset) {
      abort();
    }
    std::vector<std::byte> frame(storage.frame_end - storage.frame_offset);
    if (!reader.source()->ReadAt(storage.frame_offset, frame).ok()) abort();
    const std::span<const std::byte> bytes(frame);
    const uint64_t before = storage.offset - storage.frame_offset;
    if (!reader
             .CheckFrame(row, bytes.first(before),
                         bytes.subspan(before + storage.stored_bytes))
             .ok() ||
        storage.encoding != haulway::Encoding::kDeflate) {
      continue;
    }
    std::vector<std::byte> out(storage.nbytes);
    (void)reader.Decode(row, bytes.first(before), 0,
                        bytes.subspan(before, storage.stored_bytes), out);
  }
}

void WriteAgain(const TensorInfo& tensor) {
  const auto head = haulway::npy::EncodeHeader(tensor.dtype, tensor.shape);
  if (!head.ok()) abort();
  const auto bytes = std::as_bytes(std::span(*head));
  const haulway::ParseLimits limits;
  const auto prefix = haulway::npy::ParsePrefix(
      bytes.first(haulway::npy::kPrefixBytes), bytes.size(), limits);
  if (!prefix.ok() || prefix->data_offset() != bytes.size()) abort();
  haulway::TreeArena arena;
  const auto header = haulway::npy::ParseHeader(
      *prefix, bytes.subspan(prefix->prefix_bytes), tensor.nbytes,
      Strictness::kStrict, limits, &arena);
  if (!header.ok() || header->dtype != tensor.dtype ||
      !std::ranges::equal(header->shape, tensor.shape)) {
    abort();
  }
}

template <class Open>
void Try(const SourcePtr& source, const Open& open, bool is_array) {
  OpenOptions options;
  options.limits.max_inflated_bytes = kMostInflated;
  const auto strict = open(source, options);
  options.strictness = Strictness::kLenient;
  const auto lenient = open(source, options);
  if (strict.ok() && !lenient.ok()) abort();
  for (const auto* reader : {&strict, &lenient}) {
    if (!reader->ok()) continue;
    ReadAll(***reader);
    if (is_array) WriteAgain((**reader)->index().tensors[0]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto source =
      haulway::MakeMemorySource(std::as_bytes(std::span(data, size)));
  Try(source, haulway::npy::OpenNpy, /*is_array=*/true);
  Try(source, haulway::npy::OpenNpz, /*is_array=*/false);
  return 0;
}
