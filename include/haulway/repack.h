// Writing a PyTorch checkpoint anew: laid out as torch.save does, with another
// alignment or checksum, or without bytes that no tensor uses.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "haulway/archive.h"
#include "haulway/checkpoint.h"
#include "haulway/export.h"
#include "haulway/layout.h"
#include "haulway/status.h"

namespace haulway {

struct RepackOptions {
  ArchiveWriterOptions archive = {};
  // Leave out what no tensor uses: bytes before the first and after the last
  // element that some tensor reaches, and storages that none reaches.
  bool compact = false;
};

struct Repacked {
  std::unique_ptr<const Layout> layout;  // For Write().
  uint64_t storages = 0;
  uint64_t dropped_bytes = 0;  // Of storages, by `compact`.
};

// Lays out the object of a checkpoint anew. Storages are numbered in the order
// in which the object names them; big-endian ones are turned around. Blocks:
// storages that are not in memory are read. `checkpoint` must outlive the
// layout. Fails with kUnsupported for a checkpoint without a pickled object
// (TorchScript, torch.package, other formats) or from
// torch 0.3 and before, else as reading does.
HAULWAY_EXPORT Result<Repacked> Repack(const Checkpoint& checkpoint,
                                       const RepackOptions& options = {});

}  // namespace haulway
