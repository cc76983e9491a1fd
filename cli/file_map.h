// Maps a file: where storages and tensors are, the format's other data, holes,
// and how much of the file is in memory.
//
// Units: offsets and sizes are bytes. With several files, offsets count through
// all files, as in CheckpointIndex::parts.

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

// A range of bytes that belongs to no storage.
struct MapRange {
  enum class Kind : uint8_t {
    kHeader,     // The beginning of the file.
    kRecord,     // A member of an archive.
    kStructure,  // Other bytes of the format: directories, indexes.
    // Zeros. Of long ranges, only the first and last 64 KiB are checked; of a
    // file on a server, nothing is.
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
  std::vector<uint32_t> places;  // Rows of storages, sorted by offset.
  std::vector<MapRange> ranges;  // Sorted by offset.
  // Parallel to the index's storages: digests stored in the file, or known
  // without reading it.
  std::vector<std::optional<uint32_t>> crc32;
  std::vector<std::optional<std::array<std::byte, 32>>> sha256;
  // Percentage of each cell that was in the page cache before the file was
  // read; with several files, after their headers were read. Empty if not
  // known.
  uint64_t cell_bytes = 0;
  std::vector<uint8_t> cached;
};

// Maps a file. Reads its index and, unless it is on a server, frames and the
// bytes between them. Fails as opening does.
Result<FileMap> MakeFileMap(std::shared_ptr<const ByteSource> source,
                            const OpenOptions& options);

// Adds the fields that follow the file's name, with an object per row, for
// programs.
void AddFileMap(const FileMap& map, Json* json);

// Returns the map in columns, for the page. cli/map_page/page.js unpacks it.
std::string PackFileMap(const FileMap& map, const std::string& file);

}  // namespace haulway::cli
