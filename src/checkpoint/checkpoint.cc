#include "haulway/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/name_index.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/format_registry.h"
#include "haulway/open.h"
#include "tensor/byte_swap.h"
#include "tensor/strided.h"

namespace haulway {

namespace {
// What tensors may expect of memory they are read into: a cache line.
constexpr uint64_t kAlignment = 64;

struct NameOf {
  const LongVector<Entry>& entries;
  std::string_view operator()(uint32_t i) const { return entries[i].name; }
};
}  // namespace

// Filled when a name is first looked up: whoever lists or loads all tensors
// needs no names.
struct Checkpoint::Names {
  std::once_flag filled;
  bool has_index = false;  // No, if there was no memory for it.
  NameIndex index;
};

Checkpoint::Checkpoint(std::unique_ptr<const FormatReader> reader)
    : reader_(std::move(reader)) {
  names_ = std::make_unique<Names>();
}

Checkpoint::~Checkpoint() = default;

Result<std::shared_ptr<const Checkpoint>> Checkpoint::Open(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  if (source == nullptr) {
    return Status(Code::kInvalidArgument, "source is null");
  }
  const std::string name(source->name());
  const auto open = [&]() -> Result<std::shared_ptr<const Checkpoint>> {
    HAULWAY_ASSIGN(const FormatEntry* format,
                   DetectFormat(*source, options.strictness));
    HAULWAY_ASSIGN(auto reader, format->open(std::move(source), options));
    // Formats that can be encrypted say themselves why a key is not theirs, as
    // several files do.
    const FormatEntry& entry = EntryOf(reader->index().format);
    if (!options.key.empty() && !entry.can.encrypt && !IsOfShards(*format)) {
      return Status(Code::kAuth,
                    fmt::format("a key was given, but {} files are never "
                                "encrypted",
                                entry.name));
    }
    return std::make_shared<const Checkpoint>(std::move(reader));
  };
  auto checkpoint = OrNoMemory(open);
  if (!checkpoint.ok()) return std::move(checkpoint).status().Of(name);
  return checkpoint;
}

Result<std::shared_ptr<const Checkpoint>> Checkpoint::Open(
    std::string_view uri, const OpenOptions& options) {
  HAULWAY_ASSIGN(auto source, OpenSource(uri));
  return Open(std::move(source), options);
}

const TensorInfo* Checkpoint::Find(std::string_view name) const {
  const LongVector<Entry>& all = entries();
  std::call_once(names_->filled, [&] {
    try {
      names_->index.Reserve(all.size());
    } catch (const std::bad_alloc&) {
      return;
    }
    for (uint32_t i = 0; i < all.size(); ++i) {
      names_->index.Add(all[i].name, i, NameOf{all});
    }
    names_->has_index = true;
  });
  if (!names_->has_index) {
    const auto found = std::ranges::find(all, name, &Entry::name);
    return found == all.end() ? nullptr : &index().tensors[found->tensor];
  }
  const uint32_t row = names_->index.Find(name, NameOf{all});
  if (row == NameIndex::kNone) return nullptr;
  return &index().tensors[all[row].tensor];
}

Result<Buffer> Checkpoint::ReadStorage(uint32_t row) const {
  const StorageInfo& storage = index().storages[row];
  const auto read = [&]() -> Result<Buffer> {
    const uint64_t before = storage.offset - storage.frame_offset;
    const uint64_t frame_bytes = storage.frame_end - storage.frame_offset;
    const bool as_stored =
        storage.encoding == Encoding::kRaw && storage.swap_bytes == 1;
    // Without a view the frame is read into memory whole, and the payload
    // stays where it then lies, aligned, unless it must be inflated.
    std::optional<Buffer> frame;
    if (as_stored && storage.offset % storage.alignment() == 0) {
      frame = source().View(storage.frame_offset, frame_bytes);
    }
    if (!frame.has_value()) {
      const uint64_t phase = (kAlignment - before % kAlignment) % kAlignment;
      HAULWAY_ASSIGN(const Buffer memory, AllocateBuffer(phase + frame_bytes));
      frame = memory.Slice(phase, frame_bytes);
      if (frame_bytes != 0) {
        HAULWAY_TRY(
            source().ReadAt(storage.frame_offset, frame->mutable_bytes()));
      }
    }
    const auto header = frame->bytes().subspan(0, before);
    HAULWAY_TRY(reader_->CheckFrame(
        row, header, frame->bytes().subspan(before + storage.stored_bytes)));
    if (storage.encoding == Encoding::kZeros) {
      return AllocateBuffer(storage.nbytes);
    }
    if (as_stored || storage.nbytes == 0) {
      return frame->Slice(before, storage.nbytes);
    }
    const auto stored = frame->bytes().subspan(before, storage.stored_bytes);
    Buffer decoded = frame->Slice(before, storage.stored_bytes);
    if (storage.encoding == Encoding::kDeflate) {
      HAULWAY_ASSIGN(decoded, AllocateBuffer(storage.nbytes));
    }
    if (storage.encoding != Encoding::kRaw) {
      HAULWAY_TRY(
          reader_->Decode(row, header, 0, stored, decoded.mutable_bytes()));
    }
    SwapBytes(decoded.mutable_bytes(), storage.swap_bytes);
    return decoded;
  };
  auto bytes = OrNoMemory(read);
  if (!bytes.ok()) return std::move(bytes).status().Of(source().name());
  return bytes;
}

Status Checkpoint::Read(const TensorInfo& tensor,
                        std::span<std::byte> out) const {
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
  const StorageInfo& storage = index().storages[tensor.storage];
  const uint64_t item = ItemBytes(tensor.dtype);
  const uint64_t begin = tensor.storage_offset * item;
  if (storage.encoding == Encoding::kRaw &&
      IsContiguous(tensor.shape, tensor.strides)) {
    HAULWAY_TRY(ReadStorageRange(tensor.storage, begin, out));
    return Status();
  }
  HAULWAY_ASSIGN(const Buffer bytes, ReadStorage(tensor.storage));
  GatherElements(bytes.data() + begin, tensor.shape, tensor.strides, item, out);
  return Status();
}

Status Checkpoint::ReadStorageRange(uint32_t row, uint64_t offset,
                                    std::span<std::byte> out) const {
  const StorageInfo& storage = index().storages[row];
  if (!RangeFits(offset, out.size(), storage.nbytes)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("range ends past the storage: expected at most "
                              "{}, found {}",
                              storage.nbytes, offset + out.size()));
  }
  const auto read = [&]() -> Status {
    if (storage.encoding != Encoding::kRaw) {
      HAULWAY_ASSIGN(const Buffer bytes, ReadStorage(row));
      std::memcpy(out.data(), bytes.data() + offset, out.size());
      return Status();
    }
    const uint64_t before = storage.offset - storage.frame_offset;
    const uint64_t payload_end = storage.offset + storage.stored_bytes;
    std::vector<std::byte> frame(before + (storage.frame_end - payload_end));
    const std::span<std::byte> frame_bytes(frame);
    // A swap unit cut in two would come out wrong: take whole units.
    const uint64_t unit = storage.swap_bytes;
    if (offset % unit != 0 || out.size() % unit != 0) {
      return Status(Code::kInvalidArgument,
                    fmt::format("range cuts elements of {} bytes", unit));
    }
    const ReadRequest requests[] = {
        {storage.frame_offset, frame_bytes.subspan(0, before)},
        {storage.offset + offset, out},
        {payload_end, frame_bytes.subspan(before)},
    };
    HAULWAY_TRY(source().ReadMany(requests));
    HAULWAY_TRY(reader_->CheckFrame(row, frame_bytes.subspan(0, before),
                                    frame_bytes.subspan(before)));
    SwapBytes(out, storage.swap_bytes);
    return Status();
  };
  Status status = OrNoMemory(read);
  if (!status.ok()) return std::move(status).Of(source().name());
  return status;
}

}  // namespace haulway
