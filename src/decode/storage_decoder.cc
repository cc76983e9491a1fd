#include "decode/storage_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/digest.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "decode/encoding_traits.h"
#include "haulway/options.h"
#include "tensor/byte_swap.h"
#include "tensor/payload_digest.h"

namespace haulway {

namespace {

// Bytes that a thread decodes between two checks for cancellation.
constexpr uint64_t kShareBytes = 4 * kMiB;

}  // namespace

DecodeWatch* DecodeWatch::None() {
  static DecodeWatch none;
  return &none;
}

std::string PlaceOf(const StorageInfo& storage) {
  return fmt::format("storage {}", Quote(storage.key));
}

Status PlaceMismatch(Status status, const StorageInfo& storage) {
  if (status.code() != Code::kMismatch) return status;
  return std::move(status).At(storage.offset).In(PlaceOf(storage));
}

Status CompareCrc32(const StorageInfo& storage, uint32_t found) {
  const auto expected = storage.crc32;
  if (!expected.has_value() || *expected == found) return Status();
  return PlaceMismatch(
      Status(Code::kMismatch,
             fmt::format("CRC-32 differs: expected {}, found {}", *expected,
                         found)),
      storage);
}

Result<uint64_t> DecodeStep(const FormatReader& reader, uint32_t row,
                            std::span<const std::byte> frame,
                            uint64_t largest) {
  HAULWAY_ASSIGN(const uint64_t unit, reader.UnitBytes(row, frame));
  if (unit == 0) {
    return std::max<uint64_t>(1, reader.index().storages[row].stored_bytes);
  }
  return std::max<uint64_t>(1, largest / unit) * unit;
}

StoredBytes SplitFrame(const StorageInfo& storage, std::span<std::byte> frame) {
  const uint64_t before = storage.offset - storage.frame_offset;
  return {frame.first(before), frame.subspan(before, storage.stored_bytes),
          frame.subspan(before + storage.stored_bytes)};
}

Status DecodeInPlace(const FormatReader& reader, uint32_t row,
                     std::span<const std::byte> before, uint64_t offset,
                     std::span<std::byte> units, int threads,
                     const DecodeWatch& watch) {
  HAULWAY_ASSIGN(const uint64_t step,
                 DecodeStep(reader, row, before, kShareBytes));
  const uint64_t shares = units.size() / step + (units.size() % step != 0);
  return ParallelFor(shares, threads, [&](uint64_t share) -> Status {
    HAULWAY_TRY(watch.CheckCancelled());
    const uint64_t begin = share * step;
    const auto part =
        units.subspan(begin, std::min(step, units.size() - begin));
    return reader.Decode(row, before, offset + begin, part, part);
  });
}

Status StorageDecoder::Finish(uint32_t row, const StoredBytes& bytes,
                              std::span<std::byte> payload, int threads,
                              std::optional<uint32_t> crc32) const {
  HAULWAY_TRY(watch_->CheckCancelled());
  HAULWAY_TRY(CheckFrame(row, bytes.before, bytes.after));
  HAULWAY_TRY(Decode(row, bytes, payload, threads));
  HAULWAY_TRY(Verify(row, bytes, payload, crc32));
  if (info(row).swap_bytes != 1) {
    const StageClock clock;
    SwapBytes(payload, info(row).swap_bytes);
    watch_->AddDecodeTime(clock);
  }
  return Status();
}

Status StorageDecoder::Check(uint32_t row, const StoredBytes& bytes,
                             std::optional<uint32_t> crc32) const {
  HAULWAY_TRY(CheckFrame(row, bytes.before, bytes.after));
  return Verify(row, bytes, bytes.stored, crc32);
}

bool StorageDecoder::Writes(uint32_t row) const {
  return TraitsOf(info(row)).is_stored || !options_.is_zeroed;
}

bool StorageDecoder::HasWork(uint32_t row) const {
  return TraitsOf(info(row)).is_in_place ||
         (options_.verify && reader_.has_digests());
}

bool StorageDecoder::TakesCrc32(uint32_t row) const {
  return options_.verify && info(row).crc32.has_value() &&
         TraitsOf(info(row)).is_raw;
}

Status StorageDecoder::Decode(uint32_t row, const StoredBytes& bytes,
                              std::span<std::byte> payload, int threads) const {
  const EncodingTraits& traits = TraitsOf(info(row));
  if (traits.is_raw || payload.empty()) return Status();
  const StageClock clock;
  Status status;
  if (traits.is_apart) {
    status = reader_.Decode(row, bytes.before, 0, bytes.stored, payload);
  } else if (traits.is_in_place) {
    status =
        DecodeInPlace(reader_, row, bytes.before, 0, payload, threads, *watch_);
  } else if (Writes(row)) {
    // Do not touch zeroed memory: a file of a few bytes may claim a huge
    // storage of zeros.
    std::memset(payload.data(), 0, payload.size());
  }
  watch_->AddDecodeTime(clock);
  return status;
}

Status StorageDecoder::Verify(uint32_t row, const StoredBytes& bytes,
                              std::span<const std::byte> payload,
                              std::optional<uint32_t> crc32) const {
  if (!options_.verify) return Status();
  // Digests cover the stored bytes, of which there are none.
  if (!TraitsOf(info(row)).is_stored) payload = {};
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
    HAULWAY_TRY(watch_->CheckCancelled());
    const auto share =
        payload.subspan(done, std::min(kShareBytes, payload.size() - done));
    if (has_crc32 && !crc32.has_value()) found = Crc32(found, share);
    if (checker.has_value()) checker->Update(share);
  }
  watch_->AddVerifyTime(clock);
  if (has_crc32) HAULWAY_TRY(CompareCrc32(info(row), found));
  if (!checker.has_value()) return Status();
  return PlaceMismatch(checker->Finish(), info(row));
}

}  // namespace haulway
