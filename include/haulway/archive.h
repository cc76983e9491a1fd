// The records of PyTorch's zip container: the counterpart of
// PyTorchStreamReader and PyTorchStreamWriter.
//
// An archive is a zip file whose records all lie in one folder. Record names
// are given without that folder: "data.pkl", "data/0".
// Threads: every const method may be called from many threads at once.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/fields.h"
#include "haulway/layout.h"
#include "haulway/options.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

struct ArchiveOptions {
  Strictness strictness = Strictness::kStrict;
  ParseLimits limits;
  bool verify_crc = true;  // Check the CRC-32 when a whole record is read.
  // False hides names that end in ".debug_pkl".
  bool load_debug_symbols = true;
};

struct RecordInfo {
  std::string_view name;       // Without the archive's folder.
  uint64_t header_offset = 0;  // Offset of the local header in the archive.
  uint64_t size = 0;           // Uncompressed size.
  uint64_t compressed_size = 0;
  uint32_t crc32 = 0;  // 0 for a non-empty record: not computed.
  bool deflated = false;
};

// A ChunkReader reads one record from start to end. Next() fills up to
// out.size() bytes and returns how many; 0 means the end. The call that reads
// the last byte fails with kMismatch if the CRC-32 differs. A ChunkReader keeps
// its archive alive. Not for two threads at once.
class HAULWAY_EXPORT ChunkReader {
 public:
  virtual ~ChunkReader() = default;
  virtual Result<uint64_t> Next(std::span<std::byte> out) = 0;
  virtual uint64_t record_size() const = 0;
};

class HAULWAY_EXPORT ArchiveReader {
 public:
  // Reads the directory, the version and the serialization id. Fails as rules
  // Z01 to Z23 of docs/formats/torch.md say.
  static Result<std::shared_ptr<const ArchiveReader>> Open(
      std::shared_ptr<const ByteSource> source,
      const ArchiveOptions& options = {});
  virtual ~ArchiveReader() = default;

  virtual std::string_view archive_name() const = 0;
  virtual uint64_t version() const = 0;
  virtual std::string_view serialization_id() const = 0;  // Empty if none.
  virtual const ByteSource& source() const = 0;
  // The records in directory order, without debug symbols if they are hidden.
  virtual const std::vector<RecordInfo>& records() const = 0;

  // Returns null if there is no such record. Case matters; kLenient falls back
  // to a name that differs only in case.
  virtual const RecordInfo* Find(std::string_view name) const = 0;
  bool Has(std::string_view name) const { return Find(name) != nullptr; }

  // Returns the whole record, inflated. Checks its local header and CRC-32. The
  // result is a view if the source has the bytes in memory. Fails with
  // kNotFound if there is no such record.
  virtual Result<Buffer> Read(std::string_view name) const = 0;
  // Read() into the caller's memory. Requires: out.size() is the record's size.
  virtual Status ReadInto(std::string_view name,
                          std::span<std::byte> out) const = 0;
  // Read() in pieces: calls `copy` with each piece and its offset.
  using CopyFunction =
      std::function<void(uint64_t offset, std::span<const std::byte> piece)>;
  virtual Status ReadChunked(std::string_view name, uint64_t chunk_bytes,
                             const CopyFunction& copy) const = 0;
  // Read() with several threads: one for this reader and one for each source in
  // `additional`, which must hold the same bytes. One thread reads a record
  // that is deflated or smaller than `threshold` bytes.
  virtual Status ReadParallel(
      std::string_view name,
      std::span<const std::shared_ptr<const ByteSource>> additional,
      uint64_t threshold, std::span<std::byte> out) const = 0;
  virtual Result<std::unique_ptr<ChunkReader>> OpenChunks(
      std::string_view name) const = 0;

  // Returns the offset of the payload in the archive. Reads and checks the
  // local header.
  virtual Result<uint64_t> DataOffset(std::string_view name) const = 0;
};

struct ArchiveWriterOptions {
  std::string archive_name = "archive";  // The folder of all records.
  uint64_t alignment = 64;  // Payload alignment: a power of two, at most 32768.
  bool compute_crc32 = true;
  int threads = 0;  // 0: as many as this process may use.
};

inline constexpr FieldTable kArchiveWriterOptionFields{

    Field("storage_alignment", &ArchiveWriterOptions::alignment,
          "alignment of payloads in the file, in bytes: a power of two up to "
          "32768",
          {.calls = "save plan",
           .formats = "torch",
           .unit = Quantity::kAlignment,
           .least = 1,
           .most = 32768,
           .flag = "--align"}),
    Field("compute_crc32", &ArchiveWriterOptions::compute_crc32,
          "store a CRC-32 of every record",
          {.calls = "save plan",
           .formats = "torch",
           .flag = "--no-crc",
           .off_meaning = "leave out checksums"}),
    Field("threads", &ArchiveWriterOptions::threads, kThreadsMeaning,
          {.most = kMostThreads, .in_python = false, .flag = "-"}),
};
constexpr const auto& FieldsOf(const ArchiveWriterOptions&) {
  return kArchiveWriterOptionFields;
}

// An ArchiveWriter writes records one after another and produces the same bytes
// as PyTorchStreamWriter. Deflated records are the exception: another library
// compresses them here, so their stored bytes differ but inflate to the same
// content. Nothing is visible before Finish(); a writer that fails or is
// destroyed earlier leaves no file. Not for two threads at once.
class HAULWAY_EXPORT ArchiveWriter {
 public:
  // Fails with kInvalidArgument for an invalid alignment or name, and as the
  // sink does.
  static Result<std::unique_ptr<ArchiveWriter>> Open(
      std::unique_ptr<ByteSink> sink, const ArchiveWriterOptions& options = {});
  virtual ~ArchiveWriter() = default;

  // Sets a lower bound for the version written: the largest one given here, and
  // at least 3.
  virtual void SetMinVersion(uint64_t version) = 0;

  // Writes a record, deflated if `compress` is set and the record has more than
  // three bytes. `bytes` may be reused on return. A record named
  // ".data/serialization_id" is skipped, because Finish() adds it. Fails with
  // kInvalidArgument for a name that is not allowed or was written before, and
  // after Finish(); otherwise as the sink does. After a failure of the sink
  // every later call fails too.
  virtual Status WriteRecord(std::string_view name,
                             std::span<const std::byte> bytes,
                             bool compress = false) = 0;
  // Leaves a hole of `size` bytes for a record that others fill.
  virtual Status WriteRecordMetadata(std::string_view name, uint64_t size) = 0;

  // Adds the records "version", "byteorder" and ".data/serialization_id" if
  // they are missing, writes the directory and commits the sink.
  virtual Status Finish() = 0;

  virtual bool finished() const = 0;
  virtual std::string_view archive_name() const = 0;
  virtual std::string_view serialization_id() const = 0;  // After Finish().
  // The records in the order in which they were written.
  virtual std::vector<RecordInfo> records() const = 0;
};

struct ArchiveRecord {
  std::string name;
  uint64_t size = 0;
  // The payload, as in Payload. If neither pointer is set, a hole is left.
  const std::byte* bytes = nullptr;
  const ByteSource* source = nullptr;
  uint64_t source_offset = 0;
};

// Lays out an archive of `records`, followed by the serialization id, for
// Write(). The bytes are those that an ArchiveWriter would write. Fails with
// kInvalidArgument for a name that is not allowed or occurs twice, and for an
// invalid alignment.
HAULWAY_EXPORT Result<std::unique_ptr<const Layout>> LayOutArchive(
    std::vector<ArchiveRecord> records,
    const ArchiveWriterOptions& options = {});

// One storage of the container that torch 1.5 and earlier write.
struct LegacyStorage {
  std::string key;
  uint64_t size = 0;
  uint64_t item_bytes = 1;  // Size of one element.
  // Borrowed from the caller; null leaves a hole.
  const std::byte* bytes = nullptr;
};

// Lays out the container of torch 1.5 and earlier for Write(): the bytes that
// torch.save() writes with _use_new_zipfile_serialization=False. `pickle` is
// the pickled object in `protocol`, 2 to 5; its persistent ids refer to
// storages by key. Fails with kInvalidArgument for another protocol, a key that
// occurs twice, and a storage whose size is not a whole number of elements.
HAULWAY_EXPORT Result<std::unique_ptr<const Layout>> LayOutLegacy(
    std::string_view pickle, std::vector<LegacyStorage> storages,
    int protocol = 2);

// Returns the name that PyTorch gives the archive in a file: the part of `path`
// after its last slash, up to the last dot in that part. Fails with
// kInvalidArgument if the name is empty.
HAULWAY_EXPORT Result<std::string> ArchiveNameOf(std::string_view path);

// Returns the offset of the payload of a record whose local header is at
// `header_offset`, in a file written by PyTorch or Haulway. Reads nothing.
// `full_name_length` includes the folder and the slash. Requires:
// alignment > 0.
HAULWAY_EXPORT uint64_t ComputePayloadOffset(uint64_t header_offset,
                                             uint64_t full_name_length,
                                             uint64_t size, uint64_t alignment);

}  // namespace haulway
