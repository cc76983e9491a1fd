#include "zip/zip_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/text.h"
#include "haulway/archive.h"
#include "zip/zip_format.h"

namespace haulway::zip {

namespace {

constexpr uint64_t kMostAlignment = 32768;
constexpr uint16_t kFlagUtf8 = 1 << 11;
constexpr uint16_t kVersionDeflate = 20;  // APPNOTE 4.4.3.2
constexpr uint64_t kExtraHead = 4;

uint16_t Flags(const NewEntry& entry) {
  return entry.size == 0 ? kFlagUtf8 : kFlagUtf8 | kFlagDescriptor;
}
bool BigSize(const NewEntry& entry) { return entry.size >= kMax32; }
bool BigOffset(const NewEntry& entry) { return entry.header_offset >= kMax32; }

uint64_t Zip64Bytes(const NewEntry& entry) {
  if (!BigSize(entry) && !BigOffset(entry)) return 0;
  return kExtraHead + (BigSize(entry) ? 16 : 0) + (BigOffset(entry) ? 8 : 0);
}

// Encodes the zip64 extra field. `stored_size` is 0 in local headers.
void EncodeZip64(const NewEntry& entry, uint64_t stored_size,
                 ByteEncoder* out) {
  const uint64_t bytes = Zip64Bytes(entry);
  if (bytes == 0) return;
  out->U16(1);
  out->U16(bytes - kExtraHead);
  if (BigSize(entry)) {
    out->U64(entry.size);
    out->U64(stored_size);
  }
  if (BigOffset(entry)) out->U64(entry.header_offset);
}

uint64_t FullNameBytes(std::string_view name, std::string_view folder) {
  return folder.size() + 1 + name.size();
}

void EncodeName(const NewEntry& entry, std::string_view folder,
                ByteEncoder* out) {
  out->Text(folder);
  out->Text("/");
  out->Text(entry.name);
}

size_t Combine(size_t seed, size_t value) {
  return seed ^ (value + 0x9e3779b9 + (seed << 6) + (seed >> 2));
}

}  // namespace

Status CheckAlignment(uint64_t alignment) {
  if (alignment >= 1 && alignment <= kMostAlignment &&
      (alignment & (alignment - 1)) == 0) {
    return Status();
  }
  return Status(Code::kInvalidArgument,
                fmt::format("storage alignment: expected a power of two from 1 "
                            "to {}, found {}",
                            kMostAlignment, alignment));
}

Status CheckName(std::string_view name, std::string_view folder) {
  if (name.empty()) return Status(Code::kInvalidArgument, "record has no name");
  if (FullNameBytes(name, folder) > kMax16) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("name of record {} is too long: expected at most "
                    "{} bytes with its folder, found {}",
                    Quote(name), kMax16, FullNameBytes(name, folder)));
  }
  return Status();
}

void Place(NewEntry* entry, std::string_view folder, uint64_t alignment) {
  entry->payload_offset = ComputePayloadOffset(
      entry->header_offset, FullNameBytes(entry->name, folder), entry->size,
      alignment);
}

void EncodeLocalHeader(const NewEntry& entry, std::string_view folder,
                       std::span<std::byte> out) {
  const uint64_t name_bytes = FullNameBytes(entry.name, folder);
  const uint64_t padding = out.size() - kLocalHeaderBytes - name_bytes -
                           Zip64Bytes(entry) - kExtraHead;
  ByteEncoder encoder(out);
  encoder.Text(std::string_view("PK\3\4", 4));
  encoder.U16(entry.deflated ? kVersionDeflate : 0);
  encoder.U16(Flags(entry));
  encoder.U16(entry.deflated ? kMethodDeflated : kMethodStored);
  // Time, date, CRC-32 and sizes; the descriptor has the latter.
  encoder.Fill(16, 0);
  encoder.U16(name_bytes);
  encoder.U16(Zip64Bytes(entry) + kExtraHead + padding);
  EncodeName(entry, folder, &encoder);
  EncodeZip64(entry, 0, &encoder);
  encoder.Text("FB");
  encoder.U16(padding);
  encoder.Fill(padding, 'Z');
}

uint64_t DescriptorBytes(const NewEntry& entry) {
  if (entry.size == 0) return 0;
  return Zip64Bytes(entry) == 0 ? 16 : kLongestDescriptor;
}

void EncodeDescriptor(const NewEntry& entry, std::span<std::byte> out) {
  if (entry.size == 0) return;
  ByteEncoder encoder(out);
  encoder.U32(kDescriptorSignature);
  encoder.U32(entry.crc32);
  if (Zip64Bytes(entry) == 0) {
    encoder.U32(entry.stored_size);
    encoder.U32(entry.size);
  } else {
    encoder.U64(entry.stored_size);
    encoder.U64(entry.size);
  }
}

uint64_t DirectoryEntryBytes(const NewEntry& entry, std::string_view folder) {
  return kDirectoryEntryBytes + FullNameBytes(entry.name, folder) +
         Zip64Bytes(entry);
}

uint64_t EndBytes(std::span<const NewEntry> entries, std::string_view folder) {
  uint64_t bytes = kZip64EndBytes + kZip64LocatorBytes + kEndBytes;
  for (const NewEntry& entry : entries) {
    bytes += DirectoryEntryBytes(entry, folder);
  }
  return bytes;
}

void EncodeDirectoryEntry(const NewEntry& entry, std::string_view folder,
                          ByteEncoder* out) {
  const bool is_folder = entry.name.ends_with('/');
  out->Text(std::string_view("PK\1\2", 4));
  out->U16(0);  // Version made by.
  out->U16(entry.deflated ? kVersionDeflate : 0);
  out->U16(Flags(entry));
  out->U16(entry.deflated ? kMethodDeflated : kMethodStored);
  out->U32(0);  // Time and date.
  out->U32(entry.crc32);
  out->U32(std::min(entry.stored_size, kMax32));
  out->U32(std::min(entry.size, kMax32));
  out->U16(FullNameBytes(entry.name, folder));
  out->U16(Zip64Bytes(entry));
  out->Fill(6, 0);  // Comment, disk, internal attributes.
  out->U32(is_folder ? kFolderAttribute : 0);
  out->U32(std::min(entry.header_offset, kMax32));
  EncodeName(entry, folder, out);
  EncodeZip64(entry, entry.stored_size, out);
}

void EncodeEndRecordsOf(uint64_t entries, uint64_t directory_offset,
                        ByteEncoder* out) {
  const uint64_t directory_bytes = out->position();
  // The versions that torch writes.
  EncodeEndRecords({.entries = entries,
                    .directory_offset = directory_offset,
                    .directory_bytes = directory_bytes,
                    .end_offset = directory_offset + directory_bytes},
                   Zip64Versions{.made_by = 0x031E, .needed = 0x002D}, out);
}

void EncodeEnd(std::span<const NewEntry> entries, std::string_view folder,
               uint64_t directory_offset, std::span<std::byte> out) {
  ByteEncoder encoder(out);
  for (const NewEntry& entry : entries) {
    EncodeDirectoryEntry(entry, folder, &encoder);
  }
  EncodeEndRecordsOf(entries.size(), directory_offset, &encoder);
}

void SerializationId::Add(std::string_view name, const NewEntry& entry) {
  names_.insert(name);
  if (entry.has_false_descriptor) {
    crcs_ = Combine(crcs_, entry.false_descriptor);
  }
  if (entry.size > 0) crcs_ = Combine(crcs_, entry.crc32);
}

std::string SerializationId::Digits() const {
  size_t hash = 0;
  for (const std::string_view name : names_) {
    hash = Combine(hash, std::hash<std::string_view>()(name));
  }
  return fmt::format("{:020}{:020}", hash, crcs_);
}

}  // namespace haulway::zip
