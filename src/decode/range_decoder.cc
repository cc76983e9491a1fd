#include "decode/range_decoder.h"

#include <algorithm>

#include "base/checked.h"
#include "base/digest.h"
#include "decode/encoding_traits.h"
#include "decode/storage_decoder.h"

namespace haulway {

bool RangeDecoder::Takes(const StorageInfo& storage) {
  return TraitsOf(storage).has_ranges();
}

Result<std::unique_ptr<RangeDecoder>> RangeDecoder::Open(
    const FormatReader& reader, uint32_t row, bool verify,
    std::vector<std::byte> before, std::span<const std::byte> after,
    DecodeWatch* watch) {
  HAULWAY_TRY(reader.CheckFrame(row, before, after));
  std::unique_ptr<RangeDecoder> decoder(
      new RangeDecoder(reader, row, std::move(before), watch));
  const EncodingTraits& traits = TraitsOf(decoder->info());
  if (traits.is_in_place) {
    HAULWAY_ASSIGN(const uint64_t unit,
                   reader.UnitBytes(row, decoder->before_));
    decoder->unit_bytes_ =
        unit == 0 ? std::max<uint64_t>(1, decoder->info().stored_bytes) : unit;
  }
  if (!traits.is_raw) return decoder;
  const std::vector<std::byte> frame = std::move(decoder->before_);
  // Encodings with units verify each unit when decoding it.
  if (!verify) return decoder;
  decoder->has_crc32_ = decoder->info().crc32.has_value();
  HAULWAY_ASSIGN(const std::vector<PayloadDigest> digests,
                 reader.Digests(row, frame, after));
  for (const PayloadDigest& digest : digests) {
    if (!digest.crc32.has_value()) continue;
    decoder->prefixed_.push_back({Crc32(0, digest.prefix), *digest.crc32});
  }
  return decoder;
}

RangeDecoder::Units RangeDecoder::UnitsOf(uint64_t offset,
                                          uint64_t length) const {
  const uint64_t first = offset - offset % unit_bytes_;
  uint64_t last = 0;
  if (!CheckedRoundUp(offset + length, unit_bytes_, &last)) last = UINT64_MAX;
  last = std::min(last, info().stored_bytes);
  return {first, last - first};
}

uint64_t RangeDecoder::Step(uint64_t largest) const {
  return std::max<uint64_t>(1, largest / unit_bytes_) * unit_bytes_;
}

Status RangeDecoder::Decode(uint64_t offset, std::span<std::byte> units) const {
  if (!TraitsOf(info()).is_in_place) return Status();
  const StageClock clock;
  HAULWAY_TRY(DecodeInPlace(reader_, row_, before_, offset, units, 1, *watch_));
  watch_->AddDecodeTime(clock);
  return Status();
}

bool RangeDecoder::is_done() const {
  if (!checks()) return true;
  const std::lock_guard lock(mutex_);
  return noted_ >= info().stored_bytes;
}

Status RangeDecoder::Note(uint64_t offset, std::span<const std::byte> piece) {
  if (!has_crc32_ && prefixed_.empty()) return Status();
  const StageClock clock;
  const std::optional<uint32_t> crc32 = Join(offset, piece);
  watch_->AddVerifyTime(clock);
  if (!crc32.has_value()) return Status();
  if (has_crc32_) HAULWAY_TRY(CompareCrc32(info(), *crc32));
  if (prefixed_.empty()) return Status();
  const auto matches = [&](const Prefixed& expected) {
    return Crc32Join(expected.prefix, *crc32, info().stored_bytes) ==
           expected.both;
  };
  if (std::ranges::any_of(prefixed_, matches)) return Status();
  return PlaceMismatch(Status(Code::kMismatch, "CRC-32 differs"), info());
}

std::optional<uint32_t> RangeDecoder::Join(uint64_t offset,
                                           std::span<const std::byte> piece) {
  if (piece.empty()) return std::nullopt;
  const uint32_t crc32 = Crc32(0, piece);
  const std::lock_guard lock(mutex_);
  if (!pieces_.try_emplace(offset, crc32, piece.size()).second) {
    return std::nullopt;
  }
  noted_ += piece.size();
  if (noted_ != info().stored_bytes) return std::nullopt;
  uint32_t joined = 0;  // CRC-32 of no bytes.
  uint64_t end = 0;
  for (const auto& [at, known] : pieces_) {
    if (at != end) return std::nullopt;
    joined = Crc32Join(joined, known.first, known.second);
    end += known.second;
  }
  return joined;
}

}  // namespace haulway
