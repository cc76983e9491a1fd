// The manifest of a checkpoint of a run, `haulway.json`: its files with sizes
// and digests. No I/O.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway {

inline constexpr std::string_view kRunManifestName = "haulway.json";
inline constexpr uint64_t kMostManifestBytes = 64 * kMiB;
// The folder of one save in the folder of a step, where there is no rename.
inline constexpr std::string_view kSavePrefix = "save-";

struct ManifestFile {
  std::string name;  // Relative to the folder, or to `save`.
  uint64_t bytes = 0;
  Sha256Value sha256{};
};

struct RunManifest {
  uint64_t step = 0;
  std::string format{};
  std::string created{};  // "2026-11-29T08:00:00Z".
  std::string save{};     // Folder of the files, "save-..."; empty: no other.
  std::vector<ManifestFile> files{};
  std::string metadata{};  // JSON; empty if there is none.
};

// Returns whether `name` is a path that stays below the folder it is relative
// to: without "..", ".", empty parts, and null bytes.
bool IsPathBelow(std::string_view name);

// Parses a manifest. Fails with kCorrupt, kLimit, and with kUnsupported for a
// version other than 1.
Result<RunManifest> ParseRunManifest(std::string_view json);

// Requires: names, format and metadata are UTF-8.
std::string RunManifestToJson(const RunManifest& manifest);

}  // namespace haulway
