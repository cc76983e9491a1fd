#include "decode/sequence_decoder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "decode/encoding_traits.h"
#include "decode/storage_decoder.h"
#include "haulway/buffer.h"
#include "haulway/options.h"

namespace haulway {

namespace {

// Read and digested while in cache.
constexpr uint64_t kPieceBytes = 1 * kMiB;
constexpr uint64_t kSmallBytes = 64 * kKiB;

}  // namespace

bool SequenceDecoder::Takes(const StorageInfo& storage) {
  return storage.frame_end == storage.offset + storage.stored_bytes &&
         storage.swap_bytes == 1 && TraitsOf(storage).has_ranges();
}

Result<SequenceDecoder> SequenceDecoder::Open(const FormatReader& reader,
                                              uint32_t row, bool verify,
                                              std::span<const std::byte> frame,
                                              DecodeWatch* watch) {
  SequenceDecoder decoder(reader, row, frame, watch);
  HAULWAY_TRY(reader.CheckFrame(row, frame, {}));
  if (verify) {
    HAULWAY_ASSIGN(auto digests, reader.Digests(row, frame, {}));
    decoder.checker_.emplace(std::move(digests));
  }
  return decoder;
}

Result<uint64_t> SequenceDecoder::Step(uint64_t largest) const {
  if (!TraitsOf(info()).is_in_place) return largest;
  return DecodeStep(*reader_, row_, frame_, largest);
}

Status SequenceDecoder::Decode(std::span<std::byte> piece) {
  if (TraitsOf(info()).is_in_place) {
    const StageClock clock;
    HAULWAY_TRY(reader_->Decode(row_, frame_, done_, piece, piece));
    watch_->AddDecodeTime(clock);
  }
  done_ += piece.size();
  return Status();
}

void SequenceDecoder::Digest(std::span<SequenceDecoder* const> decoders,
                             std::span<const std::span<std::byte>> pieces) {
  std::vector<PayloadChecker*> checkers;
  std::vector<std::span<const std::byte>> checked;
  for (size_t i = 0; i < decoders.size(); ++i) {
    if (!decoders[i]->checker_.has_value()) continue;
    checkers.push_back(&*decoders[i]->checker_);
    checked.push_back(pieces[i]);
  }
  if (checkers.empty()) return;
  const StageClock clock;
  PayloadChecker::UpdateTogether(checkers, checked);
  decoders[0]->watch_->AddVerifyTime(clock);
}

Status SequenceDecoder::Finish() {
  if (!checker_.has_value()) return Status();
  return PlaceMismatch(checker_->Finish(), info());
}

Status ReadSequence(
    const ByteSource& source, SequenceDecoder decoder,
    const std::function<void(std::span<const std::byte>)>& take) {
  const uint64_t stored = decoder.info().stored_bytes;
  HAULWAY_ASSIGN(const uint64_t step, decoder.Step(kPieceBytes));
  // Buffers are mapped, which is dear for the smallest of storages.
  const uint64_t bytes = std::min(step, stored);
  std::vector<std::byte> small(bytes <= kSmallBytes ? bytes : 0);
  Buffer large;
  if (bytes > kSmallBytes) {
    HAULWAY_ASSIGN(large, AllocateBuffer(bytes));
  }
  const std::span<std::byte> memory =
      bytes > kSmallBytes ? large.mutable_bytes() : std::span(small);
  SequenceDecoder* const decoders[] = {&decoder};
  while (decoder.done() < stored) {
    const std::span<std::byte> piece =
        memory.first(std::min(step, stored - decoder.done()));
    HAULWAY_TRY(source.ReadAt(decoder.info().offset + decoder.done(), piece));
    HAULWAY_TRY(decoder.Decode(piece));
    SequenceDecoder::Digest(decoders, std::span(&piece, 1));
    if (take) take(piece);
  }
  return decoder.Finish();
}

}  // namespace haulway
