#include "decode/stored_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/no_memory.h"
#include "decode/encoding_traits.h"
#include "decode/range_decoder.h"
#include "decode/storage_decoder.h"
#include "tensor/byte_swap.h"
#include "tensor/strided.h"

namespace haulway {

namespace {
// Alignment of tensors in memory: a cache line.
constexpr uint64_t kAlignment = 64;
}  // namespace

Result<Buffer> ReadStorage(const FormatReader& reader, uint32_t row) {
  const StorageInfo& storage = reader.index().storages[row];
  const auto read = [&]() -> Result<Buffer> {
    const uint64_t before = storage.offset - storage.frame_offset;
    const uint64_t frame_bytes = storage.frame_end - storage.frame_offset;
    // If there is no view, the whole frame is read into memory. The payload
    // stays there, aligned, unless decoding needs other memory.
    std::optional<Buffer> frame;
    if (IsUsableInPlace(storage)) {
      frame = reader.source()->View(storage.frame_offset, frame_bytes);
    }
    const StorageDecoder decoder(reader, {.is_zeroed = true});
    if (frame.has_value()) {
      HAULWAY_TRY(decoder.CheckFrame(
          row, frame->bytes().first(before),
          frame->bytes().subspan(before + storage.stored_bytes)));
      return frame->Slice(before, storage.nbytes);
    }
    const uint64_t phase = (kAlignment - before % kAlignment) % kAlignment;
    HAULWAY_ASSIGN(const Buffer memory, AllocateBuffer(phase + frame_bytes));
    frame = memory.Slice(phase, frame_bytes);
    if (frame_bytes != 0) {
      HAULWAY_TRY(reader.source()->ReadAt(storage.frame_offset,
                                          frame->mutable_bytes()));
    }
    Buffer payload = frame->Slice(before, storage.stored_bytes);
    if (TraitsOf(storage).needs_memory()) {
      HAULWAY_ASSIGN(payload, AllocateBuffer(storage.nbytes));
    }
    const auto bytes_of = [](const Buffer& buffer) {
      return buffer.size() == 0 ? std::span<std::byte>()
                                : buffer.mutable_bytes();
    };
    HAULWAY_TRY(decoder.Finish(row, SplitFrame(storage, bytes_of(*frame)),
                               bytes_of(payload), 1));
    return payload;
  };
  auto bytes = OrNoMemory(read);
  if (!bytes.ok()) return std::move(bytes).status().Of(reader.source()->name());
  return bytes;
}

Status ReadTensor(const FormatReader& reader, const TensorInfo& tensor,
                  std::span<std::byte> out) {
  if (tensor.storage == kNoStorage) {
    return Status(Code::kInvalidArgument, "a meta tensor has no data to read");
  }
  if (out.size() != tensor.nbytes) {
    return Status(Code::kInvalidArgument,
                  fmt::format("memory for the tensor: expected {} bytes, "
                              "found {}",
                              tensor.nbytes, out.size()));
  }
  if (out.empty()) return Status();
  const StorageInfo& storage = reader.index().storages[tensor.storage];
  const uint64_t item = ItemBytes(tensor.dtype);
  const uint64_t begin = tensor.storage_offset * item;
  if (RangeDecoder::Takes(storage) &&
      IsContiguous(tensor.shape, tensor.strides)) {
    HAULWAY_TRY(ReadStorageRange(reader, tensor.storage, begin, out));
    return Status();
  }
  HAULWAY_ASSIGN(const Buffer bytes, ReadStorage(reader, tensor.storage));
  GatherElements(bytes.data() + begin, tensor.shape, tensor.strides, item, out);
  return Status();
}

Status ReadStorageRange(const FormatReader& reader, uint32_t row,
                        uint64_t offset, std::span<std::byte> out) {
  const StorageInfo& storage = reader.index().storages[row];
  if (!RangeFits(offset, out.size(), storage.nbytes)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("range ends past the storage: expected at most "
                              "{}, found {}",
                              storage.nbytes, offset + out.size()));
  }
  const auto read = [&]() -> Status {
    // A byte-swap unit must not be divided, so require whole units.
    const uint64_t swapped = storage.swap_bytes;
    if (RangeDecoder::Takes(storage) &&
        (offset % swapped != 0 || out.size() % swapped != 0)) {
      return Status(Code::kInvalidArgument,
                    fmt::format("range cuts elements of {} bytes", swapped));
    }
    if (!RangeDecoder::Takes(storage)) {
      HAULWAY_ASSIGN(const Buffer bytes, ReadStorage(reader, row));
      std::ranges::copy(bytes.bytes().subspan(offset, out.size()), out.begin());
      return Status();
    }
    const uint64_t payload_end = storage.offset + storage.stored_bytes;
    std::vector<std::byte> before(storage.offset - storage.frame_offset);
    std::vector<std::byte> after(storage.frame_end - payload_end);
    std::vector<ReadRequest> requests = {{storage.frame_offset, before},
                                         {payload_end, after}};
    // One request for all, if the bytes that the range needs are known.
    const bool is_raw = TraitsOf(storage).is_raw;
    if (is_raw) requests.push_back({storage.offset + offset, out});
    HAULWAY_TRY(reader.source()->ReadMany(requests));
    HAULWAY_ASSIGN(const auto decoder,
                   RangeDecoder::Open(reader, row, /*verify=*/false,
                                      std::move(before), after));
    if (!is_raw) {
      const auto [first, length] = decoder->UnitsOf(offset, out.size());
      HAULWAY_ASSIGN(const Buffer units, AllocateBuffer(length));
      const auto bytes = units.mutable_bytes();
      HAULWAY_TRY(reader.source()->ReadAt(storage.offset + first, bytes));
      HAULWAY_TRY(decoder->Decode(first, bytes));
      std::ranges::copy(bytes.subspan(offset - first, out.size()), out.begin());
    }
    SwapBytes(out, storage.swap_bytes);
    return Status();
  };
  Status status = OrNoMemory(read);
  if (!status.ok()) return std::move(status).Of(reader.source()->name());
  return status;
}

}  // namespace haulway
