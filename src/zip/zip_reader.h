// A ZipReader knows what records a zip archive has and where they lie.
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

// Which names are the same to a reader (rule Z17).
enum class NameRule : uint8_t {
  kAnyCase,  // "A" is also "a", as in torch's archives.
  kExact,
};

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

  // The row in entries(); NameIndex::kNone if there is none. If several records
  // have the name, which kLenient allows, the last one.
  uint32_t Find(std::string_view name) const;
  // The same in any case of ASCII letters. Requires: NameRule::kAnyCase.
  uint32_t FindAnyCase(std::string_view name) const;

  // Computes where payloads begin from the directory alone, as the writer of
  // torch laid them out, and sets every entry's payload_offset and end; true
  // if that agrees with the directory (spec 10.5, steps 1 and 2). Otherwise
  // ResolveOffsets() must be called. Requires: alignment > 0.
  bool ComputeOffsets(uint64_t alignment);

  // Reads and checks all local headers in two vectored reads and sets every
  // entry's payload_offset and end. Rules Z18 and Z20.
  Status ResolveOffsets();

  // Compares computed offsets with those in the local headers (rule O01).
  Status CompareOffsets() const;

  // The payload of an entry whose offsets are set, inflated into `out`, its
  // local header and descriptor checked. Requires: out.size() is its size.
  Status Read(const Entry& entry, std::span<std::byte> out) const;
  // The same, in place where that is possible.
  Result<Buffer> Read(const Entry& entry) const;

  // What surrounds a payload whose offsets are set.
  Status CheckFrame(const Entry& entry, std::span<const std::byte> before,
                    std::span<const std::byte> after) const;

  // Whether an entry may inflate to the size it states, by the limits; to be
  // asked before memory for it is allocated.
  Status CheckSize(const Entry& entry) const;

  // The same for a record that will be parsed, whose bytes cost more.
  Status CheckMetadataSize(const Entry& entry) const;

  // Inflates exactly (rule Z22).
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
  Status ReadDirectory();
  Status IndexNames(NameRule rule);
  Status CheckPositions();
  // Local header lengths, in the order of by_offset_.
  Result<std::vector<uint64_t>> ReadHeaderLengths() const;
  // Where the next record, or the directory, begins.
  uint64_t NextHeader(size_t position) const;

  const std::shared_ptr<const ByteSource> source_;
  const Strictness strictness_;
  const ParseLimits limits_;
  EndRecords end_;
  Buffer directory_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> by_offset_;  // Entries by header_offset.
  NameIndex names_;
  std::string folded_text_;  // Lower-case forms of names that have another.
  std::vector<std::pair<std::string_view, uint32_t>> folded_names_;
  NameIndex folded_;
};

}  // namespace haulway::zip
