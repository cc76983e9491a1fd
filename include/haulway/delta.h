// Versions of weights: folders that each hold a full checkpoint, or what
// changed since an older one.
//
// One version is opened like any checkpoint (open.h). These functions look at
// all versions of a run. docs/deltas.md describes the format.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/fields.h"
#include "haulway/open.h"
#include "haulway/options.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

struct WeightVersion {
  std::string id;              // As other versions name it: "000004", "v4".
  uint64_t number = 0;         // In the id or, without one, in the folder.
  std::string kind = "delta";  // Or "full".
  // Only for a delta: the version on which it builds, "xor" or "overwrite", and
  // "xxh3-128", "blake3" or "adler32".
  std::string base;
  std::string encoding;
  std::string checksum;
  uint64_t tensors = 0;  // How many the index lists.
  uint64_t bytes = 0;    // Size of its shards.
  // Whether the index is valid, and every shard as long as its header says.
  bool complete = false;
  std::vector<std::string> missing;  // The files that are not.
  std::string path;                  // The version's folder.
};

inline constexpr FieldTable kWeightVersionFields{

    Field("id", &WeightVersion::id, "how other versions name it"),
    Field("number", &WeightVersion::number, "its number"),
    Field("kind", &WeightVersion::kind, "\"full\" or \"delta\""),
    Field("base", &WeightVersion::base,
          "version on which a delta builds; null for a full one",
          Spelling::kTextOrNone),
    Field("encoding", &WeightVersion::encoding,
          "\"xor\" or \"overwrite\"; null for a full version",
          Spelling::kTextOrNone),
    Field("checksum", &WeightVersion::checksum,
          "\"xxh3-128\", \"blake3\" or \"adler32\"; null for a full version",
          Spelling::kTextOrNone),
    Field("tensors", &WeightVersion::tensors, "tensors that its index lists"),
    Field("bytes", &WeightVersion::bytes, "size of its shards"),
    Field("complete", &WeightVersion::complete,
          "true if its index and all its shards are whole"),
    Field("missing", &WeightVersion::missing,
          "files that are not there, or "
          "not whole"),
    Field("path", &WeightVersion::path, "folder of the version",
          Spelling::kPath),
};
constexpr const auto& FieldsOf(const WeightVersion&) {
  return kWeightVersionFields;
}

// Returns the versions in a folder or below an s3:// name, sorted by number,
// incomplete ones too; those in its folder "updates" as well. Folders whose
// names begin with a dot are passed over. Fails with kUnsupported if the name
// cannot be listed, with kNotFound if there is no such folder, with kMismatch
// if two whole folders hold one version, and as requests do.
HAULWAY_EXPORT Result<std::vector<WeightVersion>> ListVersions(
    std::string_view uri, const RemoteOptions& remote = {});

// A fault of a version.
struct VersionFinding {
  Code code = Code::kOk;
  std::string message;
  std::string version;  // Its id.
  std::string tensor;   // Empty if the fault is not one tensor's.
};

inline constexpr FieldTable kVersionFindingFields{

    Field("code", &VersionFinding::code, "code of the fault, as of an error"),
    Field("message", &VersionFinding::message, "the fault, and its place"),
    Field("version", &VersionFinding::version, "the version with the fault"),
    Field("tensor", &VersionFinding::tensor,
          "the tensor with the fault; null if it is not one tensor's",
          Spelling::kTextOrNone),
};
constexpr const auto& FieldsOf(const VersionFinding&) {
  return kVersionFindingFields;
}

struct VersionsReport {
  bool ok = true;
  uint64_t versions = 0;
  uint64_t checked_bytes = 0;
  std::vector<VersionFinding> findings;
  // The versions that were not decoded because the checkpoint before the first
  // one is not beside them, and was not named.
  std::vector<std::string> unchecked;
};

inline constexpr FieldTable kVersionsReportFields{

    Field("ok", &VersionsReport::ok, "true if nothing is wrong"),
    Field("versions", &VersionsReport::versions, "number of versions"),
    Field("checked_bytes", &VersionsReport::checked_bytes,
          "bytes of tensors whose checksums were compared"),
    Field("findings", &VersionsReport::findings, "faults"),
    Field("unchecked", &VersionsReport::unchecked,
          "versions that were not decoded because the checkpoint before the "
          "first one was not named"),
};
constexpr const auto& FieldsOf(const VersionsReport&) {
  return kVersionsReportFields;
}

struct VerifyVersionsOptions {
  SourceOptions source;  // `base`: the checkpoint before the first version.
  int threads = 0;       // 0: as many as this process may use.
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

// Checks every version of a run: its files, and the checksums of every tensor
// after each version that changed it. A damaged version gives a report with
// findings. Fails as ListVersions() does, and if a source fails.
HAULWAY_EXPORT Result<VersionsReport> VerifyVersions(
    std::string_view uri, const VerifyVersionsOptions& options = {});

struct WriteVersionOptions {
  // How the version and its base are called, "000004" or "v4".
  std::string version;
  std::string base_version;
  std::string encoding = "xor";       // Or "overwrite".
  std::string checksum = "xxh3-128";  // Or "blake3", "adler32".
  uint64_t shard_bytes = 0;  // Most bytes of frames in a shard; 0: one shard.
  int threads = 0;           // 0: as many as this process may use.
  // Only for a local folder: whether it survives a loss of power.
  Durability durability = Durability::kFull;
  RemoteOptions remote{};                     // How URLs are reached.
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

// Writes the version that turns the checkpoint `before` into `after`, to the
// folder `out`, which must not exist: a local one appears in one step, and
// below an s3:// name the index is written last. Needs memory for the frames of
// all tensors that changed. Fails with kMismatch, naming the tensor, if a
// tensor is new, missing, or of another dtype or shape; with kInvalidArgument
// if the options contradict one another or `out` exists; and as reading and
// writing do. Then nothing is there.
HAULWAY_EXPORT Result<WeightVersion> WriteVersion(
    const Checkpoint& before, const Checkpoint& after, std::string_view out,
    const WriteVersionOptions& options);

}  // namespace haulway
