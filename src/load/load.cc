#include "haulway/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/no_memory.h"
#include "decode/encoding_traits.h"
#include "decode/storage_decoder.h"
#include "io/join_ranges.h"
#include "load/choose_io.h"
#include "load/load_opened.h"
#include "load/load_progress.h"

namespace haulway {

Status CheckRows(const Checkpoint& checkpoint, std::span<const uint32_t> rows) {
  const auto& storages = checkpoint.index().storages;
  for (const uint32_t row : rows) {
    if (row >= storages.size()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("no storage {}: expected below {}", row,
                                storages.size()));
    }
    const StorageInfo& info = storages[row];
    if (!RangeFits(info.frame_offset, info.frame_end - info.frame_offset,
                   checkpoint.source().size())) {
      return Status(Code::kTruncated, "storage ends past the source")
          .At(info.frame_offset)
          .In(PlaceOf(info));
    }
  }
  return Status();
}

std::vector<ByteRange> FrameRanges(const Checkpoint& checkpoint,
                                   std::span<const uint32_t> rows,
                                   const LoadOptions& options) {
  std::vector<ByteRange> ranges;
  for (const uint32_t row : rows) {
    const StorageInfo& info = checkpoint.index().storages[row];
    const uint64_t length = info.frame_end - info.frame_offset;
    if (!ranges.empty() &&
        JoinRanges(
            &ranges.back(), {info.frame_offset, length},
            {.largest_hole = options.largest_hole, .may_overlap = false})) {
      continue;
    }
    if (length > 0) ranges.push_back({info.frame_offset, length});
  }
  return ranges;
}

std::vector<ByteRange> ViewRanges(const Checkpoint& checkpoint,
                                  std::span<const uint32_t> rows,
                                  const LoadOptions& options) {
  std::vector<ByteRange> ranges;
  if (options.allocate) return ranges;
  for (const uint32_t row : rows) {
    const StorageInfo& info = checkpoint.index().storages[row];
    if (!IsUsableInPlace(info)) continue;
    ranges.push_back({info.frame_offset, info.frame_end - info.frame_offset});
  }
  return ranges;
}

uint64_t TensorBytes(const Checkpoint& checkpoint,
                     std::span<const uint32_t> rows) {
  uint64_t bytes = 0;
  for (const uint32_t row : rows) {
    if (!CheckedAdd(bytes, checkpoint.index().storages[row].nbytes, &bytes)) {
      return UINT64_MAX;
    }
  }
  return bytes;
}

uint64_t FrameBytes(const Checkpoint& checkpoint,
                    std::span<const uint32_t> rows) {
  uint64_t bytes = 0;
  for (const uint32_t row : rows) {
    const StorageInfo& info = checkpoint.index().storages[row];
    if (!CheckedAdd(bytes, info.frame_end - info.frame_offset, &bytes)) {
      return UINT64_MAX;
    }
  }
  return bytes;
}

Result<LoadedStorages> LoadStorages(const Checkpoint& checkpoint,
                                    std::span<const uint32_t> storages,
                                    const LoadOptions& options) {
  auto loaded = OrNoMemory([&]() -> Result<LoadedStorages> {
    const StageClock clock;
    HAULWAY_TRY(CheckRows(checkpoint, storages));
    LoadedStorages result;
    HAULWAY_ASSIGN(
        const OpenedSource opened,
        OpenForLoading(checkpoint,
                       {.all = FrameRanges(checkpoint, storages, options),
                        .viewed = ViewRanges(checkpoint, storages, options)},
                       options));
    LoadProgress progress(options);
    HAULWAY_ASSIGN(result.buffers, LoadOpened(checkpoint, opened, storages,
                                              options, &progress));
    Record(opened, &result.stats);
    progress.Record(&result.stats);
    RecordRemote(opened, &result.stats);
    result.stats.tensor_bytes = TensorBytes(checkpoint, storages);
    result.stats.seconds = clock.seconds();
    return result;
  });
  if (!loaded.ok()) {
    return std::move(loaded).status().Of(checkpoint.source().name());
  }
  return loaded;
}

}  // namespace haulway
