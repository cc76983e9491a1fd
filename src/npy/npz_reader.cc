// Design: the frame of a stored array is its local header and the npy header,
// so its storage is exactly its elements. The CRC-32 of a record covers the npy
// header and the elements; that of the elements is computed from it and the
// header's. Opening a deflated array inflates only the start with the
// header. Reading inflates the header again, compares it, and drops it.
//
// Alternative not taken: inflate whole arrays on opening to know what they are.
// That would cost as much as loading. The first 512 bytes of all records are
// read with one vectored request.

#include "npy/npz_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/cursor.h"
#include "base/digest.h"
#include "base/is_of_source.h"
#include "base/text.h"
#include "format/flat_reader.h"
#include "haulway/machine.h"
#include "npy/npy_header.h"
#include "zip/inflate_part.h"
#include "zip/zip_reader.h"
#include "zip/zip_verify.h"

namespace haulway::npy {

namespace {

constexpr std::string_view kNpyEnding = ".npy";
// Bytes read of each record, deflated or not, to find its header. NumPy's
// header has 128 bytes, and the code tables of a deflated one take at most
// about 300.
constexpr uint64_t kMemberStart = 512;
constexpr size_t kAtOnce = 4096;
constexpr uint64_t kGrowth = 8;

struct Member {
  const zip::Entry* entry = nullptr;
  std::span<const std::byte> head;  // The npy header, allocated in the arena.
  Status refusal;                   // Why the elements cannot be loaded.
};

class NpzReader : public FlatReader {
 public:
  // `zip` is null for an archive without records, which ZipReader refuses.
  NpzReader(std::shared_ptr<const ByteSource> source,
            std::unique_ptr<zip::ZipReader> zip, const OpenOptions& options)
      : FlatReader(Format::kNpz, std::move(source)),
        zip_(std::move(zip)),
        limits_(options.limits) {}

  Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                    std::span<const std::byte> after) const override {
    const Member& member = members_[storage];
    const auto check = [&]() -> Status {
      HAULWAY_TRY(member.refusal);
      const zip::Entry& entry = *member.entry;
      if (entry.method == zip::kMethodDeflated) {
        return zip_->CheckFrame(entry, before, after);
      }
      // Both lengths come from the index, so `before` has both headers.
      const size_t local = entry.payload_offset - entry.header_offset;
      HAULWAY_TRY(zip_->CheckFrame(entry, before.first(local), after));
      if (std::ranges::equal(before.subspan(local), member.head)) {
        return Status();
      }
      return Status(Code::kCorrupt, "header of the array changed")
          .At(entry.payload_offset);
    };
    Status status = check();
    if (!status.ok()) return std::move(status).In(Place(member));
    return status;
  }

  Status Decode(uint32_t storage, std::span<const std::byte>, uint64_t,
                std::span<const std::byte> stored,
                std::span<std::byte> out) const override {
    const Member& member = members_[storage];
    Status status = zip::InflateAfter(member.head, stored, out);
    if (!status.ok()) {
      return std::move(status)
          .At(member.entry->payload_offset)
          .In(Place(member));
    }
    return status;
  }

  Status ReadIndex() {
    if (zip_ != nullptr) HAULWAY_TRY(FindMembers());
    HAULWAY_TRY(CheckOverlap());
    Reserve(members_.size());
    for (size_t first = 0; first < members_.size(); first += kAtOnce) {
      HAULWAY_TRY(ReadHeads(first, std::min(members_.size() - first, kAtOnce)));
    }
    ListFacts();
    return Status();
  }

  static std::string Place(const Member& member) {
    return fmt::format("member {}", Quote(member.entry->name));
  }

 private:
  Status FindMembers() {
    for (uint32_t i = 0; i < zip_->entries().size(); ++i) {
      const zip::Entry& entry = zip_->entries()[i];
      // If names are equal, which lenient reading accepts, the last one counts.
      if (entry.is_folder() || zip_->Find(entry.name) != i) continue;
      if (!entry.name.ends_with(kNpyEnding)) {
        others_.push_back(std::string(entry.name));
        continue;
      }
      if (!IsUtf8(entry.name)) {
        return Status(Code::kUnsupported,
                      fmt::format("name of member {} is not UTF-8",
                                  Quote(entry.name)))
            .At(entry.header_offset);
      }
      HAULWAY_TRY(zip_->CheckSize(entry));
      members_.push_back({.entry = &entry, .head = {}, .refusal = {}});
    }
    if (members_.size() > limits_.max_tensors) {
      return Status(Code::kLimit,
                    fmt::format("{} arrays pass max_tensors {}",
                                members_.size(), limits_.max_tensors));
    }
    return Status();
  }

  // The loaded size must not be out of proportion to the file.
  Status CheckOverlap() const {
    uint64_t total = 0;
    for (const Member& member : members_) {
      const uint64_t bytes = member.entry->end - member.entry->header_offset;
      if (bytes > source()->size() - total) {
        return Status(Code::kCorrupt,
                      fmt::format("members overlap: expected at most the {} "
                                  "bytes of the file in all",
                                  source()->size()))
            .At(member.entry->header_offset);
      }
      total += bytes;
    }
    return Status();
  }

  Status ReadHeads(size_t first, size_t count) {
    std::vector<std::vector<std::byte>> starts(count);
    std::vector<ReadRequest> requests;
    requests.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const zip::Entry& entry = *members_[first + i].entry;
      starts[i].resize(std::min(entry.compressed_size, kMemberStart));
      requests.push_back({entry.payload_offset, starts[i]});
    }
    HAULWAY_TRY(source()->ReadMany(requests));
    for (size_t i = 0; i < count; ++i) {
      Member& member = members_[first + i];
      Status status = AddMember(&member, &starts[i]);
      if (!status.ok()) return std::move(status).In(Place(member));
    }
    return Status();
  }

  // Returns the first `count` bytes of a record. `stored` has the stored bytes
  // read so far, and grows if more are needed.
  Result<std::vector<std::byte>> Start(const zip::Entry& entry, uint64_t count,
                                       std::vector<std::byte>* stored) const {
    std::vector<std::byte> out(count);
    const bool deflated = entry.method == zip::kMethodDeflated;
    while (true) {
      const uint64_t have = stored->size();
      if (deflated) {
        HAULWAY_ASSIGN(const size_t made, zip::InflateStart(*stored, out));
        if (made == count) return out;
        if (have == entry.compressed_size) break;
      } else if (have >= count) {
        std::copy_n(stored->begin(), count, out.begin());
        return out;
      }
      stored->resize(
          std::min(entry.compressed_size, deflated ? have * kGrowth : count));
      HAULWAY_TRY(source()->ReadAt(entry.payload_offset + have,
                                   std::span(*stored).subspan(have)));
    }
    return Status(Code::kCorrupt,
                  fmt::format("payload does not inflate to its size {}",
                              entry.size))
        .At(entry.payload_offset);
  }

  Status AddMember(Member* member, std::vector<std::byte>* stored) {
    const zip::Entry& entry = *member->entry;
    HAULWAY_ASSIGN(const auto start,
                   Start(entry, std::min(entry.size, kPrefixBytes), stored));
    HAULWAY_ASSIGN(const Prefix prefix,
                   ParsePrefix(start, entry.size, limits_));
    HAULWAY_ASSIGN(const auto bytes,
                   Start(entry, prefix.data_offset(), stored));
    auto* head = static_cast<std::byte*>(arena().Allocate(bytes.size()));
    std::ranges::copy(bytes, head);
    member->head = {head, bytes.size()};
    // Bytes after the array would be inflated or mapped for nothing, and no
    // writer leaves any. So they are refused.
    HAULWAY_ASSIGN(
        ArrayHeader header,
        ParseHeader(prefix, member->head.subspan(prefix.prefix_bytes),
                    entry.size - bytes.size(), Strictness::kStrict, limits_,
                    &arena()));
    member->refusal = std::move(header.refusal);
    HAULWAY_TRY(Append(
        {.name = entry.name.substr(0, entry.name.size() - kNpyEnding.size()),
         .dtype = header.dtype,
         .shape = header.shape,
         .offset = entry.payload_offset,
         .nbytes = header.nbytes,
         .column_major = header.fortran_order}));
    StorageInfo& storage = mutable_index().storages.back();
    storage.frame_offset = entry.header_offset;
    storage.frame_end = entry.end;
    if (entry.method == zip::kMethodDeflated) {
      storage.stored_bytes = entry.compressed_size;
      storage.encoding = Encoding::kDeflate;
    } else {
      storage.offset += bytes.size();
    }
    if (header.big_endian) {
      storage.swap_bytes = Describe(header.dtype).swap_bytes;
    }
    // A writer without CRC-32 stores zero, as in torch's archives.
    if (entry.crc32 != 0) {
      storage.crc32 =
          entry.crc32 ^ Crc32Join(Crc32(0, member->head), 0, header.nbytes);
    }
    return Status();
  }

  void ListFacts() {
    std::vector<std::string> refused;
    uint64_t deflated = 0;
    for (const Member& member : members_) {
      if (member.entry->method == zip::kMethodDeflated) ++deflated;
      if (!member.refusal.ok()) {
        refused.push_back(std::string(member.entry->name));
      }
    }
    std::vector<Fact>& facts = mutable_index().facts;
    facts.push_back({"members", uint64_t{members_.size()}});
    facts.push_back({"members_deflated", deflated});
    facts.push_back({"members_refused", FactArray(std::move(refused))});
    facts.push_back({"other_members", FactArray(std::move(others_))});
  }

  const std::unique_ptr<zip::ZipReader> zip_;
  const ParseLimits limits_;
  std::vector<Member> members_;  // Parallel to the storages.
  std::vector<std::string> others_;
};

Result<std::unique_ptr<zip::ZipReader>> OpenZip(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  HAULWAY_ASSIGN(auto zip,
                 zip::ZipReader::Open(std::move(source), options.strictness,
                                      options.limits, zip::NameRule::kKeys));
  HAULWAY_TRY(zip->ResolveOffsets());
  return zip;
}

// Returns whether `head` is an end record of an empty zip, which numpy.savez()
// writes for no arrays.
bool IsEmptyZip(std::span<const std::byte> head) {
  ByteCursor cursor(head);
  const bool is_end = cursor.Text(4) == "PK\x05\x06";
  const auto rest = cursor.Bytes(zip::kEndBytes - 4);
  return is_end && cursor.ok() && cursor.remaining() == 0 &&
         std::ranges::all_of(rest,
                             [](std::byte b) { return b == std::byte{0}; });
}
Result<bool> IsEmptyZip(const ByteSource& source) {
  if (source.size() != zip::kEndBytes) return false;
  std::array<std::byte, zip::kEndBytes> bytes;
  HAULWAY_TRY(source.ReadAt(0, bytes));
  return IsEmptyZip(bytes);
}

Result<std::unique_ptr<NpzReader>> OpenReader(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  std::unique_ptr<zip::ZipReader> zip;
  HAULWAY_ASSIGN(const bool is_empty, IsEmptyZip(*source));
  if (!is_empty) {
    HAULWAY_ASSIGN(zip, OpenZip(source, options));
  }
  auto reader =
      std::make_unique<NpzReader>(std::move(source), std::move(zip), options);
  HAULWAY_TRY(reader->ReadIndex());
  return reader;
}

template <class Report>
void AddFinding(const Status& status, bool* good, Report* report) {
  *good = false;
  report->findings.push_back(
      {status.code(), std::string(status.message()), status.byte()});
}

}  // namespace

bool IsNpz(std::span<const std::byte> head) {
  ByteCursor cursor(head);
  const bool is_zip = cursor.Text(4) == "PK\x03\x04";
  cursor.Skip(22);
  const uint16_t name_bytes = cursor.U16();
  cursor.Skip(2);
  if (!is_zip || !cursor.ok()) return IsEmptyZip(head);
  if (name_bytes > cursor.remaining()) return true;  // BeginsWithArray() tells.
  return cursor.Text(name_bytes).ends_with(kNpyEnding);
}

bool BeginsWithArray(const ByteSource& source) {
  std::vector<std::byte> head(
      std::min<uint64_t>(source.size(), zip::kLocalHeaderBytes + UINT16_MAX));
  return source.ReadAt(0, head).ok() && IsNpz(head);
}

Result<std::unique_ptr<const FormatReader>> OpenNpz(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  HAULWAY_ASSIGN(auto reader, OpenReader(std::move(source), options));
  return std::unique_ptr<const FormatReader>(std::move(reader));
}

Result<VerifyReport> VerifyNpz(std::shared_ptr<const ByteSource> source,
                               const VerifyOptions& options) {
  VerifyReport report;
  report.file = source->name();
  report.format = Format::kNpz;
  report.file_bytes = source->size();
  const auto zip = OpenZip(source, options.open);
  if (zip.ok()) {
    HAULWAY_TRY(zip::VerifyRecords(
        **zip, options.threads > 0 ? options.threads : UsableCpus(),
        options.progress, &report));
  }
  const auto reader = OpenReader(std::move(source), options.open);
  if (reader.ok()) return report;
  if (IsOfSource(reader.status())) return reader.status();
  AddFinding(reader.status(), &report.ok, &report);
  return report;
}

}  // namespace haulway::npy
