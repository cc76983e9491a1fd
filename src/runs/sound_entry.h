// Whether the files of a checkpoint are whole: by its manifest or, without one,
// by what each file says of itself.

#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "haulway/runs.h"
#include "haulway/status.h"
#include "runs/run_folder.h"
#include "runs/run_layout.h"
#include "runs/run_manifest.h"

namespace haulway {

// Returns whether a failure says that a checkpoint is not whole; others, such
// as of a network, say nothing of it.
bool IsDamage(const Status& status);

// Reads a JSON file as Python's json reads it: NaN and Infinity are numbers;
// they come back as 0. Fails with kCorrupt if it is not JSON.
Result<std::string> ReadJson(const RunFolder& run, const std::string& name);

// Returns the manifest in the folder of a checkpoint; nullopt if it has none.
// Fails as reading and parsing do, and with kMismatch if it is of another step.
Result<std::optional<RunManifest>> ManifestOf(const RunFolder& run,
                                              const FoundEntry& entry);

// Returns why the files are not those of the manifest.
Status CheckByManifest(const RunFolder& run, const FoundEntry& entry,
                       const RunManifest& manifest, const RunOptions& options);

// Returns why a file of a checkpoint without a manifest is not whole.
Status CheckSound(const RunFolder& run, const FoundEntry& entry,
                  const RunOptions& options);

// Returns how many threads the options mean.
int ThreadsOf(const RunOptions& options);

// Computes the digest of a file. Fails with kCancelled.
Result<Sha256Value> DigestOfFile(const ByteSource& source,
                                 const std::atomic<bool>* cancel);

}  // namespace haulway
