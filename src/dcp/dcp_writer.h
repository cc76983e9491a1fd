// Writes directories of torch.distributed.checkpoint.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway::dcp {

// A directory layout: write all data files, then `.metadata`.
struct DirectoryToWrite {
  struct File {
    std::string name;  // Relative to the directory; not used by an older save.
    std::unique_ptr<const Layout> layout;
  };

  std::vector<File> files;
  std::string metadata;
};

inline constexpr std::string_view kMetadataName = ".metadata";

// Lays out the tensors as torch's writer would save them from one process: each
// is one chunk, an archive of torch.save(). `files` has the tensor numbers of
// each data file. `path` is recorded as the checkpoint's place. Requires:
// SettleTensors() was applied to `tensors`, and they outlive the layouts. Fails
// with kUnsupported for a dtype that torch cannot save.
Result<DirectoryToWrite> LayOutDirectory(
    const TensorsToWrite& tensors, std::span<const std::vector<uint32_t>> files,
    std::string_view path, const SaveOptions& options);

// Returns whether a file with this name, without a folder, belongs to a
// directory that torch or Haulway saved.
bool IsOfDirectory(std::string_view name);

}  // namespace haulway::dcp
