#include "load/payload_stream.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "haulway/limits.h"
#include "tensor/payload_digest.h"

namespace haulway {

namespace {

// Stays in a core's own cache between the read and the digest.
constexpr uint64_t kPieceBytes = 1 * kMiB;
// Of one thread, when several decode one payload.
constexpr uint64_t kShareBytes = 4 * kMiB;

// The largest number of whole units in `bytes`, but one at least.
uint64_t WholeUnits(uint64_t bytes, uint64_t unit) {
  return std::max<uint64_t>(1, bytes / unit) * unit;
}

}  // namespace

Status CheckDigests(const FormatReader& reader, uint32_t storage,
                    std::span<const std::byte> before,
                    std::span<const std::byte> after,
                    std::span<const std::byte> payload) {
  HAULWAY_ASSIGN(auto digests, reader.Digests(storage, before, after));
  PayloadChecker checker(std::move(digests));
  checker.Update(payload);
  return checker.Finish();
}

Status DecodeInPlace(const FormatReader& reader, uint32_t storage,
                     std::span<const std::byte> frame,
                     std::span<std::byte> payload, int threads) {
  HAULWAY_ASSIGN(const uint64_t unit, reader.UnitBytes(storage, frame));
  if (unit == 0) return reader.Decode(storage, frame, 0, payload, payload);
  const uint64_t step = WholeUnits(kShareBytes, unit);
  const uint64_t shares = (payload.size() + step - 1) / step;
  return ParallelFor(shares, threads, [&](uint64_t share) -> Status {
    const uint64_t offset = share * step;
    const auto bytes =
        payload.subspan(offset, std::min(step, payload.size() - offset));
    return reader.Decode(storage, frame, offset, bytes, bytes);
  });
}

bool IsStreamable(const StorageInfo& storage) {
  return storage.frame_end == storage.offset + storage.stored_bytes &&
         storage.swap_bytes == 1 &&
         (storage.encoding == Encoding::kRaw ||
          storage.encoding == Encoding::kEncrypted);
}

namespace {

// A Stream reads one storage piece by piece.
class Stream {
 public:
  Stream(const FormatReader& reader, const StreamTarget& target)
      : reader_(reader),
        storage_(target.storage),
        info_(reader.index().storages[target.storage]),
        frame_(target.memory.subspan(0, info_.offset - info_.frame_offset)),
        payload_(target.memory.subspan(frame_.size(), info_.stored_bytes)) {}

  // Reads the frame; pieces are of about `piece_bytes`.
  Status Begin(bool verify, uint64_t piece_bytes) {
    HAULWAY_TRY(source().ReadAt(info_.frame_offset, frame_));
    HAULWAY_TRY(reader_.CheckFrame(storage_, frame_, {}));
    step_ = piece_bytes;
    if (encrypted()) {
      HAULWAY_ASSIGN(const uint64_t unit, reader_.UnitBytes(storage_, frame_));
      step_ = unit == 0 ? std::max<uint64_t>(1, payload_.size())
                        : WholeUnits(piece_bytes, unit);
    }
    if (verify) {
      HAULWAY_ASSIGN(auto digests, reader_.Digests(storage_, frame_, {}));
      checker_.emplace(std::move(digests));
    }
    return Status();
  }
  uint64_t frame_bytes() const { return frame_.size(); }
  bool at_end() const { return done_ == payload_.size(); }

  // Reads and decodes the next piece, which is not yet digested.
  Result<std::span<const std::byte>> Next() {
    const auto piece =
        payload_.subspan(done_, std::min(step_, payload_.size() - done_));
    HAULWAY_TRY(source().ReadAt(info_.offset + done_, piece));
    if (encrypted()) {
      HAULWAY_TRY(reader_.Decode(storage_, frame_, done_, piece, piece));
    }
    done_ += piece.size();
    return std::span<const std::byte>(piece);
  }
  PayloadChecker* checker() {
    return checker_.has_value() ? &*checker_ : nullptr;
  }
  Status Finish() {
    return checker_.has_value() ? checker_->Finish() : Status();
  }

 private:
  const ByteSource& source() const { return *reader_.source(); }
  bool encrypted() const { return info_.encoding == Encoding::kEncrypted; }

  const FormatReader& reader_;
  const uint32_t storage_;
  const StorageInfo& info_;
  const std::span<std::byte> frame_;
  const std::span<std::byte> payload_;
  std::optional<PayloadChecker> checker_;
  uint64_t step_ = 0;
  uint64_t done_ = 0;
};

}  // namespace

Status StreamStorages(const FormatReader& reader,
                      std::span<const StreamTarget> targets, bool verify,
                      const std::function<Status(uint64_t bytes)>& advance,
                      size_t* failed) {
  std::vector<Stream> streams;
  streams.reserve(targets.size());
  for (const StreamTarget& target : targets)
    streams.emplace_back(reader, target);
  // All pieces of one turn stay in a core's cache.
  const uint64_t piece_bytes =
      std::max<uint64_t>(64 * kKiB, kPieceBytes / targets.size());
  for (size_t i = 0; i < streams.size(); ++i) {
    *failed = i;
    HAULWAY_TRY(streams[i].Begin(verify, piece_bytes));
    HAULWAY_TRY(advance(streams[i].frame_bytes()));
  }
  std::vector<PayloadChecker*> checkers;
  std::vector<std::span<const std::byte>> pieces;
  for (bool all_read = false; !all_read;) {
    all_read = true;
    checkers.clear();
    pieces.clear();
    for (size_t i = 0; i < streams.size(); ++i) {
      if (streams[i].at_end()) continue;
      *failed = i;
      HAULWAY_ASSIGN(const auto piece, streams[i].Next());
      HAULWAY_TRY(advance(piece.size()));
      all_read = all_read && streams[i].at_end();
      if (streams[i].checker() == nullptr) continue;
      checkers.push_back(streams[i].checker());
      pieces.push_back(piece);
    }
    PayloadChecker::UpdateTogether(checkers, pieces);
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    *failed = i;
    HAULWAY_TRY(streams[i].Finish());
  }
  return Status();
}

}  // namespace haulway
