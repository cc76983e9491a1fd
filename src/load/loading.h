// The state that the routes of one load share.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "decode/storage_decoder.h"
#include "haulway/buffer.h"
#include "haulway/checkpoint.h"
#include "haulway/format.h"
#include "haulway/load.h"
#include "load/choose_io.h"
#include "load/load_memory.h"
#include "load/load_progress.h"
#include "load/read_plan.h"
#include "load/request_reader.h"
#include "load/staging.h"

namespace haulway {

// A Loading holds the request, the plan, the memory to fill, the reader and the
// decoder. A storage has three numbers: its row in the index; `i`, its position
// in `rows`; and `r`, its position in `to_read`, which the plan uses.
struct Loading {
  // Requires: all arguments outlive the Loading.
  Loading(const Checkpoint& checkpoint, const OpenedSource& opened,
          std::span<const uint32_t> rows, const LoadOptions& options,
          uint64_t chunk_bytes, LoadProgress* progress)
      : reader(checkpoint.reader()),
        index(checkpoint.index()),
        rows(rows),
        options(options),
        choice(opened.choice),
        chunk_bytes(chunk_bytes),
        progress(progress),
        requests(opened, options, progress),
        decoder(reader,
                {.verify = options.verify,
                 .is_zeroed = options.allocate == nullptr},
                progress),
        staging(options.memory_budget, progress),
        buffers(rows.size()) {}

  const StorageInfo& At(uint32_t i) const { return index.storages[rows[i]]; }
  const StorageInfo& ToRead(uint32_t r) const { return At(to_read[r]); }
  uint32_t RowOf(uint32_t r) const { return rows[to_read[r]]; }

  // Returns the memory of a storage's frame. Requires: the storage is not
  // staged.
  std::span<std::byte> FrameOf(uint32_t r) const {
    const StorageInfo& info = ToRead(r);
    return memory.At(plan.placements[r].frame,
                     info.frame_end - info.frame_offset);
  }
  // Hands out a storage. Requires: all its bytes are in memory.
  void Give(uint32_t r) {
    const uint64_t length = ToRead(r).nbytes;
    if (length == 0) return;
    buffers[to_read[r]] = memory.Slice(plan.placements[r].payload, length);
  }

  const FormatReader& reader;
  const CheckpointIndex& index;
  const std::span<const uint32_t> rows;
  const LoadOptions& options;
  const IoChoice& choice;
  const uint64_t chunk_bytes;  // Largest request.
  LoadProgress* const progress;
  const RequestReader requests;
  const StorageDecoder decoder;
  Staging staging;

  // Positions in `rows` of storages that are not views.
  std::vector<uint32_t> to_read;
  ReadPlan plan;  // The plan for `to_read`.
  LoadMemory memory;
  std::vector<Buffer> buffers;  // The result, parallel to `rows`.
};

}  // namespace haulway
