// Design: a codec by PKWARE's APPNOTE. It is as strict as readers that disagree
// make necessary: facts that are stored twice (local header and directory,
// 32-bit and zip64 fields, sizes in descriptors) must be equal, so that no two
// readers find different records in one file. Rules have the numbers of
// docs/formats/torch.md. The last end record counts, as in PyTorch; its
// signature inside a comment or payload is not a second one.
//
// Alternatives not taken: libzip and minizip read names and offsets, but
// neither computes where a payload is without a request, nor refuses what
// PyTorch would read otherwise. Encoding is here and in zip_writer.cc, in field
// order.

#include "zip/zip_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/text.h"
#include "haulway/archive.h"

namespace haulway {

uint64_t ComputePayloadOffset(uint64_t header_offset, uint64_t full_name_length,
                              uint64_t size, uint64_t alignment) {
  constexpr uint64_t kMax32 = zip::kMax32;
  constexpr uint64_t kExtraHead = 4;  // Id and length of an extra field.
  uint64_t start =
      header_offset + zip::kLocalHeaderBytes + full_name_length + kExtraHead;
  if (size >= kMax32 || header_offset >= kMax32) {
    start += kExtraHead + (size >= kMax32 ? 16 : 0) +
             (header_offset >= kMax32 ? 8 : 0);
  }
  return (start + alignment - 1) / alignment * alignment;
}

}  // namespace haulway

namespace haulway::zip {

namespace {

constexpr uint32_t kLocalSignature = 0x04034B50;         // 4.3.7
constexpr uint32_t kDirectorySignature = 0x02014B50;     // 4.3.12
constexpr uint32_t kZip64EndSignature = 0x06064B50;      // 4.3.14
constexpr uint32_t kZip64LocatorSignature = 0x07064B50;  // 4.3.15
constexpr std::string_view kEndText = "PK\5\6";          // 4.3.16
constexpr uint16_t kZip64ExtraId = 0x0001;               // 4.5.3
// APPNOTE 4.4.4: encryption, patched data, strong encryption, masked headers.
constexpr uint16_t kRefusedFlags = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 13;

Status Wrong(std::string_view what, uint64_t byte) {
  return Status(Code::kCorrupt, what).At(byte);
}

struct End {
  uint16_t disk, directory_disk, disk_entries, entries;
  uint32_t directory_bytes, directory_offset;
  uint16_t comment;
};

End ParseEnd(std::span<const std::byte> bytes) {
  ByteCursor cursor(bytes);
  cursor.Skip(4);
  End end;
  end.disk = cursor.U16();
  end.directory_disk = cursor.U16();
  end.disk_entries = cursor.U16();
  end.entries = cursor.U16();
  end.directory_bytes = cursor.U32();
  end.directory_offset = cursor.U32();
  end.comment = cursor.U16();
  return end;
}

bool HasSignature(std::span<const std::byte> bytes, size_t at,
                  uint32_t signature) {
  return ByteCursor(bytes.subspan(at)).U32() == signature;
}

// Returns whether a 32-bit field agrees with the zip64 field that replaces it.
bool Agrees(uint64_t field, uint64_t saturated, uint64_t value) {
  return field == saturated || field == value;
}

// Reads the zip64 records before the end record, if they exist.
Status ApplyZip64(std::span<const std::byte> tail, uint64_t tail_offset,
                  size_t end_at, const End& end, Strictness strictness,
                  EndRecords* records) {
  const bool needed = end.entries == kMax16 || end.disk_entries == kMax16 ||
                      end.directory_bytes == kMax32 ||
                      end.directory_offset == kMax32;
  const bool present =
      end_at >= kZip64LocatorBytes &&
      HasSignature(tail, end_at - kZip64LocatorBytes, kZip64LocatorSignature);
  if (!present) {
    if (!needed || strictness == Strictness::kLenient) return Status();
    return Wrong("zip64 end record is needed and missing",
                 tail_offset + end_at);
  }
  const size_t locator_at = end_at - kZip64LocatorBytes;
  ByteCursor locator(tail.subspan(locator_at));
  locator.Skip(4);
  const uint32_t locator_disk = locator.U32();
  const uint64_t zip64_offset = locator.U64();
  const uint32_t disks = locator.U32();
  if (locator_disk != 0 || disks != 1) {
    return Wrong("zip64 locator names more than one disk",
                 tail_offset + locator_at);
  }
  const uint64_t locator_offset = tail_offset + locator_at;
  if (zip64_offset < tail_offset || zip64_offset >= locator_offset ||
      locator_offset - zip64_offset < kZip64EndBytes ||
      !HasSignature(tail, zip64_offset - tail_offset, kZip64EndSignature)) {
    return Wrong("zip64 locator does not point to a zip64 end record",
                 locator_offset);
  }
  ByteCursor zip64(tail.subspan(zip64_offset - tail_offset));
  zip64.Skip(4);
  const uint64_t record_bytes = zip64.U64();
  zip64.Skip(4);  // Version made by and needed.
  const uint32_t disk = zip64.U32();
  const uint32_t directory_disk = zip64.U32();
  const uint64_t disk_entries = zip64.U64();
  records->entries = zip64.U64();
  records->directory_bytes = zip64.U64();
  records->directory_offset = zip64.U64();
  records->end_offset = zip64_offset;
  if (record_bytes < kZip64EndBytes - 12) {
    return Wrong(fmt::format("zip64 end record is too short: expected at least "
                             "44 bytes, found {}",
                             record_bytes),
                 zip64_offset);
  }
  if (disk != 0 || directory_disk != 0) {
    return Wrong("zip64 end record names more than one disk", zip64_offset);
  }
  if (disk_entries != records->entries) {
    return Wrong("zip64 end record has two numbers of entries", zip64_offset);
  }
  if (strictness == Strictness::kLenient) return Status();
  if (record_bytes != locator_offset - zip64_offset - 12) {
    return Wrong("zip64 end record does not end at its locator", zip64_offset);
  }
  if (!Agrees(end.entries, kMax16, records->entries) ||
      !Agrees(end.disk_entries, kMax16, records->entries) ||
      !Agrees(end.directory_bytes, kMax32, records->directory_bytes) ||
      !Agrees(end.directory_offset, kMax32, records->directory_offset)) {
    return Wrong("zip64 end record contradicts the end record", zip64_offset);
  }
  return Status();
}

// Returns the payload of the zip64 extra field, or nullopt. Fails for malformed
// extra fields under kStrict.
Result<std::optional<std::span<const std::byte>>> FindZip64(
    std::span<const std::byte> extra) {
  ByteCursor cursor(extra);
  while (cursor.remaining() >= 4) {
    const uint16_t id = cursor.U16();
    const uint16_t length = cursor.U16();
    const auto bytes = cursor.Bytes(length);
    if (!cursor.ok()) return Status(Code::kCorrupt, "extra field is cut");
    if (id == kZip64ExtraId) return std::optional(bytes);
  }
  return std::optional<std::span<const std::byte>>();
}

bool IsUnsafe(std::string_view name, NameRule rule) {
  // Readers disagree on where a name with a NUL ends.
  if (name.find('\0') != name.npos) return true;
  if (rule == NameRule::kKeys) return false;
  if (name.starts_with('/') || name.find('\\') != name.npos) return true;
  while (true) {
    const size_t slash = name.find('/');
    if (name.substr(0, slash) == "..") return true;
    if (slash == name.npos) return false;
    name.remove_prefix(slash + 1);
  }
}

// Checks an entry by rules Z10 to Z15.
Status CheckEntry(const Entry& entry, uint32_t attributes,
                  Strictness strictness, NameRule names) {
  const auto wrong = [&](std::string_view what) {
    return Status(Code::kCorrupt,
                  fmt::format("record {} {}", Quote(entry.name), what));
  };
  if (entry.method != kMethodStored && entry.method != kMethodDeflated) {
    return Status(Code::kUnsupported,
                  fmt::format("record {} has compression method {}: expected "
                              "0 or 8",
                              Quote(entry.name), entry.method));
  }
  if ((entry.flags & kRefusedFlags) != 0) {
    return Status(Code::kUnsupported,
                  fmt::format("record {} is encrypted, patched or masked",
                              Quote(entry.name)));
  }
  if (entry.method == kMethodStored && entry.compressed_size != entry.size) {
    return wrong(fmt::format("is stored in {} bytes: expected its size {}",
                             entry.compressed_size, entry.size));
  }
  if (entry.size > 0 && entry.compressed_size == 0) {
    return wrong("has a size and no bytes");
  }
  if (strictness == Strictness::kLenient) return Status();
  if ((entry.is_folder() || (attributes & kFolderAttribute) != 0) &&
      (entry.size != 0 || entry.compressed_size != 0)) {
    return wrong("is a folder with data");
  }
  if (IsUnsafe(entry.name, names)) return wrong("has an unsafe path");
  return Status();
}

}  // namespace

Result<EndRecords> ParseEndRecords(std::span<const std::byte> tail,
                                   uint64_t file_size, Strictness strictness,
                                   const ParseLimits& limits) {
  const uint64_t tail_offset = file_size - tail.size();
  std::optional<size_t> found;
  // End records whose comment ends with the file.
  std::vector<size_t> candidates;
  const std::string_view text(reinterpret_cast<const char*>(tail.data()),
                              tail.size());
  const size_t span =
      std::min<size_t>(tail.size(), kEndBytes + kLongestComment);
  for (size_t at = text.find(kEndText, tail.size() - span);
       at != text.npos && at + kEndBytes <= tail.size();
       at = text.find(kEndText, at + 1)) {
    if (at + kEndBytes + ParseEnd(tail.subspan(at)).comment == tail.size()) {
      candidates.push_back(at);
    }
    // The last one in the file counts, as in torch.
    found = at;
  }
  if (!found.has_value()) {
    return Status(Code::kTruncated,
                  "failed finding central directory: no end record in the "
                  "last 65557 bytes")
        .At(file_size);
  }
  const size_t end_at = *found;
  const uint64_t end_offset = tail_offset + end_at;
  const End end = ParseEnd(tail.subspan(end_at));
  EndRecords records;
  records.entries = end.entries;
  records.directory_bytes = end.directory_bytes;
  records.directory_offset = end.directory_offset;
  records.end_offset = end_offset;
  records.file_end = end_offset + kEndBytes;
  if (strictness == Strictness::kStrict &&
      end_offset + kEndBytes != file_size) {
    return Wrong(fmt::format("{} bytes follow the end record: expected none",
                             file_size - end_offset - kEndBytes),
                 end_offset);
  }
  if (end.disk != end.directory_disk || end.disk > 1) {
    return Wrong("end record names more than one disk", end_offset);
  }
  if (end.disk != 0 && strictness == Strictness::kStrict) {
    return Wrong("end record names more than one disk", end_offset);
  }
  if (end.disk_entries != end.entries) {
    return Wrong(fmt::format("end record has two numbers of entries: {} and {}",
                             end.disk_entries, end.entries),
                 end_offset);
  }
  HAULWAY_TRY(ApplyZip64(tail, tail_offset, end_at, end, strictness, &records));

  if (records.entries == 0) {
    return Wrong("archive does not contain any files", end_offset);
  }
  if (records.entries > limits.max_entries) {
    return Status(Code::kLimit,
                  fmt::format("{} entries pass max_entries {}", records.entries,
                              limits.max_entries))
        .At(end_offset);
  }
  if (records.directory_bytes > limits.max_directory_bytes) {
    return Status(Code::kLimit, fmt::format("directory of {} bytes passes "
                                            "max_directory_bytes {}",
                                            records.directory_bytes,
                                            limits.max_directory_bytes))
        .At(end_offset);
  }
  // max_entries bounds this product.
  if (records.directory_bytes < kDirectoryEntryBytes * records.entries) {
    return Wrong(fmt::format("directory is too small: expected at least {} "
                             "bytes for {} entries, found {}",
                             kDirectoryEntryBytes * records.entries,
                             records.entries, records.directory_bytes),
                 end_offset);
  }
  if (!RangeFits(records.directory_offset, records.directory_bytes,
                 records.end_offset)) {
    return Wrong(fmt::format("directory of {} bytes at {} runs into the end "
                             "records at {}",
                             records.directory_bytes, records.directory_offset,
                             records.end_offset),
                 end_offset);
  }
  if (strictness == Strictness::kStrict) {
    for (const size_t at : candidates) {
      // The same bytes inside a payload are not a second end record.
      if (at != end_at && tail_offset + at >= records.directory_offset) {
        return Wrong("second end record", tail_offset + at);
      }
    }
  }
  return records;
}

void EncodeEndRecords(const EndRecords& end,
                      const std::optional<Zip64Versions>& zip64,
                      ByteEncoder* out) {
  if (zip64.has_value()) {
    out->Text(std::string_view("PK\6\6", 4));
    out->U64(kZip64EndBytes - 12);
    out->U16(zip64->made_by);
    out->U16(zip64->needed);
    out->U64(0);  // Disk numbers.
    out->U64(end.entries);
    out->U64(end.entries);
    out->U64(end.directory_bytes);
    out->U64(end.directory_offset);
    out->Text(std::string_view("PK\6\7", 4));
    out->U32(0);
    out->U64(end.end_offset);
    out->U32(1);
  }
  out->Text(std::string_view("PK\5\6", 4));
  out->U32(0);
  out->U16(std::min(end.entries, kMax16));
  out->U16(std::min(end.entries, kMax16));
  out->U32(std::min(end.directory_bytes, kMax32));
  out->U32(std::min(end.directory_offset, kMax32));
  out->U16(0);
}

Result<std::vector<Entry>> ParseDirectory(std::span<const std::byte> directory,
                                          const EndRecords& end,
                                          Strictness strictness,
                                          NameRule names) {
  std::vector<Entry> entries;
  entries.reserve(end.entries);
  ByteCursor cursor(directory);
  for (uint64_t i = 0; i < end.entries; ++i) {
    const uint64_t byte = end.directory_offset + cursor.position();
    if (cursor.remaining() < kDirectoryEntryBytes) {
      return Wrong(fmt::format("directory entry needs {} bytes, {} remain",
                               kDirectoryEntryBytes, cursor.remaining()),
                   byte);
    }
    if (cursor.U32() != kDirectorySignature) {
      return Wrong(fmt::format("directory entry {} has no signature", i), byte);
    }
    Entry entry;
    cursor.Skip(4);  // Version made by and needed.
    entry.flags = cursor.U16();
    entry.method = cursor.U16();
    cursor.Skip(4);  // Time and date.
    entry.crc32 = cursor.U32();
    entry.compressed_size = cursor.U32();
    entry.size = cursor.U32();
    const uint16_t name_length = cursor.U16();
    const uint16_t extra_length = cursor.U16();
    const uint16_t comment_length = cursor.U16();
    uint32_t disk = cursor.U16();
    cursor.Skip(2);  // Internal attributes.
    const uint32_t attributes = cursor.U32();
    entry.header_offset = cursor.U32();
    entry.name = cursor.Text(name_length);
    const auto extra = cursor.Bytes(extra_length);
    cursor.Skip(comment_length);
    if (!cursor.ok()) {
      return Wrong(fmt::format("directory entry {} ends past the directory", i),
                   byte);
    }
    const auto zip64 = FindZip64(extra);
    if (!zip64.ok() && strictness == Strictness::kStrict) {
      return zip64.status().At(byte);
    }
    const bool saturated = entry.size == kMax32 ||
                           entry.compressed_size == kMax32 ||
                           entry.header_offset == kMax32 || disk == kMax16;
    if (saturated) {
      if (!zip64.ok() || !zip64->has_value()) {
        return Wrong(fmt::format("record {} needs a zip64 extra field",
                                 Quote(entry.name)),
                     byte);
      }
      // APPNOTE 4.5.3: only the saturated fields, in this order.
      ByteCursor wide(**zip64);
      if (entry.size == kMax32) entry.size = wide.U64();
      if (entry.compressed_size == kMax32) entry.compressed_size = wide.U64();
      if (entry.header_offset == kMax32) entry.header_offset = wide.U64();
      if (disk == kMax16) disk = wide.U32();
      if (!wide.ok()) {
        return Wrong(fmt::format("zip64 extra field of record {} is cut",
                                 Quote(entry.name)),
                     byte);
      }
    }
    if (disk != 0) {
      return Wrong(
          fmt::format("record {} starts on another disk", Quote(entry.name)),
          byte);
    }
    uint64_t least = 0;
    if (!CheckedAdd(entry.compressed_size, kLocalHeaderBytes + name_length,
                    &least) ||
        !RangeFits(entry.header_offset, least, end.directory_offset)) {
      return Wrong(fmt::format("record {} at {} with {} bytes runs into the "
                               "directory at {}",
                               Quote(entry.name), entry.header_offset,
                               entry.compressed_size, end.directory_offset),
                   byte);
    }
    Status status = CheckEntry(entry, attributes, strictness, names);
    if (!status.ok()) return std::move(status).At(byte);
    entries.push_back(entry);
  }
  if (cursor.remaining() != 0 && strictness == Strictness::kStrict) {
    return Wrong(fmt::format("directory has {} bytes after its {} entries: "
                             "expected none",
                             cursor.remaining(), end.entries),
                 end.directory_offset + cursor.position());
  }
  return entries;
}

Status CheckName(std::string_view name, NameRule rule) {
  if (name.size() > kMax16) {
    return Status(Code::kInvalidArgument,
                  fmt::format("name has {} bytes: a zip has room for {}",
                              name.size(), kMax16));
  }
  if (IsUnsafe(name, rule)) {
    return Status(Code::kInvalidArgument,
                  "name would be an unsafe path in a zip");
  }
  return Status();
}

Result<uint64_t> LocalHeaderLength(std::span<const std::byte> header) {
  ByteCursor cursor(header);
  if (cursor.U32() != kLocalSignature) {
    return Status(Code::kCorrupt, "local header has no signature");
  }
  cursor.Skip(22);
  const uint64_t name_length = cursor.U16();
  const uint64_t extra_length = cursor.U16();
  if (!cursor.ok()) return Status(Code::kTruncated, "local header is cut");
  return kLocalHeaderBytes + name_length + extra_length;
}

Status CheckLocalHeader(const Entry& entry, std::span<const std::byte> header) {
  const auto wrong = [&](std::string_view what) {
    return Wrong(
        fmt::format("local header of record {} {}", Quote(entry.name), what),
        entry.header_offset);
  };
  ByteCursor cursor(header);
  if (cursor.U32() != kLocalSignature) return wrong("has no signature");
  cursor.Skip(2);  // Version needed.
  const uint16_t flags = cursor.U16();
  const uint16_t method = cursor.U16();
  cursor.Skip(4);  // Time and date.
  const uint32_t crc32 = cursor.U32();
  const uint64_t compressed_size = cursor.U32();
  const uint64_t size = cursor.U32();
  const uint16_t name_length = cursor.U16();
  const uint16_t extra_length = cursor.U16();
  const std::string_view name = cursor.Text(name_length);
  const auto extra = cursor.Bytes(extra_length);
  if (!cursor.ok() || cursor.remaining() != 0) {
    return wrong(fmt::format("has another length: expected {} bytes, found {}",
                             header.size(),
                             kLocalHeaderBytes + name_length + extra_length));
  }
  if (name != entry.name) {
    return wrong(fmt::format("has another name: found {}", Quote(name)));
  }
  if (flags != entry.flags) {
    return wrong(fmt::format("has other flags: expected {}, found {}",
                             entry.flags, flags));
  }
  if (method != entry.method) {
    return wrong(fmt::format("has another method: expected {}, found {}",
                             entry.method, method));
  }
  // A writer that did not know the values yet leaves zeros and sets bit 3.
  const bool later = (entry.flags & kFlagDescriptor) != 0 || entry.size == 0;
  if (crc32 != entry.crc32 && !(crc32 == 0 && later)) {
    return wrong(fmt::format("has another CRC-32: expected {}, found {}",
                             entry.crc32, crc32));
  }
  uint64_t wide_size = size;
  uint64_t wide_compressed = compressed_size;
  if (size == kMax32 || compressed_size == kMax32) {
    const auto zip64 = FindZip64(extra);
    if (!zip64.ok() || !zip64->has_value()) {
      return wrong("needs a zip64 extra field");
    }
    ByteCursor wide(**zip64);
    wide_size = wide.U64();
    wide_compressed = wide.U64();
    if (!wide.ok()) return wrong("has a zip64 extra field that is cut");
  }
  if (wide_size != entry.size && !(wide_size == 0 && later)) {
    return wrong(fmt::format("has another size: expected {}, found {}",
                             entry.size, wide_size));
  }
  if (wide_compressed != entry.compressed_size &&
      !(wide_compressed == 0 && later)) {
    return wrong(
        fmt::format("has another compressed size: expected {}, found "
                    "{}",
                    entry.compressed_size, wide_compressed));
  }
  return Status();
}

Status CheckDescriptor(const Entry& entry, std::span<const std::byte> after) {
  if ((entry.flags & kFlagDescriptor) == 0) return Status();
  // APPNOTE 4.3.9: with or without a signature, with 32-bit or 64-bit sizes.
  // Writers choose; any form that matches is accepted.
  const auto matches = [&](bool signed_record, bool wide) {
    ByteCursor cursor(after);
    if (signed_record && cursor.U32() != kDescriptorSignature) return false;
    const uint32_t crc32 = cursor.U32();
    const uint64_t compressed = wide ? cursor.U64() : cursor.U32();
    const uint64_t size = wide ? cursor.U64() : cursor.U32();
    return cursor.ok() && cursor.remaining() == 0 && crc32 == entry.crc32 &&
           compressed == entry.compressed_size && size == entry.size;
  };
  switch (after.size()) {
    case 12:
      if (matches(false, false)) return Status();
      break;
    case 16:
      if (matches(true, false)) return Status();
      break;
    case 20:
      if (matches(false, true)) return Status();
      break;
    case 24:
      if (matches(true, true)) return Status();
      break;
    default:
      break;
  }
  return Wrong(fmt::format("data descriptor of record {} is missing, or "
                           "differs from the directory",
                           Quote(entry.name)),
               entry.payload_offset + entry.compressed_size);
}

}  // namespace haulway::zip
