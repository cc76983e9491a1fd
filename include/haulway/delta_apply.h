// Applies versions of weights, in place, to a folder of safetensors files.
//
// The folder is kept as SGLang's receiver keeps it: `.weight_sync/state.json`
// states the version that it holds, and `.weight_sync/lock` is locked (flock)
// while it changes. docs/deltas.md describes both.

#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "haulway/fields.h"
#include "haulway/open.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

struct ApplyVersionsOptions {
  // The version to apply up to, by number or id; empty: the newest complete
  // one. "0": the checkpoint before the first version.
  std::string to;
  // The version that a target which states none, and is not empty, holds;
  // empty: such a target must be empty.
  std::string start;
  // `base`: the checkpoint before the first version, a folder or an s3:// name.
  SourceOptions source;
  int threads = 0;  // 0: as many as this process may use.
  // Whether the target survives a loss of power once it states the version.
  Durability durability = Durability::kFull;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

struct ApplyReport {
  // The version that the target held before; empty if it was empty.
  std::string from;
  std::string to;              // The version that it holds now.
  uint64_t versions = 0;       // How many were applied.
  uint64_t tensors = 0;        // Changes of tensors, summed over versions.
  uint64_t written_bytes = 0;  // Written to files of the target.
  bool resumed = false;        // An interrupted update was ended first.
  double seconds = 0;
};

inline constexpr FieldTable kApplyReportFields{

    Field("from", &ApplyReport::from,
          "version that the target held before; null if it was empty",
          Spelling::kTextOrNone),
    Field("to", &ApplyReport::to, "version that the target holds now"),
    Field("versions", &ApplyReport::versions, "versions that were applied"),
    Field("tensors", &ApplyReport::tensors,
          "tensors that the versions changed, each counted once a version"),
    Field("written_bytes", &ApplyReport::written_bytes,
          "bytes written to files of the target"),
    Field("resumed", &ApplyReport::resumed,
          "true if an interrupted update was ended first"),
    Field("seconds", &ApplyReport::seconds, "duration of the call"),
};
constexpr const auto& FieldsOf(const ApplyReport&) {
  return kApplyReportFields;
}

// Brings the local folder `target` to a version of the run in `uri`, in place.
//
// An empty target, or one that does not exist, first gets the files of the
// newest full version at or below the goal or, without one, of the base; what
// the full version lacks of configuration and tokenizer comes from the base, if
// that is given. A full version on the way replaces the files of the weights;
// others that it lacks stay. Symbolic and hard links in the target are
// replaced, never written through.
//
// Each version is applied as a whole or not at all. If it is refused, the
// target's bytes and the version that it states are those of the version
// before. If the process is killed, the target states the version before or the
// version, and holds it; or it states none: then OpenSource() refuses it, and
// the next call ends the update. If the machine stops meanwhile, the target
// must be filled anew, which the next call does if it finds a full version or
// the base. Waits while another process holds the lock.
//
// Fails with kInvalidArgument if a target that is not empty states no version,
// or a newer one than the goal; with kNotFound if a version of the chain, or
// the base, is nowhere; with kMismatch, kCorrupt or kTruncated for a version
// that opening would refuse, naming the tensor; with kCancelled; and as the
// system does.
HAULWAY_EXPORT Result<ApplyReport> ApplyVersions(
    std::string_view target, std::string_view uri,
    const ApplyVersionsOptions& options = {});

}  // namespace haulway
