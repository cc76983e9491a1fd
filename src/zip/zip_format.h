// The zip format: end records, directory entries, local headers, descriptors.
//
// A codec: bytes in, facts out, no I/O. Section numbers are those of PKWARE's
// APPNOTE 6.3. docs/formats/torch.md has the rules Z01 to Z25.

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

inline constexpr uint64_t kLocalHeaderBytes = 30;             // 4.3.7
inline constexpr uint64_t kDirectoryEntryBytes = 46;          // 4.3.12
inline constexpr uint64_t kEndBytes = 22;                     // 4.3.16
inline constexpr uint64_t kZip64EndBytes = 56;                // 4.3.14
inline constexpr uint64_t kZip64LocatorBytes = 20;            // 4.3.15
inline constexpr uint32_t kDescriptorSignature = 0x08074B50;  // 4.3.9.3
inline constexpr uint32_t kFolderAttribute = 0x10;            // Of MS-DOS.
// The value of a field whose number stands in a zip64 field, and the largest.
inline constexpr uint64_t kMax16 = 0xFFFF;
inline constexpr uint64_t kMax32 = 0xFFFFFFFF;
inline constexpr uint64_t kLongestComment = 65535;
inline constexpr uint64_t kLongestDescriptor = 24;  // 4.3.9, with zip64
// Size of the end of a file that must contain the end records.
inline constexpr uint64_t kTailBytes =
    kEndBytes + kLongestComment + kZip64LocatorBytes + kZip64EndBytes;

inline constexpr uint16_t kFlagEncrypted = 1 << 0;  // 4.4.4
inline constexpr uint16_t kFlagDescriptor = 1 << 3;
inline constexpr uint16_t kMethodStored = 0;  // 4.4.5
inline constexpr uint16_t kMethodDeflated = 8;

// Where the directory is, by the end records.
struct EndRecords {
  uint64_t entries = 0;
  uint64_t directory_offset = 0;
  uint64_t directory_bytes = 0;
  uint64_t end_offset = 0;  // Where the end records begin.
  uint64_t file_end = 0;    // Where the last end record ends.
};

// Parses the end records by rules Z03, Z04, Z06, Z07 and Z08. `tail` is the end
// of a file of `file_size` bytes: all of it, or at least kTailBytes.
Result<EndRecords> ParseEndRecords(std::span<const std::byte> tail,
                                   uint64_t file_size, Strictness strictness,
                                   const ParseLimits& limits);

// The versions in the zip64 end record (APPNOTE 4.3.14).
struct Zip64Versions {
  uint16_t made_by = 45;
  uint16_t needed = 45;
};

// Encodes the end records of a directory that ends at end.end_offset: the zip64
// records if `zip64` is set, then the end record.
void EncodeEndRecords(const EndRecords& end,
                      const std::optional<Zip64Versions>& zip64,
                      ByteEncoder* out);

struct Entry {
  std::string_view name;
  uint64_t header_offset = 0;
  uint64_t compressed_size = 0;
  uint64_t size = 0;
  uint32_t crc32 = 0;
  uint16_t flags = 0;
  uint16_t method = 0;
  // Set once the reader knows them; see ZipReader.
  uint64_t payload_offset = 0;
  uint64_t end = 0;  // Where payload and descriptor end.

  bool is_folder() const { return name.ends_with('/'); }
  // Returns whether torch's writer adds a zip64 extra field to the entry.
  bool is_big() const {
    return header_offset >= 0xFFFFFFFF || size >= 0xFFFFFFFF;
  }
};

// What names are to a reader (rules Z15 and Z17).
enum class NameRule : uint8_t {
  kAnyCase,  // Paths, and "A" equals "a", as in torch's archives.
  kPaths,    // Paths; they must not lead out of a folder.
  kKeys,     // Keys, as in NumPy's archives: nothing is unpacked.
};

// Parses the whole directory by rules Z09 to Z15, and Z08 for its size.
// `directory` must outlive the entries.
Result<std::vector<Entry>> ParseDirectory(std::span<const std::byte> directory,
                                          const EndRecords& end,
                                          Strictness strictness,
                                          NameRule names = NameRule::kAnyCase);

// Fails with kInvalidArgument for a name that no reader accepts: one that is
// too long for its field, or that breaks rule Z15.
Status CheckName(std::string_view name, NameRule rule = NameRule::kAnyCase);

// Returns the length of a local header including name and extra field, from its
// first kLocalHeaderBytes. Fails with kCorrupt without the signature.
Result<uint64_t> LocalHeaderLength(std::span<const std::byte> header);

// Compares the bytes from an entry's header to its payload with the directory
// (rule Z18). Requires: `header` has no other bytes.
Status CheckLocalHeader(const Entry& entry, std::span<const std::byte> header);

// Compares the bytes after a payload with the directory (rule Z19). Does
// nothing for an entry without a descriptor.
Status CheckDescriptor(const Entry& entry, std::span<const std::byte> after);

}  // namespace haulway::zip
