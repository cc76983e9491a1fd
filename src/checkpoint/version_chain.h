// Opens a version of weights with the versions on which it builds.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/sharded_index.h"
#include "delta/version_reader.h"
#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway {

// Opens the version whose index was read from `source`, the deltas before it,
// and the full checkpoint with which they begin. Fails with kNotFound if a base
// is nowhere, with kCorrupt if the versions go in a circle, and as the files of
// each version do.
Result<std::unique_ptr<const FormatReader>> OpenVersion(
    const ByteSource& source, const ShardedIndex& index,
    const OpenOptions& options);

// As OpenVersion().
Result<std::unique_ptr<const delta::VersionReader>> OpenVersionReader(
    const ByteSource& source, const ShardedIndex& index,
    const OpenOptions& options);

// A tensor whose bytes are not those of its checksum, or cannot be decoded.
struct WrongTensor {
  Status status;
  std::string tensor;
  uint32_t delta = 0;  // Row of VersionReader::deltas().
};

struct CheckedTensors {
  std::vector<WrongTensor> wrong;
  uint64_t bytes = 0;  // The sum over tensors with a checksum.
};

// Decodes all changed tensors, on `threads` threads, and compares the checksums
// of all versions. Fails if a source fails, and with kCancelled if `cancel` is
// set.
Result<CheckedTensors> CheckChanged(const delta::VersionReader& reader,
                                    int threads,
                                    const std::atomic<bool>* cancel);

// Compares the tensors of a full version with the adler32 that its metadata may
// have. Fails as CheckChanged() does.
Result<CheckedTensors> CheckFull(const FormatReader& reader, int threads,
                                 const std::atomic<bool>* cancel);

// Verifies the full checkpoint, then every changed tensor with the checksums of
// all versions.
Result<VerifyReport> VerifyVersion(const ByteSource& source,
                                   const ShardedIndex& index,
                                   const VerifyOptions& options);

// Opens the files of one delta and checks them. Does not open its base.
Result<delta::OpenedDelta> OpenDelta(const ByteSource& source,
                                     const ShardedIndex& index,
                                     const OpenOptions& options);

// Fails with kUnsupported if the file is a shard of a delta, whose tensors are
// changes and not those of a model.
Status RefuseDeltaShard(const FormatReader& reader);
// Verifies a safetensors file. A shard of a delta without an index beside it is
// a finding.
Result<VerifyReport> VerifySafetensorsFile(
    std::shared_ptr<const ByteSource> source, const VerifyOptions& options);

}  // namespace haulway
