#include "load/storage_finisher.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/digest.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "load/payload_stream.h"
#include "tensor/byte_swap.h"
#include "tensor/payload_digest.h"

namespace haulway {

namespace {

// Of one thread's work, between two looks at whether to stop.
constexpr uint64_t kShareBytes = 4 * kMiB;

}  // namespace

std::string PlaceOf(const StorageInfo& storage) {
  return fmt::format("storage {}", Quote(storage.key));
}

Status PlaceMismatch(Status status, const StorageInfo& storage) {
  if (status.code() != Code::kMismatch) return status;
  return std::move(status).At(storage.offset).In(PlaceOf(storage));
}

StoredBytes SplitFrame(const StorageInfo& storage, std::span<std::byte> frame) {
  const uint64_t before = storage.offset - storage.frame_offset;
  return {frame.first(before), frame.subspan(before, storage.stored_bytes),
          frame.subspan(before + storage.stored_bytes)};
}

Status StorageFinisher::Finish(uint32_t row, const StoredBytes& bytes,
                               std::span<std::byte> payload, int threads,
                               std::optional<uint32_t> crc32) const {
  HAULWAY_TRY(progress_->CheckCancelled());
  HAULWAY_TRY(reader_.CheckFrame(row, bytes.before, bytes.after));
  HAULWAY_TRY(Decode(row, bytes, payload, threads));
  HAULWAY_TRY(Verify(row, bytes, payload, crc32));
  if (info(row).swap_bytes != 1) {
    const StageClock clock;
    SwapBytes(payload, info(row).swap_bytes);
    progress_->AddTime(Stage::kDecode, clock);
  }
  return Status();
}

Status StorageFinisher::Decode(uint32_t row, const StoredBytes& bytes,
                               std::span<std::byte> payload,
                               int threads) const {
  const Encoding encoding = info(row).encoding;
  if (encoding == Encoding::kRaw || payload.empty()) return Status();
  const StageClock clock;
  Status status;
  if (encoding == Encoding::kDeflate) {
    status = reader_.Decode(row, bytes.before, 0, bytes.stored, payload);
  } else if (encoding == Encoding::kEncrypted) {
    status = DecodeInPlace(row, bytes.before, 0, payload, threads);
  } else if (options_.allocate) {
    // Memory of our own is zero from the start: touching it would make a file
    // of a few bytes cost what it only claims.
    std::memset(payload.data(), 0, payload.size());
  }
  progress_->AddTime(Stage::kDecode, clock);
  return status;
}

Status StorageFinisher::DecodeInPlace(uint32_t row,
                                      std::span<const std::byte> before,
                                      uint64_t offset,
                                      std::span<std::byte> payload,
                                      int threads) const {
  HAULWAY_ASSIGN(const uint64_t step,
                 DecodeStep(reader_, row, before, kShareBytes));
  const uint64_t shares = payload.size() / step + (payload.size() % step != 0);
  return ParallelFor(shares, threads, [&](uint64_t share) -> Status {
    HAULWAY_TRY(progress_->CheckCancelled());
    const uint64_t begin = share * step;
    const auto part =
        payload.subspan(begin, std::min(step, payload.size() - begin));
    return reader_.Decode(row, before, offset + begin, part, part);
  });
}

Status StorageFinisher::Verify(uint32_t row, const StoredBytes& bytes,
                               std::span<const std::byte> payload,
                               std::optional<uint32_t> crc32) const {
  if (!options_.verify) return Status();
  // Digests are of what is stored, which is nothing then.
  if (info(row).encoding == Encoding::kZeros) payload = {};
  const bool has_crc32 = info(row).crc32.has_value() && !payload.empty();
  if (!has_crc32 && !reader_.has_digests()) return Status();
  const StageClock clock;
  std::optional<PayloadChecker> checker;
  if (reader_.has_digests()) {
    HAULWAY_ASSIGN(auto digests,
                   reader_.Digests(row, bytes.before, bytes.after));
    checker.emplace(std::move(digests));
  }
  uint32_t found = crc32.value_or(0);
  for (uint64_t done = 0; done < payload.size(); done += kShareBytes) {
    HAULWAY_TRY(progress_->CheckCancelled());
    const auto share =
        payload.subspan(done, std::min(kShareBytes, payload.size() - done));
    if (has_crc32 && !crc32.has_value()) found = Crc32(found, share);
    if (checker.has_value()) checker->Update(share);
  }
  progress_->AddTime(Stage::kVerify, clock);
  if (has_crc32) HAULWAY_TRY(CompareCrc32(row, found));
  if (!checker.has_value()) return Status();
  return PlaceMismatch(checker->Finish(), info(row));
}

Status StorageFinisher::CompareCrc32(uint32_t row, uint32_t found) const {
  const auto expected = info(row).crc32;
  if (!expected.has_value() || *expected == found) return Status();
  return PlaceMismatch(
      Status(Code::kMismatch,
             fmt::format("CRC-32 differs: expected {}, found {}", *expected,
                         found)),
      info(row));
}

}  // namespace haulway
