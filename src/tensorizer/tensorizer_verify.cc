#include "tensorizer/tensorizer_verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "base/is_of_source.h"
#include "base/posix.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "decode/sequence_decoder.h"
#include "tensorizer/tensorizer_reader.h"

namespace haulway::tensorizer {

namespace {

// The nonces of a tensor, as little-endian numbers.
struct NonceRange {
  Nonce first;
  uint64_t units;
  uint32_t row;
};

// How far apart two nonces are, a <= b, or the largest number if farther.
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
    HAULWAY_TRY(ParallelFor(index_.storages.size(), threads, [&](uint64_t i) {
      return Check(static_cast<uint32_t>(i));
    }));
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

  // Fails only if the source does; what the file has wrong is reported.
  Status Check(uint32_t row) {
    Status status = CheckTensor(row);
    if (!status.ok()) {
      if (IsOfSource(status)) return status;
      Report(status);
    }
    if (options_.progress) {
      const std::lock_guard lock(mutex_);
      const StorageInfo& storage = index_.storages[row];
      done_ += storage.frame_end - storage.frame_offset;
      options_.progress(done_, total_);
    }
    return Status();
  }

  Status CheckTensor(uint32_t row) {
    const StorageInfo& storage = index_.storages[row];
    std::vector<std::byte> frame(storage.offset - storage.frame_offset);
    HAULWAY_TRY(source_.ReadAt(storage.frame_offset, frame));
    HAULWAY_ASSIGN(const Reader::Header header,
                   reader_.AuthenticHeaderOf(row, frame));
    if (header.crypt.cipher != Cipher::kNone) {
      const std::lock_guard lock(mutex_);
      nonces_.push_back(
          {header.crypt.nonce, header.crypt.macs.size() / kMacBytes, row});
    }
    const bool encrypted = storage.encoding == Encoding::kEncrypted;
    if (encrypted && !reader_.has_key()) return Status();
    HAULWAY_ASSIGN(SequenceDecoder decoder,
                   SequenceDecoder::Open(reader_, row, /*verify=*/true, frame));
    const bool digested = decoder.is_verified();
    HAULWAY_TRY(ReadSequence(source_, std::move(decoder)));
    checked_[row] = digested || encrypted ? 1 : 0;
    return Status();
  }

  // Rule C04: a nonce serves one unit only, and each tensor uses as many as it
  // has units, from its own on.
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

  // What of the file stands before the tensors, or apart from them.
  void ListMetadata() {
    const Preamble& preamble = reader_.preamble();
    if (preamble.segments.has_value()) {
      // Each part has a checksum of its own, without which nothing was opened.
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
      const bool locked =
          storage.encoding == Encoding::kEncrypted && !reader_.has_key();
      if (checked_[row] != 0) {
        report_.checked_bytes += storage.frame_end - storage.frame_offset;
        // Headers in frames are counted with them.
        report_.checked_bytes += reader_.HeldHeaderBytes(row);
      } else if (locked) {
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
    status = (*reader)->CheckEndMark();  // Opening leaves it out behind a URL.
  }
  if (!status.ok()) {
    // A key that cannot be used is the caller's affair.
    const Code code = status.code();
    if (IsOfSource(status) || code == Code::kAuth ||
        code == Code::kInvalidArgument) {
      return status;
    }
    report.ok = false;
    report.findings.push_back(
        {status.code(), std::string(status.message()), status.byte()});
    // See as much as possible of what may be usable.
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
