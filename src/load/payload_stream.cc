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

Status StreamStorage(const FormatReader& reader, uint32_t storage, bool verify,
                     std::span<std::byte> memory,
                     const std::function<Status(uint64_t bytes)>& advance) {
  const StorageInfo& info = reader.index().storages[storage];
  const ByteSource& source = *reader.source();
  const auto frame = memory.subspan(0, info.offset - info.frame_offset);
  const auto payload = memory.subspan(frame.size(), info.stored_bytes);
  HAULWAY_TRY(source.ReadAt(info.frame_offset, frame));
  HAULWAY_TRY(reader.CheckFrame(storage, frame, {}));
  const bool encrypted = info.encoding == Encoding::kEncrypted;
  uint64_t step = kPieceBytes;
  if (encrypted) {
    HAULWAY_ASSIGN(const uint64_t unit, reader.UnitBytes(storage, frame));
    step = unit == 0 ? std::max<uint64_t>(1, payload.size())
                     : WholeUnits(kPieceBytes, unit);
  }
  std::optional<PayloadChecker> checker;
  if (verify) {
    HAULWAY_ASSIGN(auto digests, reader.Digests(storage, frame, {}));
    checker.emplace(std::move(digests));
  }
  HAULWAY_TRY(advance(frame.size()));
  for (uint64_t done = 0; done < payload.size(); done += step) {
    const auto piece =
        payload.subspan(done, std::min(step, payload.size() - done));
    HAULWAY_TRY(source.ReadAt(info.offset + done, piece));
    if (encrypted) {
      HAULWAY_TRY(reader.Decode(storage, frame, done, piece, piece));
    }
    if (checker.has_value()) checker->Update(piece);
    HAULWAY_TRY(advance(piece.size()));
  }
  return checker.has_value() ? checker->Finish() : Status();
}

}  // namespace haulway
