// The record level of PyTorch's zip container: what PyTorchStreamReader and
// PyTorchStreamWriter do.
//
// An archive is a zip file whose records all lie under one folder. Names are
// given without that folder: "data.pkl", "data/0".
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
#include "haulway/options.h"
#include "haulway/save.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

struct ArchiveOptions {
  Strictness strictness = Strictness::kStrict;
  ParseLimits limits;
  bool verify_crc = true;          // On whole-record reads.
  bool load_debug_symbols = true;  // False hides names ending in ".debug_pkl".
};

struct RecordInfo {
  std::string_view name;       // Without the archive's folder.
  uint64_t header_offset = 0;  // Of the local header, from the archive start.
  uint64_t size = 0;           // Uncompressed.
  uint64_t compressed_size = 0;
  uint32_t crc32 = 0;  // 0 on a non-empty record: not computed.
  bool deflated = false;
};

// Returns min(chunk, remaining) bytes a call, 0 at the end. What brings the
// last byte fails with kMismatch if the CRC-32 differs. Keeps its archive
// alive. Not for two threads at once.
class HAULWAY_EXPORT ChunkReader {
 public:
  virtual ~ChunkReader() = default;
  virtual Result<uint64_t> Next(std::span<std::byte> out) = 0;
  virtual uint64_t record_size() const = 0;
};

class HAULWAY_EXPORT ArchiveReader {
 public:
  // Reads the directory, the version and the serialization id. Fails by rules
  // Z01 to Z23 of docs/formats/torch.md.
  static Result<std::shared_ptr<const ArchiveReader>> Open(
      std::shared_ptr<const ByteSource> source,
      const ArchiveOptions& options = {});
  virtual ~ArchiveReader() = default;

  virtual std::string_view archive_name() const = 0;
  virtual uint64_t version() const = 0;
  virtual std::string_view serialization_id() const = 0;  // Empty if none.
  virtual const ByteSource& source() const = 0;
  // In directory order. Debug symbols are left out if they are hidden.
  virtual const std::vector<RecordInfo>& records() const = 0;

  // Null if there is none. Exact case; kLenient falls back to any case.
  virtual const RecordInfo* Find(std::string_view name) const = 0;
  bool Has(std::string_view name) const { return Find(name) != nullptr; }

  // The whole record, inflated, its local header and CRC-32 checked; in place
  // where the source has it in memory. kNotFound if there is no such record.
  virtual Result<Buffer> Read(std::string_view name) const = 0;
  // The same into the caller's memory. Requires: out.size() is its size.
  virtual Status ReadInto(std::string_view name,
                          std::span<std::byte> out) const = 0;
  // The same in pieces: `copy` is called with each piece and its offset.
  using CopyFunction =
      std::function<void(uint64_t offset, std::span<const std::byte> piece)>;
  virtual Status ReadChunked(std::string_view name, uint64_t chunk_bytes,
                             const CopyFunction& copy) const = 0;
  // The same with one thread for this reader and one for each of
  // `additional`, which are sources of the same bytes. Records smaller than
  // `threshold` and deflated ones are read by one thread.
  virtual Status ReadParallel(
      std::string_view name,
      std::span<const std::shared_ptr<const ByteSource>> additional,
      uint64_t threshold, std::span<std::byte> out) const = 0;
  virtual Result<std::unique_ptr<ChunkReader>> OpenChunks(
      std::string_view name) const = 0;

  // Of the payload, from the local header: one read of the header, checked.
  virtual Result<uint64_t> DataOffset(std::string_view name) const = 0;
};

struct ArchiveWriterOptions {
  std::string archive_name = "archive";  // The folder of all records.
  uint64_t alignment = 64;  // Of payloads; a power of two up to 32768.
  bool compute_crc32 = true;
  int threads = 0;  // 0: as many as the machine lets this process use.
};

// Writes records one after another, each byte as PyTorchStreamWriter would,
// but for records that are deflated, which another library does here: they
// inflate to the same bytes, and are not the same when stored.
// Nothing is visible before Finish(); a writer that is dropped or has failed
// leaves no file. Not for two threads at once.
class HAULWAY_EXPORT ArchiveWriter {
 public:
  // Fails with kInvalidArgument for a wrong alignment or name, and as the
  // sink does.
  static Result<std::unique_ptr<ArchiveWriter>> Open(
      std::unique_ptr<ByteSink> sink, const ArchiveWriterOptions& options = {});
  virtual ~ArchiveWriter() = default;

  // The version written is the largest given here, and at least 3.
  virtual void SetMinVersion(uint64_t version) = 0;

  // Writes a record, deflated if `compress` (and longer than three bytes).
  // `bytes` are free for use again on return. A record named
  // ".data/serialization_id" is left out, since Finish() adds it. Fails with
  // kInvalidArgument for a name that was written before or is not allowed,
  // and after Finish(); else as the sink does, and so does every call after.
  virtual Status WriteRecord(std::string_view name,
                             std::span<const std::byte> bytes,
                             bool compress = false) = 0;
  // Leaves a hole of `size` bytes for a record, to be filled by others.
  virtual Status WriteRecordMetadata(std::string_view name, uint64_t size) = 0;

  // Adds the records "version", "byteorder" and ".data/serialization_id" where
  // they are missing, writes the directory, and commits the sink.
  virtual Status Finish() = 0;

  virtual bool finished() const = 0;
  virtual std::string_view archive_name() const = 0;
  virtual std::string_view serialization_id() const = 0;  // After Finish().
  // In the order in which they were written.
  virtual std::vector<RecordInfo> records() const = 0;
};

struct ArchiveRecord {
  std::string name;
  uint64_t size = 0;
  // As a Payload has them; without either a hole is left.
  const std::byte* bytes = nullptr;
  const ByteSource* source = nullptr;
  uint64_t source_offset = 0;
};

// The layout of an archive of these records and the serialization id after
// them, for Write(): the bytes that an ArchiveWriter would write, given
// the same. Fails with kInvalidArgument for a name that is not allowed or
// stands twice, and for a wrong alignment.
HAULWAY_EXPORT Result<std::unique_ptr<const Layout>> LayOutArchive(
    std::vector<ArchiveRecord> records,
    const ArchiveWriterOptions& options = {});

// One storage of the container of torch 1.5 and before.
struct LegacyStorage {
  std::string key;
  uint64_t size = 0;
  uint64_t item_bytes = 1;           // Of the elements that are counted.
  const std::byte* bytes = nullptr;  // The caller's; null leaves a hole.
};

// The layout of that container, for Write(): what torch.save() writes with
// _use_new_zipfile_serialization=False. `pickle` is that of the object, in
// this protocol, 2 to 5; its persistent ids name storages by their keys. Fails
// with kInvalidArgument for another protocol, a key that stands twice, and a
// storage that is not of whole elements.
HAULWAY_EXPORT Result<std::unique_ptr<const Layout>> LayOutLegacy(
    std::string_view pickle, std::vector<LegacyStorage> storages,
    int protocol = 2);

// The name that PyTorch gives the archive in a file: the part of `path` after
// its last slash, up to the last dot in that. Fails with kInvalidArgument if
// nothing is left.
HAULWAY_EXPORT Result<std::string> ArchiveNameOf(std::string_view path);

// Where the payload of a record starts whose local header is at
// `header_offset`, for a file that PyTorch (or Haulway) wrote; no reading.
// `full_name_length` counts the folder and slash. Requires: alignment > 0.
HAULWAY_EXPORT uint64_t ComputePayloadOffset(uint64_t header_offset,
                                             uint64_t full_name_length,
                                             uint64_t size, uint64_t alignment);

}  // namespace haulway
