// Every format, loaded from every source in every way into every destination.

#pragma once

#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/load.h"

namespace haulway::test {

// A checkpoint of one format, and what opens it.
struct LoadFile {
  std::string name;  // The test's name.
  std::string bytes;
  OpenOptions open;
};
inline void PrintTo(const LoadFile& file, std::ostream* out) {
  *out << file.name;
}

// One of each format and of each way in which a format stores payloads.
std::vector<LoadFile> LoadFiles();

// Where the bytes are.
struct LoadSource {
  std::string name;
  // The modes that must work, beside kAuto.
  std::vector<IoMode> modes;
  // Those that may be kUnsupported, as the file system is.
  std::vector<IoMode> perhaps;
  std::shared_ptr<const ByteSource> source;
};

// The bytes in memory, behind a function, in a file, mapped, and in part of a
// larger file. `folder` is where files are made. `bytes` must outlive them.
std::vector<LoadSource> LoadSources(const std::string& bytes,
                                    const std::string& folder);

enum class Destination {
  kMemory,      // LoadStorages().
  kAllocated,   // LoadStorages() into memory of the caller.
  kEach,        // LoadEach() by plan.
  kCompletion,  // LoadEach() as they are done.
  kPieces,      // LoadPieces(), of 64 KiB.
};
inline constexpr Destination kDestinations[] = {
    Destination::kMemory, Destination::kAllocated, Destination::kEach,
    Destination::kCompletion, Destination::kPieces};
const char* Name(Destination destination);

// What was loaded, parallel to `rows`.
struct LoadedText {
  std::vector<std::string> storages;
  LoadStats stats;
};
Result<LoadedText> LoadVia(const Checkpoint& checkpoint,
                           std::span<const uint32_t> rows,
                           const LoadOptions& options, Destination destination);

std::vector<uint32_t> AllRows(const Checkpoint& checkpoint);

}  // namespace haulway::test
