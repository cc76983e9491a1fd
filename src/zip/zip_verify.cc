// Design: every record is a task. Large records are split into pieces, whose
// CRC-32s can be combined, so that one of them keeps all threads busy. Small
// records share a task that is read at once, because a request costs as much as
// many small records. Data is digested in steps that stay in the cache between
// read and digest.
//
// Alternative not taken: verify through the loader. It needs the pickle to find
// the storages, and would not check records without tensors. Faults become
// findings, so one bad record does not hide others; only a failure of the
// source ends the check. If records overlap, the archive is reported and not
// read, because reading each record could take unlimited time.

#include "zip/zip_verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/digest.h"
#include "base/text.h"
#include "base/thread_pool.h"

namespace haulway::zip {

namespace {

// Large records are split, so that one of them keeps all threads busy.
constexpr uint64_t kPieceBytes = 4 * kMiB;
// Small records share a task, to reduce scheduling costs.
constexpr uint64_t kTaskBytes = 1 * kMiB;
// A task up to this size is read at once, including gaps between its records.
constexpr uint64_t kLargestWindow = 3 * kMiB;
constexpr uint64_t kStepBytes = 256 * kKiB;

struct Piece {
  uint32_t entry;
  uint64_t offset;  // Offset in the payload.
  uint64_t length;
  bool first;  // The first piece also checks the frame.
  uint32_t crc32 = 0;
};

class Verifier {
 public:
  Verifier(const ZipReader& zip, VerifyReport* report)
      : zip_(zip), report_(*report) {}

  Status Run(int threads, const std::function<void(uint64_t, uint64_t)>& tell) {
    Cut();
    if (frames_ > zip_.source()->size()) {
      // Reading each record could take unlimited time.
      Report(Status(Code::kCorrupt,
                    fmt::format("records overlap: expected at most {} bytes in "
                                "all, found {}",
                                zip_.source()->size(), frames_)));
      ListUnchecked();
      return Status();
    }
    uint64_t done = 0;
    Status status = ParallelFor(tasks_.size(), threads, [&](uint64_t t) {
      uint64_t bytes = 0;
      const size_t end = t + 1 < tasks_.size() ? tasks_[t + 1] : pieces_.size();
      Window window;
      HAULWAY_TRY(FillWindow(tasks_[t], end, &window));
      for (size_t p = tasks_[t]; p < end; ++p) {
        HAULWAY_TRY(Check(&pieces_[p], window));
        bytes += pieces_[p].length;
      }
      if (tell) {
        const std::lock_guard lock(mutex_);
        done += bytes;
        tell(done, total_);
      }
      return Status();
    });
    HAULWAY_TRY(std::move(status));
    Compare();
    ListUnchecked();
    return Status();
  }

 private:
  void Cut() {
    const std::vector<Entry>& entries = zip_.entries();
    uint64_t in_task = kTaskBytes;
    const auto add = [&](const Piece& piece) {
      if (in_task >= kTaskBytes) {
        tasks_.push_back(pieces_.size());
        in_task = 0;
      }
      pieces_.push_back(piece);
      in_task += piece.length + kLocalHeaderBytes;
    };
    for (uint32_t i = 0; i < entries.size(); ++i) {
      const Entry& entry = entries[i];
      total_ += entry.compressed_size;
      if (!CheckedAdd(frames_, entry.end - entry.header_offset, &frames_)) {
        frames_ = UINT64_MAX;
      }
      const uint64_t step = entry.method == kMethodStored
                                ? kPieceBytes
                                : std::max<uint64_t>(entry.compressed_size, 1);
      uint64_t done = 0;
      do {
        const uint64_t length = std::min(step, entry.compressed_size - done);
        add({i, done, length, done == 0});
        done += length;
      } while (done < entry.compressed_size);
    }
  }

  void Report(const Status& status) {
    const std::lock_guard lock(mutex_);
    report_.ok = false;
    report_.findings.push_back(
        {status.code(), std::string(status.message()), status.byte()});
  }

  // A range of the source that was read at once for a task of small records.
  struct Window {
    uint64_t offset = 0;
    std::vector<std::byte> bytes;
  };

  Status FillWindow(size_t first, size_t end, Window* window) {
    if (zip_.source()->View(0, 0).has_value()) return Status();
    uint64_t begin = UINT64_MAX;
    uint64_t last = 0;
    for (size_t p = first; p < end; ++p) {
      const Entry& entry = zip_.entries()[pieces_[p].entry];
      begin = std::min(begin, entry.header_offset);
      last = std::max(last, entry.end);
    }
    if (last - begin > kLargestWindow) return Status();
    window->offset = begin;
    window->bytes.resize(last - begin);
    return zip_.source()->ReadAt(begin, window->bytes);
  }

  // Returns bytes of the source: in place, in the window, or read into
  // `memory`.
  Result<std::span<const std::byte>> Bytes(uint64_t offset, uint64_t length,
                                           const Window& window,
                                           std::vector<std::byte>* memory) {
    if (offset >= window.offset &&
        RangeFits(offset - window.offset, length, window.bytes.size())) {
      return std::span<const std::byte>(window.bytes)
          .subspan(offset - window.offset, length);
    }
    const auto view = zip_.source()->View(offset, length);
    if (view.has_value()) return view->bytes();
    memory->resize(length);
    HAULWAY_TRY(zip_.source()->ReadAt(offset, *memory));
    return std::span<const std::byte>(*memory);
  }

  // Reports faults of the file. Fails only if the source does.
  Status Check(Piece* piece, const Window& window) {
    const Entry& entry = zip_.entries()[piece->entry];
    std::vector<std::byte> memory;
    if (piece->first) {
      const uint64_t payload_end = entry.payload_offset + entry.compressed_size;
      std::vector<std::byte> tail;
      HAULWAY_ASSIGN(
          const auto before,
          Bytes(entry.header_offset, entry.payload_offset - entry.header_offset,
                window, &memory));
      HAULWAY_ASSIGN(
          const auto after,
          Bytes(payload_end, entry.end - payload_end, window, &tail));
      const Status status = zip_.CheckFrame(entry, before, after);
      if (!status.ok()) Report(status);
    }
    if (piece->length == 0) return Status();
    if (entry.method == kMethodDeflated) {
      HAULWAY_ASSIGN(const auto bytes, Bytes(entry.payload_offset,
                                             piece->length, window, &memory));
      CheckDeflated(entry, bytes, piece);
      return Status();
    }
    if (entry.crc32 == 0) return Status();
    // Small steps stay in the cache between read and digest.
    for (uint64_t done = 0; done < piece->length; done += kStepBytes) {
      HAULWAY_ASSIGN(
          const auto bytes,
          Bytes(entry.payload_offset + piece->offset + done,
                std::min(kStepBytes, piece->length - done), window, &memory));
      piece->crc32 = Crc32(piece->crc32, bytes);
    }
    return Status();
  }

  void CheckDeflated(const Entry& entry, std::span<const std::byte> deflated,
                     Piece* piece) {
    const auto inflate = [&]() -> Result<uint32_t> {
      HAULWAY_TRY(zip_.CheckSize(entry));
      HAULWAY_ASSIGN(Buffer inflated, AllocateBuffer(entry.size));
      HAULWAY_TRY(zip_.Inflate(
          entry, deflated,
          entry.size == 0 ? std::span<std::byte>() : inflated.mutable_bytes()));
      return Crc32(0, inflated.bytes());
    };
    const auto crc32 = inflate();
    if (crc32.ok()) {
      piece->crc32 = *crc32;
    } else {
      Report(crc32.status());
      piece->crc32 = entry.crc32;  // Report a single finding per record.
    }
  }

  void Compare() {
    for (size_t p = 0; p < pieces_.size();) {
      const Entry& entry = zip_.entries()[pieces_[p].entry];
      uint32_t crc32 = pieces_[p].crc32;
      for (++p; p < pieces_.size() && !pieces_[p].first; ++p) {
        crc32 = Crc32Join(crc32, pieces_[p].crc32, pieces_[p].length);
      }
      if (entry.crc32 == 0 || entry.size == 0) continue;
      report_.checked_bytes += entry.compressed_size;
      if (crc32 == entry.crc32) continue;
      Report(Status(Code::kMismatch,
                    fmt::format("CRC-32 of record {} differs: expected {}, "
                                "found {}",
                                Quote(entry.name), entry.crc32, crc32))
                 .At(entry.payload_offset));
    }
  }

  void ListUnchecked() {
    uint64_t payloads = 0;
    for (const Entry& entry : zip_.entries()) {
      payloads += entry.compressed_size;
      if (entry.crc32 != 0 || entry.size == 0) continue;
      report_.unchecked.push_back(
          {fmt::format("record {} has no CRC-32", Quote(entry.name)),
           entry.payload_offset, entry.compressed_size});
    }
    const EndRecords& end = zip_.end();
    if (end.directory_offset > payloads) {
      report_.unchecked.push_back({"local headers, padding and descriptors", 0,
                                   end.directory_offset - payloads});
    }
    report_.unchecked.push_back({"zip directory and end records",
                                 end.directory_offset,
                                 zip_.source()->size() - end.directory_offset});
    // Threads report in any order.
    std::ranges::stable_sort(report_.findings, {}, [](const Finding& finding) {
      return finding.byte.value_or(0);
    });
  }

  const ZipReader& zip_;
  VerifyReport& report_;
  std::mutex mutex_;
  std::vector<Piece> pieces_;
  std::vector<size_t> tasks_;  // The first piece of each task.
  uint64_t total_ = 0;         // Bytes of payloads,
  // and of payloads with their headers and descriptors.
  uint64_t frames_ = 0;
};

}  // namespace

Status VerifyRecords(
    const ZipReader& zip, int threads,
    const std::function<void(uint64_t done, uint64_t total)>& progress,
    VerifyReport* report) {
  return Verifier(zip, report).Run(threads, progress);
}

}  // namespace haulway::zip
