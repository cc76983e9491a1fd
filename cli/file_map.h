// What lies where in a file: storages and tensors, what the format keeps beside
// them, holes, and what of it is in memory.
//
// Units: offsets and sizes are bytes; of several files they count in all of
// them, one after another, as CheckpointIndex::parts has them.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "output.h"

namespace haulway::cli {

// A run of bytes that belongs to no storage.
struct MapRange {
  enum class Kind : uint8_t {
    kHeader,     // What the file begins with.
    kRecord,     // A member of an archive.
    kStructure,  // Other bytes of the format's own: directories, indexes.
    // Zeros; of long runs the first and last 64 KiB are looked at, and of what
    // a server has nothing is.
    kHole,
  };
  Kind kind = Kind::kHole;
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string name = {};  // The record's name.
};

struct FileMap {
  std::shared_ptr<const Checkpoint> checkpoint;
  uint64_t bytes = 0;            // Size of the source.
  std::vector<uint32_t> places;  // Rows of storages, by where they begin.
  std::vector<MapRange> ranges;  // By where they begin.
  // Parallel to the index's storages: what stands in the file, or was known
  // without reading it.
  std::vector<std::optional<uint32_t>> crc32;
  std::vector<std::optional<std::array<std::byte, 32>>> sha256;
  // How many percent of each cell were in the page cache before the file was
  // looked at; of several files, after their headers were. Empty where that is
  // not known.
  uint64_t cell_bytes = 0;
  std::vector<uint8_t> cached;
};

// Looks at a file. Nothing but its index is read, and frames and the bytes
// between them where that takes no server. Fails as opening does.
Result<FileMap> MakeFileMap(std::shared_ptr<const ByteSource> source,
                            const OpenOptions& options);

// A row an object, for programs: the fields that come after the file's name.
void AddFileMap(const FileMap& map, Json* json);

// The same in columns, for the page: cli/map_page/page.js unpacks it.
std::string PackFileMap(const FileMap& map, const std::string& file);

}  // namespace haulway::cli
