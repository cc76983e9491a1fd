// What the index of a version of weights says about it.
//
// A version is a folder with model.safetensors.index.json. It is a full
// checkpoint, or it holds what changed since an older version: then the
// metadata of its index have the key delta_encoding. No I/O.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/index.h"
#include "haulway/status.h"

namespace haulway::delta {

// How a frame changes a tensor.
enum class Change : uint8_t {
  kXor,        // Bytes to combine with all bytes of the tensor.
  kOverwrite,  // Positions of bytes, and their new values.
};
std::string_view Name(Change change);
std::optional<Change> ChangeFromName(std::string_view name);

// The checksum of a tensor's new bytes.
enum class ChecksumKind : uint8_t { kXxh3, kBlake3, kAdler32 };
std::string_view Name(ChecksumKind kind);
std::optional<ChecksumKind> ChecksumKindFromName(std::string_view name);

struct VersionFacts {
  std::string version;
  std::string base;  // The version on which this one builds.
  Change change = Change::kXor;
  ChecksumKind checksum = ChecksumKind::kXxh3;
};

// Returns whether an index with this metadata is that of a delta.
bool IsDelta(std::span<const Fact> metadata);

// Returns the version that the metadata state: a text, or a number, to which
// zeros are added as writers do: "000004". nullopt if they state none.
std::optional<std::string> VersionOf(std::span<const Fact> metadata);

// Reads the facts of a delta. `folder` is the name of its folder, or empty.
// Requires: IsDelta(). Fails with kCorrupt if a version is missing or builds on
// itself, with kMismatch if the folder's name has another number, and with
// kUnsupported for an unknown encoding, compression or checksum.
Result<VersionFacts> ReadVersionFacts(std::span<const Fact> metadata,
                                      std::string_view folder);

// Fails with kMismatch if a folder of this name holds another number than that
// of `version`. `folder` may be empty.
Status CheckFolder(std::string_view folder, std::string_view version);

// Returns whether two texts name the same version: they are equal, or numbers
// that are equal.
bool IsSameVersion(std::string_view a, std::string_view b);

// Returns whether both texts have numbers, and that of `a` is less.
bool IsOlderVersion(std::string_view a, std::string_view b);

// Fails with kMismatch unless a checkpoint that states that it is version
// `states`, or states none, may stand for `base`, on which `version` builds.
// Version 0 is whatever the run began with. A base that has no number is
// accepted: nothing tells which checkpoint it is.
Status CheckBase(std::string_view version, std::string_view base,
                 const std::optional<std::string>& states);

// Returns the names that the folder of `base` may have if that of `version` is
// called `folder`: "weight_v000003" for "weight_v000004".
std::vector<std::string> FoldersOfBase(std::string_view folder,
                                       std::string_view version,
                                       std::string_view base);

// Returns the number in a version's text, "000004" or "v4", without leading
// zeros; empty if it is none.
std::string_view NumberOf(std::string_view version);

// Returns the digits with which a folder of a version ends: "000004" for
// "weight_v000004", "4" for "v4"; empty for any other name.
std::string_view DigitsOfFolder(std::string_view folder);

}  // namespace haulway::delta
