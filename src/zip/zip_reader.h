// A ZipReader knows the records of a zip archive and their positions.
//
// Threads: const methods may be called from many threads at once.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/name_index.h"
#include "haulway/buffer.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "zip/zip_format.h"

namespace haulway::zip {

class ZipReader {
 public:
  // Reads the end of the source and the directory, in at most two reads, and
  // checks them (rules Z03 to Z17 and Z20).
  static Result<std::unique_ptr<ZipReader>> Open(
      std::shared_ptr<const ByteSource> source, Strictness strictness,
      const ParseLimits& limits, NameRule names = NameRule::kAnyCase);

  const std::shared_ptr<const ByteSource>& source() const { return source_; }
  const std::vector<Entry>& entries() const { return entries_; }
  const EndRecords& end() const { return end_; }
  const ParseLimits& limits() const { return limits_; }
  Strictness strictness() const { return strictness_; }

  // Returns the row in entries(); NameIndex::kNone if there is none. If several
  // records have the name, which kLenient allows, returns the last.
  uint32_t Find(std::string_view name) const;
  // As Find(), but ignores the case of ASCII letters. Requires:
  // NameRule::kAnyCase.
  uint32_t FindAnyCase(std::string_view name) const;

  // Computes where payloads begin from the directory alone, as torch's writer
  // places them, and sets payload_offset and end of every entry. Returns true
  // if the result agrees with the directory. Otherwise ResolveOffsets() must be
  // called. Requires: alignment > 0.
  bool ComputeOffsets(uint64_t alignment);

  // Reads and checks all local headers with two vectored reads (rules Z18 and
  // Z20), and sets payload_offset and end of every entry.
  Status ResolveOffsets();

  // Compares computed offsets with those in the local headers (rule O01).
  Status CompareOffsets() const;

  // Reads and inflates the payload of an entry whose offsets are set, and
  // checks its local header and descriptor. Requires: out.size() is its size.
  Status Read(const Entry& entry, std::span<std::byte> out) const;
  // As the other Read(), but without a copy if possible.
  Result<Buffer> Read(const Entry& entry) const;

  // Checks the bytes around a payload whose offsets are set.
  Status CheckFrame(const Entry& entry, std::span<const std::byte> before,
                    std::span<const std::byte> after) const;

  // Checks whether the limits allow an entry to inflate to its stated size.
  // Call it before memory is allocated.
  Status CheckSize(const Entry& entry) const;

  // As CheckSize(), for a record that will be parsed, which costs more memory
  // per byte.
  Status CheckMetadataSize(const Entry& entry) const;

  // Inflates to exactly out.size() bytes (rule Z22).
  Status Inflate(const Entry& entry, std::span<const std::byte> deflated,
                 std::span<std::byte> out) const;

 private:
  ZipReader(std::shared_ptr<const ByteSource> source, Strictness strictness,
            const ParseLimits& limits)
      : source_(std::move(source)), strictness_(strictness), limits_(limits) {}

  struct NameOf {
    const std::vector<Entry>& entries;
    std::string_view operator()(uint32_t i) const { return entries[i].name; }
  };
  struct FoldedOf {
    const ZipReader& zip;
    std::string_view operator()(uint32_t i) const {
      return zip.folded_names_[i].first;
    }
  };

  Status CheckInflation(const Entry& entry, uint64_t ratio,
                        std::string_view cap) const;
  Status ReadDirectory(NameRule names);
  Status KeepNames();
  Status IndexNames(NameRule rule);
  Status CheckPositions();
  // Returns the lengths of local headers, in the order of by_offset_.
  Result<std::vector<uint64_t>> ReadHeaderLengths() const;
  // Returns where the next record, or the directory, begins.
  uint64_t NextHeader(size_t position) const;

  const std::shared_ptr<const ByteSource> source_;
  const Strictness strictness_;
  const ParseLimits limits_;
  EndRecords end_;
  Buffer directory_;  // The names only, once it is parsed.
  std::vector<Entry> entries_;
  std::vector<uint32_t> by_offset_;  // Entries sorted by header_offset.
  NameIndex names_;
  std::string folded_text_;  // Lower-case forms of names that differ from them.
  std::vector<std::pair<std::string_view, uint32_t>> folded_names_;
  NameIndex folded_;
};

}  // namespace haulway::zip
