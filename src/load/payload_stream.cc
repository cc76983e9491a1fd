#include "load/payload_stream.h"

#include <algorithm>
#include <utility>

namespace haulway {

bool IsStreamable(const StorageInfo& storage) {
  return storage.frame_end == storage.offset + storage.stored_bytes &&
         storage.swap_bytes == 1 &&
         (storage.encoding == Encoding::kRaw ||
          storage.encoding == Encoding::kEncrypted);
}

Result<uint64_t> DecodeStep(const FormatReader& reader, uint32_t storage,
                            std::span<const std::byte> frame,
                            uint64_t largest) {
  HAULWAY_ASSIGN(const uint64_t unit, reader.UnitBytes(storage, frame));
  if (unit == 0) {
    return std::max<uint64_t>(1, reader.index().storages[storage].stored_bytes);
  }
  return std::max<uint64_t>(1, largest / unit) * unit;
}

Result<PayloadStream> PayloadStream::Open(const FormatReader& reader,
                                          uint32_t storage, bool verify,
                                          const RequestReader& requests,
                                          LoadProgress* progress,
                                          std::span<std::byte> frame) {
  PayloadStream stream(reader, storage, requests, progress, frame);
  HAULWAY_TRY(requests.Read(stream.info().frame_offset, frame));
  HAULWAY_TRY(reader.CheckFrame(storage, frame, {}));
  if (verify) {
    HAULWAY_ASSIGN(auto digests, reader.Digests(storage, frame, {}));
    stream.checker_.emplace(std::move(digests));
  }
  return stream;
}

Result<uint64_t> PayloadStream::Step(uint64_t largest) const {
  if (info().encoding != Encoding::kEncrypted) return largest;
  return DecodeStep(*reader_, storage_, frame_, largest);
}

Status PayloadStream::Next(std::span<std::byte> piece) {
  HAULWAY_TRY(requests_->Read(info().offset + done_, piece));
  if (info().encoding == Encoding::kEncrypted) {
    const StageClock clock;
    HAULWAY_TRY(reader_->Decode(storage_, frame_, done_, piece, piece));
    progress_->AddTime(Stage::kDecode, clock);
  }
  if (checker_.has_value()) {
    const StageClock clock;
    checker_->Update(piece);
    progress_->AddTime(Stage::kVerify, clock);
  }
  done_ += piece.size();
  return Status();
}

Status PayloadStream::Finish() {
  return checker_.has_value() ? checker_->Finish() : Status();
}

}  // namespace haulway
