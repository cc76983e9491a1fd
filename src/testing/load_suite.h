// Tests loading: every format, from every source, in every way, into every
// destination.

#pragma once

#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/load.h"

namespace haulway::test {

// A checkpoint of one format, with the options that open it.
struct LoadFile {
  std::string name;  // Name of the test.
  std::string bytes;
  OpenOptions open;
};
inline void PrintTo(const LoadFile& file, std::ostream* out) {
  *out << file.name;
}

// Returns one file per format and per way in which a format stores payloads.
std::vector<LoadFile> LoadFiles();

// A source of the bytes.
struct LoadSource {
  std::string name;
  // Modes that must work, in addition to kAuto.
  std::vector<IoMode> modes;
  // Modes that may be kUnsupported, depending on the file system.
  std::vector<IoMode> perhaps;
  std::shared_ptr<const ByteSource> source;
};

// Returns sources of the bytes: in memory, behind a function, in a file,
// mapped, and in part of a larger file. Files are created in `folder`. `bytes`
// must outlive the sources.
std::vector<LoadSource> LoadSources(const std::string& bytes,
                                    const std::string& folder);

enum class Destination {
  kMemory,      // LoadStorages().
  kAllocated,   // LoadStorages() into memory of the caller.
  kEach,        // LoadEach() in planned order.
  kCompletion,  // LoadEach() in order of completion.
  kPieces,      // LoadPieces() with pieces of 64 KiB.
};
inline constexpr Destination kDestinations[] = {
    Destination::kMemory, Destination::kAllocated, Destination::kEach,
    Destination::kCompletion, Destination::kPieces};
const char* Name(Destination destination);

// The loaded storages, parallel to `rows`.
struct LoadedText {
  std::vector<std::string> storages;
  LoadStats stats;
};
Result<LoadedText> LoadVia(const Checkpoint& checkpoint,
                           std::span<const uint32_t> rows,
                           const LoadOptions& options, Destination destination);

std::vector<uint32_t> AllRows(const Checkpoint& checkpoint);

}  // namespace haulway::test
