#include "load/payload_stream.h"

#include <algorithm>
#include <utility>
#include <vector>

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

Status PayloadStream::Fetch(std::span<std::byte> piece) {
  HAULWAY_TRY(requests_->Read(info().offset + done_, piece));
  if (info().encoding == Encoding::kEncrypted) {
    const StageClock clock;
    HAULWAY_TRY(reader_->Decode(storage_, frame_, done_, piece, piece));
    progress_->AddTime(Stage::kDecode, clock);
  }
  done_ += piece.size();
  return Status();
}

Status PayloadStream::Next(std::span<std::byte> piece) {
  PayloadStream* const stream = this;
  return NextTogether(std::span(&stream, 1), std::span(&piece, 1));
}

Status PayloadStream::NextTogether(
    std::span<PayloadStream* const> streams,
    std::span<const std::span<std::byte>> pieces) {
  std::vector<PayloadChecker*> checkers;
  std::vector<std::span<const std::byte>> checked;
  for (size_t i = 0; i < streams.size(); ++i) {
    HAULWAY_TRY(streams[i]->Fetch(pieces[i]));
    if (!streams[i]->checker_.has_value()) continue;
    checkers.push_back(&*streams[i]->checker_);
    checked.push_back(pieces[i]);
  }
  if (checkers.empty()) return Status();
  const StageClock clock;
  PayloadChecker::UpdateTogether(checkers, checked);
  streams[0]->progress_->AddTime(Stage::kVerify, clock);
  return Status();
}

Status PayloadStream::Finish() {
  return checker_.has_value() ? checker_->Finish() : Status();
}

}  // namespace haulway
