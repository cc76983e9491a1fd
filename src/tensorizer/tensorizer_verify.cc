// Design: every header is read again and checked, with the file's key if there
// is one. Then each thread reads a group of payloads of about the same size in
// turn, and digests them together in SIMD lanes. Faults of the file are
// reported per tensor; only failures of the source end the check. For a server,
// each thread instead reads a run of neighbouring headers and payloads at once.
//
// Tried instead: one payload per thread. The core then waits for the rounds of
// the digest: 456 ms per GiB, against 305. Without a key, encrypted tensors are
// listed as unchecked, but their nonces are still compared (rule C04).

#include "tensorizer/tensorizer_verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/is_of_source.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "decode/sequence_decoder.h"
#include "haulway/machine.h"
#include "haulway/options.h"
#include "io/join_ranges.h"
#include "tensor/payload_digest.h"
#include "tensorizer/tensorizer_reader.h"

namespace haulway::tensorizer {

namespace {

// Approximate number of bytes between two progress reports.
constexpr uint64_t kProgressBytes = 16 * kMiB;

// Bounds of a request to a server. Between them, the size is chosen so that
// each thread gets two requests.
constexpr uint64_t kSmallestRequest = 1 * kMiB;
constexpr uint64_t kLargestRequest = 16 * kMiB;

// The nonces of a tensor, as little-endian numbers.
struct NonceRange {
  Nonce first;
  uint64_t units;
  uint32_t row;
};

// Returns b - a for nonces a <= b, or UINT64_MAX if that is larger.
uint64_t UnitsBetween(const Nonce& a, const Nonce& b) {
  uint64_t low = 0;
  unsigned borrow = 0;
  bool far = false;
  for (size_t i = 0; i < a.size(); ++i) {
    const unsigned difference = 0x100 + static_cast<unsigned>(b[i]) -
                                static_cast<unsigned>(a[i]) - borrow;
    borrow = difference < 0x100 ? 1 : 0;
    if (i < 8) {
      low |= uint64_t{difference & 0xFF} << (8 * i);
    } else {
      far = far || (difference & 0xFF) != 0;
    }
  }
  return far ? UINT64_MAX : low;
}

class Verifier {
 public:
  Verifier(const Reader& reader, const VerifyOptions& options,
           VerifyReport* report)
      : reader_(reader),
        index_(reader.index()),
        source_(*reader.source()),
        options_(options),
        report_(*report) {}

  Status Run() {
    for (const StorageInfo& storage : index_.storages) {
      total_ += storage.frame_end - storage.frame_offset;
    }
    const int threads = options_.threads > 0 ? options_.threads : UsableCpus();
    checked_.resize(index_.storages.size());
    HAULWAY_TRY(source_.Look({}).is_server() ? CheckRuns(threads)
                                             : CheckGroups(threads));
    FindSharedNonces();
    ListUnchecked();
    return Status();
  }

 private:
  void Report(const Status& status) {
    const std::lock_guard lock(mutex_);
    report_.ok = false;
    report_.findings.push_back(
        {status.code(), std::string(status.message()), status.byte()});
  }

  void Advance(uint64_t bytes) {
    if (!options_.progress) return;
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    options_.progress(done_, total_);
  }

  // Reports `status` as a fault of the file. Returns it only if the source
  // failed.
  Status Note(Status status) {
    if (status.ok()) return status;
    if (IsOfSource(status)) return status;
    Report(status);
    return Status();
  }

  // Checks groups of payloads of about the same size, and reads each payload
  // separately.
  Status CheckGroups(int threads) {
    const auto bytes_of = [&](uint32_t row) {
      return index_.storages[row].stored_bytes;
    };
    std::vector<uint32_t> order(index_.storages.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(), bytes_of);
    const auto groups = GroupPayloads(
        order, PayloadsTogether(order.size(), threads), threads, bytes_of);
    return ParallelFor(groups.size(), threads,
                       [&](uint64_t g) { return Check(groups[g], {}); });
  }

  // Tensors that are adjacent in the file.
  struct Neighbours {
    std::span<const uint32_t> rows;
    ByteRange bytes;
  };

  // Returns runs of up to `most` bytes, or of one tensor.
  std::vector<Neighbours> FindRuns(std::span<const uint32_t> by_offset,
                                   uint64_t most) const {
    std::vector<Neighbours> runs;
    for (size_t i = 0; i < by_offset.size(); ++i) {
      const ByteRange bytes = BytesToRead(by_offset[i]);
      Neighbours* const last = runs.empty() ? nullptr : &runs.back();
      if (last != nullptr && JoinRanges(&last->bytes, bytes,
                                        {.largest_hole = kServerHole,
                                         .largest_read = most,
                                         .may_overlap = false})) {
        last->rows = {last->rows.data(), last->rows.size() + 1};
      } else {
        runs.push_back({by_offset.subspan(i, 1), bytes});
      }
    }
    return runs;
  }

  // Checks runs of adjacent tensors, and reads each run at once.
  Status CheckRuns(int threads) {
    std::vector<uint32_t> order(index_.storages.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](uint32_t row) {
      return index_.storages[row].frame_offset;
    });
    const uint64_t share = total_ / (2 * static_cast<uint64_t>(threads));
    const std::vector<Neighbours> runs =
        FindRuns(order, std::clamp(share, kSmallestRequest, kLargestRequest));
    uint64_t longest = 0;
    for (const Neighbours& run : runs) {
      longest = std::max(longest, run.bytes.length);
    }
    longest = std::min(longest, kLargestRequest);
    return ParallelFor(runs.size(), threads, [&](uint64_t r) -> Status {
      const Neighbours& run = runs[r];
      if (run.bytes.length > longest) return Check(run.rows, {});
      HAULWAY_ASSIGN(Buffer memory, TakeMemory(longest));
      const HeldBytes held{run.bytes.offset,
                           memory.mutable_bytes().first(run.bytes.length)};
      const Status status = source_.ReadAt(held.offset, held.bytes);
      if (!status.ok() && IsOfSource(status)) return status;
      const size_t together = PayloadsTogether(run.rows.size(), 1);
      for (size_t i = 0; i < run.rows.size(); i += together) {
        const size_t count = std::min(together, run.rows.size() - i);
        HAULWAY_TRY(Check(run.rows.subspan(i, count),
                          status.ok() ? held : HeldBytes{}));
      }
      const std::lock_guard lock(mutex_);
      spare_.push_back(std::move(memory));
      return Status();
    });
  }

  // Returns memory for a run. Reuses that of a finished run if there is one.
  Result<Buffer> TakeMemory(uint64_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      if (!spare_.empty()) {
        Buffer memory = std::move(spare_.back());
        spare_.pop_back();
        return memory;
      }
    }
    return AllocateBuffer(bytes);
  }

  // Returns the range of a tensor, clipped to the source: its header, and the
  // data unless reading that needs a key that was not given.
  ByteRange BytesToRead(uint32_t row) const {
    const StorageInfo& storage = index_.storages[row];
    const uint64_t begin = std::min(storage.frame_offset, source_.size());
    const uint64_t end = std::min(
        IsLocked(row) ? storage.offset : storage.frame_end, source_.size());
    return {begin, std::max(begin, end) - begin};
  }

  bool IsLocked(uint32_t row) const {
    return index_.storages[row].encoding == Encoding::kEncrypted &&
           !reader_.has_key();
  }

  // Checks several tensors together.
  Status Check(std::span<const uint32_t> rows, const HeldBytes& held) {
    std::vector<std::vector<std::byte>> frames(rows.size());
    std::vector<SequenceDecoder> decoders;
    std::vector<uint32_t> opened;
    uint64_t bytes = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const StorageInfo& storage = index_.storages[rows[i]];
      bytes += storage.frame_end - storage.frame_offset;
      auto decoder = Open(rows[i], held, &frames[i]);
      HAULWAY_TRY(Note(decoder.status()));
      if (!decoder.ok() || !decoder->has_value()) continue;
      decoders.push_back(std::move(**decoder));
      opened.push_back(rows[i]);
    }
    uint64_t read = 0;
    uint64_t told = 0;
    const std::vector<Status> statuses = ReadSequences(
        source_, decoders,
        [&](size_t, std::span<const std::byte> piece) {
          read += piece.size();
          if (read - told < kProgressBytes) return;
          Advance(read - told);
          told = read;
        },
        held);
    for (size_t i = 0; i < opened.size(); ++i) {
      HAULWAY_TRY(Note(statuses[i]));
      const bool encrypted =
          index_.storages[opened[i]].encoding == Encoding::kEncrypted;
      const bool is_checked = decoders[i].is_verified() || encrypted;
      checked_[opened[i]] = statuses[i].ok() && is_checked ? 1 : 0;
    }
    Advance(bytes - told);
    return Status();
  }

  // Checks the header, which is read into `memory` unless it is in `held`.
  // Returns nullopt if the payload cannot be read without a key.
  Result<std::optional<SequenceDecoder>> Open(uint32_t row,
                                              const HeldBytes& held,
                                              std::vector<std::byte>* memory) {
    const StorageInfo& storage = index_.storages[row];
    const uint64_t bytes = storage.offset - storage.frame_offset;
    std::span<const std::byte> frame;
    if (const auto found = held.Find(storage.frame_offset, bytes)) {
      frame = *found;
    } else {
      memory->resize(bytes);
      HAULWAY_TRY(source_.ReadAt(storage.frame_offset, *memory));
      frame = *memory;
    }
    HAULWAY_ASSIGN(const Reader::Header header,
                   reader_.AuthenticHeaderOf(row, frame));
    if (header.crypt.cipher != Cipher::kNone) {
      const std::lock_guard lock(mutex_);
      nonces_.push_back(
          {header.crypt.nonce, header.crypt.macs.size() / kMacBytes, row});
    }
    if (IsLocked(row)) return std::optional<SequenceDecoder>();
    HAULWAY_ASSIGN(SequenceDecoder decoder,
                   SequenceDecoder::Open(reader_, row, /*verify=*/true, frame));
    return std::optional<SequenceDecoder>(std::move(decoder));
  }

  // Checks rule C04: a nonce is used for one unit only. Each tensor uses as
  // many consecutive nonces as it has units.
  void FindSharedNonces() {
    const std::lock_guard lock(mutex_);
    std::ranges::sort(nonces_, [](const NonceRange& a, const NonceRange& b) {
      return std::ranges::lexicographical_compare(std::views::reverse(a.first),
                                                  std::views::reverse(b.first));
    });
    for (size_t i = 1; i < nonces_.size(); ++i) {
      const NonceRange& a = nonces_[i - 1];
      const NonceRange& b = nonces_[i];
      if (UnitsBetween(a.first, b.first) >= a.units) continue;
      report_.ok = false;
      const Status status =
          Status(Code::kCorrupt,
                 fmt::format("{} and {} are encrypted with one nonce",
                             Quote(index_.entries[a.row].name),
                             Quote(index_.entries[b.row].name)))
              .At(index_.storages[std::max(a.row, b.row)].frame_offset);
      report_.findings.push_back(
          {status.code(), std::string(status.message()), status.byte()});
    }
  }

  // Counts the metadata that is before the tensors, or apart from them.
  void ListMetadata() {
    const Preamble& preamble = reader_.preamble();
    if (preamble.segments.has_value()) {
      // Each part has its own checksum, which opening checked.
      const SegmentHead& head = *preamble.segments;
      report_.checked_bytes += kSegmentHeadBytes + head.index.data_length;
      if (head.notes.has_value()) {
        report_.checked_bytes += head.notes->data_length;
      }
      return;
    }
    const uint64_t bytes = preamble.index_offset + preamble.index_bytes;
    if (reader_.authenticated()) {
      report_.checked_bytes += bytes;
    } else if (reader_.has_authentication()) {
      report_.unchecked.push_back(
          {"file header and index are authenticated, and no key was given", 0,
           bytes, /*needs_key=*/true});
    } else {
      report_.unchecked.push_back({"file header and index", 0, bytes});
    }
  }

  void ListUnchecked() {
    ListMetadata();
    for (uint32_t row = 0; row < index_.storages.size(); ++row) {
      const StorageInfo& storage = index_.storages[row];
      if (checked_[row] != 0) {
        report_.checked_bytes += storage.frame_end - storage.frame_offset;
        // Headers in frames were counted with the frames.
        report_.checked_bytes += reader_.HeldHeaderBytes(row);
      } else if (IsLocked(row)) {
        report_.unchecked.push_back(
            {fmt::format("{} is encrypted, and no key was given",
                         Quote(index_.entries[row].name)),
             storage.offset, storage.stored_bytes, /*needs_key=*/true});
      }
    }
    std::ranges::stable_sort(report_.findings, {}, [](const Finding& finding) {
      return finding.byte.value_or(0);
    });
  }

  const Reader& reader_;
  const CheckpointIndex& index_;
  const ByteSource& source_;
  const VerifyOptions& options_;
  VerifyReport& report_;
  std::mutex mutex_;
  uint64_t done_ HAULWAY_GUARDED_BY(mutex_) = 0;
  uint64_t total_ = 0;
  std::vector<NonceRange> nonces_ HAULWAY_GUARDED_BY(mutex_);
  std::vector<uint8_t> checked_;
  std::vector<Buffer> spare_ HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace

Result<VerifyReport> VerifyTensorizer(std::shared_ptr<const ByteSource> source,
                                      const VerifyOptions& options) {
  VerifyReport report;
  report.file = source->name();
  report.format = Format::kTensorizer;
  report.file_bytes = source->size();
  OpenOptions open = options.open;
  auto reader = Reader::Open(source, open);
  Status status = reader.ok() ? Status() : reader.status();
  if (status.ok() && open.strictness == Strictness::kStrict) {
    // Opening skips this check for remote sources.
    status = (*reader)->CheckEndMark();
  }
  if (!status.ok()) {
    // An unusable key is the caller's mistake.
    const Code code = status.code();
    if (IsOfSource(status) || code == Code::kAuth ||
        code == Code::kInvalidArgument) {
      return status;
    }
    report.ok = false;
    report.findings.push_back(
        {status.code(), std::string(status.message()), status.byte()});
    // Check as much as possible of what may still be usable.
    if (!reader.ok()) {
      open.strictness = Strictness::kLenient;
      reader = Reader::Open(source, open);
    }
    if (!reader.ok()) return report;
  }
  if ((*reader)->preamble().encrypted) {
    report.authentication = (*reader)->authentication();
  }
  HAULWAY_TRY(Verifier(**reader, options, &report).Run());
  return report;
}

}  // namespace haulway::tensorizer
