#include "decode/sequence_decoder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "decode/encoding_traits.h"
#include "decode/storage_decoder.h"
#include "haulway/buffer.h"
#include "haulway/options.h"

namespace haulway {

namespace {

// Bytes read and digested while in cache: of all payloads of a round, and the
// least of each.
constexpr uint64_t kPieceBytes = 1 * kMiB;
constexpr uint64_t kSmallestPiece = 128 * kKiB;
// For a server a request costs more than the bytes it transfers.
constexpr uint64_t kServerPiece = 16 * kMiB;

// Where the bytes of a payload are read to.
struct PayloadPlace {
  uint64_t step = 0;  // Size of one piece.
  bool is_held = false;
  std::span<std::byte> memory{};  // The held bytes, or room for one piece.
};

struct PieceMemory {
  Buffer buffer;
  std::vector<PayloadPlace> places;  // Unset where the status is not ok.
};

Result<PieceMemory> AllocatePieces(const ByteSource& source,
                                   std::span<const SequenceDecoder> decoders,
                                   const HeldBytes& held,
                                   std::span<Status> statuses) {
  const uint64_t largest = PieceBytes(decoders.size());
  const bool is_server = source.Look({}).is_server();
  PieceMemory memory;
  memory.places.resize(decoders.size());
  uint64_t total = 0;
  for (size_t i = 0; i < decoders.size(); ++i) {
    const StorageInfo& info = decoders[i].info();
    PayloadPlace& place = memory.places[i];
    const auto whole = held.Find(info.offset, info.stored_bytes);
    const Result<uint64_t> step = decoders[i].Step(
        is_server && !whole.has_value() ? kServerPiece : largest);
    statuses[i] = step.status();
    if (!step.ok()) continue;
    place.step = std::min(*step, info.stored_bytes);
    place.is_held = whole.has_value();
    if (place.is_held) {
      place.memory = *whole;
    } else {
      total += place.step;
    }
  }
  HAULWAY_ASSIGN(memory.buffer, AllocateBuffer(total));
  std::span<std::byte> rest = memory.buffer.mutable_bytes();
  for (PayloadPlace& place : memory.places) {
    if (place.is_held) continue;
    place.memory = rest.first(place.step);
    rest = rest.subspan(place.step);
  }
  return memory;
}

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

uint64_t PieceBytes(size_t together) {
  return std::max(kSmallestPiece, kPieceBytes / together);
}

std::optional<std::span<std::byte>> HeldBytes::Find(uint64_t at,
                                                    uint64_t length) const {
  if (at < offset || !RangeFits(at - offset, length, bytes.size())) {
    return std::nullopt;
  }
  return bytes.subspan(at - offset, length);
}

Status ReadSequence(
    const ByteSource& source, SequenceDecoder decoder,
    const std::function<void(std::span<const std::byte>)>& take) {
  return ReadSequences(source, std::span(&decoder, 1),
                       [&](size_t, std::span<const std::byte> piece) {
                         if (take) take(piece);
                       })[0];
}

std::vector<Status> ReadSequences(
    const ByteSource& source, std::span<SequenceDecoder> decoders,
    const std::function<void(size_t, std::span<const std::byte>)>& take,
    const HeldBytes& held) {
  std::vector<Status> statuses(decoders.size());
  if (decoders.empty()) return statuses;
  const Result<PieceMemory> memory =
      AllocatePieces(source, decoders, held, statuses);
  if (!memory.ok()) {
    std::ranges::fill(statuses, memory.status());
    return statuses;
  }
  std::vector<size_t> numbers;
  std::vector<SequenceDecoder*> read;
  std::vector<std::span<std::byte>> pieces;
  const auto read_next = [&](size_t i) -> Status {
    SequenceDecoder& decoder = decoders[i];
    const StorageInfo& info = decoder.info();
    const PayloadPlace& place = memory->places[i];
    const auto piece = place.memory.subspan(
        place.is_held ? decoder.done() : 0,
        std::min(place.step, info.stored_bytes - decoder.done()));
    if (!place.is_held) {
      HAULWAY_TRY(source.ReadAt(info.offset + decoder.done(), piece));
    }
    HAULWAY_TRY(decoder.Decode(piece));
    numbers.push_back(i);
    read.push_back(&decoder);
    pieces.push_back(piece);
    return Status();
  };
  while (true) {
    numbers.clear();
    read.clear();
    pieces.clear();
    for (size_t i = 0; i < decoders.size(); ++i) {
      const bool done = decoders[i].done() == decoders[i].info().stored_bytes;
      if (statuses[i].ok() && !done) statuses[i] = read_next(i);
    }
    if (read.empty()) break;
    SequenceDecoder::Digest(read, pieces);
    for (size_t k = 0; take && k < numbers.size(); ++k) {
      take(numbers[k], pieces[k]);
    }
  }
  for (size_t i = 0; i < decoders.size(); ++i) {
    if (statuses[i].ok()) statuses[i] = decoders[i].Finish();
  }
  return statuses;
}

}  // namespace haulway
