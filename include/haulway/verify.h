// Checking a checkpoint without loading it.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "haulway/export.h"
#include "haulway/index.h"
#include "haulway/limits.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// Bytes of the file that were not checked, and why.
struct Unchecked {
  std::string what;
  uint64_t offset;
  uint64_t bytes;
  bool needs_key = false;  // Could be checked with the key of the file.
};

struct VerifyReport {
  std::string file;
  Format format = Format::kTorch;
  bool ok = true;
  uint64_t checked_bytes = 0;  // Whose checksum was computed and compared.
  uint64_t file_bytes = 0;
  // Of encrypted files, whether it is known who wrote their metadata:
  // "checked", "not checked", for want of the key, or "none"; else empty.
  std::string authentication;
  std::vector<Unchecked> unchecked;
  std::vector<Finding> findings;
};

struct VerifyOptions {
  OpenOptions open;
  int threads = 0;
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

// Checks structure, every checksum and every cross-check. A file that is
// faulty gives a report with findings; only a source that cannot be read
// gives an error, and kCancelled where `cancel` was set.
HAULWAY_EXPORT Result<VerifyReport> Verify(
    std::shared_ptr<const ByteSource> source,
    const VerifyOptions& options = {});

// Verify() of a file that was come upon in a folder (ListFiles()): nullopt if
// it is no checkpoint, nor has a name that ends as those of checkpoints do, or
// is at fault and has another program's ending. Of an index of shards, only
// whether they agree with it is looked at: they lie in the folder, too.
HAULWAY_EXPORT Result<std::optional<VerifyReport>> VerifyFound(
    std::shared_ptr<const ByteSource> source,
    const VerifyOptions& options = {});

}  // namespace haulway
