// The zip format: end records, directory entries, local headers, descriptors.
//
// A codec: bytes in, facts out, no I/O. Section numbers are of PKWARE's
// APPNOTE 6.3; "spec" is docs/formats/torch.md, which also has the rules Z01
// to Z25 that are named here.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/encoder.h"
#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway::zip {

inline constexpr uint64_t kLocalHeaderBytes = 30;     // 4.3.7
inline constexpr uint64_t kDirectoryEntryBytes = 46;  // 4.3.12
inline constexpr uint64_t kEndBytes = 22;             // 4.3.16
inline constexpr uint64_t kZip64EndBytes = 56;        // 4.3.14
inline constexpr uint64_t kZip64LocatorBytes = 20;    // 4.3.15
inline constexpr uint64_t kLongestComment = 65535;
inline constexpr uint64_t kLongestDescriptor = 24;  // 4.3.9, with zip64
// The end of a file in which the end records must lie.
inline constexpr uint64_t kTailBytes =
    kEndBytes + kLongestComment + kZip64LocatorBytes + kZip64EndBytes;

inline constexpr uint16_t kFlagEncrypted = 1 << 0;  // 4.4.4
inline constexpr uint16_t kFlagDescriptor = 1 << 3;
inline constexpr uint16_t kMethodStored = 0;  // 4.4.5
inline constexpr uint16_t kMethodDeflated = 8;

// Where the directory lies, as the end records say.
struct EndRecords {
  uint64_t entries = 0;
  uint64_t directory_offset = 0;
  uint64_t directory_bytes = 0;
  uint64_t end_offset = 0;  // Where the end records begin.
  uint64_t file_end = 0;    // Where the last of them ends.
};

// `tail` is the end of a file of `file_size` bytes: all of it, or at least
// kTailBytes. Rules Z03, Z04, Z06, Z07, Z08.
Result<EndRecords> ParseEndRecords(std::span<const std::byte> tail,
                                   uint64_t file_size, Strictness strictness,
                                   const ParseLimits& limits);

// The versions that the end record of zip64 names: 4.3.14.
struct Zip64Versions {
  uint16_t made_by = 45;
  uint16_t needed = 45;
};

// Writes what stands behind a directory that ends at end.end_offset, and in
// front of that the records of zip64 if `zip64` is set.
void EncodeEndRecords(const EndRecords& end,
                      const std::optional<Zip64Versions>& zip64,
                      ByteEncoder* out);

struct Entry {
  std::string_view name;  // A view of the directory's bytes.
  uint64_t header_offset = 0;
  uint64_t compressed_size = 0;
  uint64_t size = 0;
  uint32_t crc32 = 0;
  uint16_t flags = 0;
  uint16_t method = 0;
  // Set once the reader knows them, see ZipReader.
  uint64_t payload_offset = 0;
  uint64_t end = 0;  // Where payload and descriptor end.

  bool is_folder() const { return name.ends_with('/'); }
  // Whether the writer of torch gives it a zip64 extra field (spec 2.1).
  bool is_big() const {
    return header_offset >= 0xFFFFFFFF || size >= 0xFFFFFFFF;
  }
};

// The whole directory. Rules Z09 to Z15, and Z08 for its size. `directory`
// must live as long as the entries.
Result<std::vector<Entry>> ParseDirectory(std::span<const std::byte> directory,
                                          const EndRecords& end,
                                          Strictness strictness);

// Fails with kInvalidArgument for a name that no reader takes from a record:
// one that leads out of its folder, or is too long for its field (rule Z15).
Status CheckPath(std::string_view name);

// The length of a local header with name and extra field, from its first
// kLocalHeaderBytes. Fails with kCorrupt without the signature.
Result<uint64_t> LocalHeaderLength(std::span<const std::byte> header);

// Compares the bytes from an entry's header to its payload with the directory
// (rule Z18). Requires: all of header.size() belongs to the header.
Status CheckLocalHeader(const Entry& entry, std::span<const std::byte> header);

// Compares the bytes after a payload with the directory (rule Z19); nothing to
// do for an entry without a descriptor.
Status CheckDescriptor(const Entry& entry, std::span<const std::byte> after);

}  // namespace haulway::zip
