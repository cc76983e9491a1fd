// Writing directories of torch.distributed.checkpoint.

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

// A directory that is laid out: write all data files, then `.metadata`.
struct DirectoryToWrite {
  struct File {
    std::string name;  // In the directory; no older save has used it.
    std::unique_ptr<const Layout> layout;
  };

  std::vector<File> files;
  std::string metadata;
};

inline constexpr std::string_view kMetadataName = ".metadata";

// Lays out the tensors as torch's writer would save them from one process: each
// is one chunk, an archive of torch.save. `files` has the numbers of the
// tensors of each data file. Tensors must be settled (SettleTensors()) and
// outlive the layouts. `path` is noted as the place of the checkpoint. Fails
// with kUnsupported for a dtype that torch cannot save.
Result<DirectoryToWrite> LayOutDirectory(
    const TensorsToWrite& tensors, std::span<const std::vector<uint32_t>> files,
    std::string_view path, const SaveOptions& options);

// Whether a file of this name, without a folder, is part of a directory that
// torch or Haulway saved.
bool IsOfDirectory(std::string_view name);

}  // namespace haulway::dcp
