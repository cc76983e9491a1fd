// Encodes the zip container byte for byte as PyTorch does (archive.h).
//
// A codec: facts in, bytes out, no I/O.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/encoder.h"
#include "haulway/status.h"

namespace haulway::zip {

// The record that Finish() adds. Callers cannot write it.
inline constexpr std::string_view kIdRecord = ".data/serialization_id";
inline constexpr uint64_t kIdBytes = 40;

// A record to write. Offsets are from the archive's start.
struct NewEntry {
  std::string name;  // Without the folder.
  uint64_t header_offset = 0;
  uint64_t payload_offset = 0;
  uint64_t size = 0;
  uint64_t stored_size = 0;  // Differs from size only if deflated.
  bool deflated = false;
  uint32_t crc32 = 0;
  // If the payload begins with a descriptor's signature: the four bytes after
  // it. torch's writer takes them for a descriptor.
  uint32_t false_descriptor = 0;
  bool has_false_descriptor = false;

  uint64_t payload_end() const { return payload_offset + stored_size; }
};

// Fails with kInvalidArgument unless `alignment` is a power of two from 1 to
// 32768. With more, headers cannot state the length of their padding.
Status CheckAlignment(uint64_t alignment);

// Sets payload_offset. Requires: CheckAlignment(alignment).
void Place(NewEntry* entry, std::string_view folder, uint64_t alignment);

// Encodes the bytes from header_offset to payload_offset.
void EncodeLocalHeader(const NewEntry& entry, std::string_view folder,
                       std::span<std::byte> out);
// Returns the size of the descriptor; 0 for an empty record.
uint64_t DescriptorBytes(const NewEntry& entry);
void EncodeDescriptor(const NewEntry& entry, std::span<std::byte> out);

// Returns the size of the directory and the three end records.
uint64_t EndBytes(std::span<const NewEntry> entries, std::string_view folder);
void EncodeEnd(std::span<const NewEntry> entries, std::string_view folder,
               uint64_t directory_offset, std::span<std::byte> out);

// The parts of EndBytes() and EncodeEnd(), for entries that are made one by
// one: first each entry, then the end records, with the same encoder.
uint64_t DirectoryEntryBytes(const NewEntry& entry, std::string_view folder);
void EncodeDirectoryEntry(const NewEntry& entry, std::string_view folder,
                          ByteEncoder* out);
void EncodeEndRecordsOf(uint64_t entries, uint64_t directory_offset,
                        ByteEncoder* out);

// A SerializationId computes the .data/serialization_id that torch writes after
// the records that were added.
class SerializationId {
 public:
  // `name` must outlive this.
  void Add(std::string_view name, const NewEntry& entry);
  std::string Digits() const;

 private:
  // The value depends on the order in which libstdc++ iterates the set, which
  // is the same for strings and views.
  std::unordered_set<std::string_view> names_;
  size_t crcs_ = 0;
};

// Fails with kInvalidArgument unless a record may have this name.
Status CheckName(std::string_view name, std::string_view folder);

}  // namespace haulway::zip
