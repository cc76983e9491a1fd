// Design: the mask grows in memory that matches may refer to. When it is full,
// the window is moved to its beginning; for the frames that are decoded here
// both fit the processor's cache. The part of the mask that a block will fill
// is made zero before, so that runs of zeros need not be written. A frame that
// states a checksum is summed block by block. Sizes that a frame states are
// compared with the tensor before memory is taken.

#include "delta/mask_reader.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/cursor.h"
#include "base/zstd.h"
#include "delta/zstd_codes.h"
#include "haulway/options.h"

namespace haulway::delta {

namespace {

// The largest window that receivers in Python accept.
constexpr uint64_t kLargestWindow = 128 * kMiB;
// How far the mask grows before the window is moved to its beginning.
// Both stay in the cache of the second level.
constexpr uint64_t kLeastGrowth = 256 * kKiB;

using HashState =
    std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)>;
using Memory = std::unique_ptr<uint8_t[], void (*)(void*)>;

Status EndsEarly() { return Status(Code::kTruncated, "zstd frame ends early"); }

Status BadFrame(std::string_view why) {
  return Status(Code::kCorrupt,
                fmt::format("zstd frame cannot be decompressed: {}", why));
}

}  // namespace

struct MaskReader::State {
  std::span<const uint8_t> rest;  // What is not decoded of the frame.
  uint64_t bytes = 0;             // The size of the tensor.
  uint64_t done = 0;
  uint64_t window = 0;
  bool has_checksum = false;
  bool is_last = false;  // The last block was read.
  BlockDecoder decoder;
  Memory mask{nullptr, std::free};
  uint64_t capacity = 0;  // Without the slack.
  size_t at = 0;          // Where the next byte of the mask goes.
  HashState hash{nullptr, XXH64_freeState};

  Status ReadHeader();
  Status MakeMask();
  // Makes the mask zero where the next block goes.
  void MakeRoom(size_t size);
  // Reads a block, which may be empty.
  Status ReadBlock(std::span<std::byte> tensor, Step* step);
};

MaskReader::MaskReader(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
MaskReader::MaskReader(MaskReader&&) noexcept = default;
MaskReader::~MaskReader() = default;

Result<MaskReader> MaskReader::Open(std::span<const std::byte> frame,
                                    uint64_t bytes) {
  auto state = std::make_unique<State>();
  state->rest = {reinterpret_cast<const uint8_t*>(frame.data()), frame.size()};
  state->bytes = bytes;
  HAULWAY_TRY(state->ReadHeader());
  return MaskReader(std::move(state));
}

Status MaskReader::State::ReadHeader() {
  if (rest.empty()) return Status(Code::kTruncated, "zstd frame is empty");
  if (!BeginsAsZstdFrame(std::as_bytes(rest))) {
    return Status(Code::kCorrupt,
                  "no zstd frame: expected the signature 28 b5 2f fd");
  }
  ByteCursor cursor(std::as_bytes(rest));
  if (cursor.U32() != kFrameMagic) {
    return Status(Code::kTruncated, "zstd frame ends within its header");
  }
  const uint8_t head = cursor.U8();
  const bool is_single = (head & 0x20) != 0;
  has_checksum = (head & 0x04) != 0;
  if ((head & 0x08) != 0) {
    return Status(Code::kUnsupported, "zstd frame has a reserved bit");
  }
  if (!is_single) {
    const uint8_t log_and_part = cursor.U8();
    window = uint64_t{1} << (10 + (log_and_part >> 3));
    window += window / 8 * (log_and_part & 7);
  }
  uint32_t dictionary = 0;
  switch (head & 3) {
    case 1:
      dictionary = cursor.U8();
      break;
    case 2:
      dictionary = cursor.U16();
      break;
    case 3:
      dictionary = cursor.U32();
      break;
    default:
      break;
  }
  uint64_t stated = bytes;
  switch (head >> 6) {
    case 0:
      if (is_single) stated = cursor.U8();
      break;
    case 1:
      stated = uint64_t{cursor.U16()} + 256;
      break;
    case 2:
      stated = cursor.U32();
      break;
    default:
      stated = cursor.U64();
  }
  if (!cursor.ok()) {
    return Status(Code::kTruncated, "zstd frame ends within its header");
  }
  if (dictionary != 0) {
    return Status(Code::kUnsupported, "zstd frame needs a dictionary");
  }
  if (stated != bytes) {
    return Status(Code::kCorrupt,
                  fmt::format("zstd frame is of another tensor: expected {} "
                              "bytes, found {}",
                              bytes, stated));
  }
  if (is_single) window = stated;
  if (window > kLargestWindow) {
    return Status(Code::kUnsupported,
                  fmt::format("zstd frame needs a window of {} bytes: expected "
                              "at most {}",
                              window, kLargestWindow));
  }
  rest = rest.subspan(cursor.position());
  return Status();
}

bool MaskReader::IsFastFor(std::span<const std::byte> frame) {
  // Without a single segment, the window follows the first byte.
  ByteCursor cursor(frame);
  const bool is_frame = cursor.U32() == kFrameMagic;
  const bool is_single = (cursor.U8() & 0x20) != 0;
  const uint8_t log_and_part = cursor.U8();
  constexpr uint8_t kOneBlock = 7 << 3;  // 1 KiB times 2 to the power of 7.
  return cursor.ok() && is_frame && !is_single && log_and_part <= kOneBlock;
}

Status MaskReader::State::MakeMask() {
  capacity =
      std::min<uint64_t>(bytes, window + std::max(window / 2, kLeastGrowth));
  capacity = std::max<uint64_t>(capacity, 1);
  mask.reset(
      static_cast<uint8_t*>(std::malloc(capacity + MaskCombiner::kSlack)));
  if (mask == nullptr) {
    return Status(Code::kLimit, "no memory to decompress a zstd frame");
  }
  if (!has_checksum) return Status();
  hash.reset(XXH64_createState());
  if (hash == nullptr) {
    return Status(Code::kLimit, "no memory to decompress a zstd frame");
  }
  XXH64_reset(hash.get(), 0);
  return Status();
}

void MaskReader::State::MakeRoom(size_t size) {
  if (size > capacity - at) {
    const size_t kept = std::min<uint64_t>(at, window);
    std::memmove(mask.get(), mask.get() + at - kept, kept);
    at = kept;
  }
  std::memset(mask.get() + at, 0, size + MaskCombiner::kSlack);
}

Status MaskReader::State::ReadBlock(std::span<std::byte> tensor, Step* step) {
  constexpr size_t kHeadBytes = 3;
  if (rest.size() < kHeadBytes) return EndsEarly();
  const uint32_t head =
      rest[0] | uint32_t{rest[1]} << 8 | uint32_t{rest[2]} << 16;
  rest = rest.subspan(kHeadBytes);
  is_last = (head & 1) != 0;
  const auto kind = static_cast<BlockKind>((head >> 1) & 3);
  const size_t size = head >> 3;
  if (kind == BlockKind::kReserved) return BadFrame("a block of no known kind");
  const size_t most = std::min<uint64_t>(window, BlockDecoder::kMostBytes);
  if (size > most) return BadFrame("a block is too long");
  const size_t stored = kind == BlockKind::kRun ? 1 : size;
  if (stored > rest.size()) return EndsEarly();
  const auto block = rest.first(stored);
  rest = rest.subspan(stored);

  const size_t room = std::min(most, tensor.size());
  if (mask == nullptr) HAULWAY_TRY(MakeMask());
  MakeRoom(room);
  MaskCombiner out{.mask = mask.get(),
                   .tensor = reinterpret_cast<uint8_t*>(tensor.data()),
                   .begin = at,
                   .at = at,
                   .limit = at + room};
  bool is_good = false;
  switch (kind) {
    case BlockKind::kRaw:
      is_good = out.AddRaw(block);
      break;
    case BlockKind::kRun:
      is_good = out.AddRepeated(block[0], size);
      break;
    default:
      is_good = decoder.Decode(block, &out);
  }
  if (!is_good) {
    return BadFrame(
        fmt::format("the block after {} bytes is damaged or too long", done));
  }
  if (hash != nullptr) {
    XXH64_update(hash.get(), mask.get() + at, out.at - at);
  }
  *step = {out.at - at, out.all != 0};
  done += step->bytes;
  at = out.at;
  return Status();
}

Result<MaskReader::Step> MaskReader::Combine(std::span<std::byte> tensor) {
  Step step;
  while (step.bytes == 0) {
    if (state_->is_last) {
      return Status(Code::kCorrupt,
                    fmt::format("zstd frame is too short: it ends after {} "
                                "bytes",
                                state_->done));
    }
    HAULWAY_TRY(state_->ReadBlock(tensor, &step));
  }
  return step;
}

Status MaskReader::Finish() {
  State& state = *state_;
  while (!state.is_last) {
    Step step;
    // Any byte would be too much.
    HAULWAY_TRY(state.ReadBlock({}, &step));
  }
  if (state.has_checksum) {
    ByteCursor cursor(std::as_bytes(state.rest));
    const uint32_t stated = cursor.U32();
    if (!cursor.ok()) return EndsEarly();
    state.rest = state.rest.subspan(cursor.position());
    const uint64_t found =
        state.hash == nullptr ? 0 : XXH64_digest(state.hash.get());
    if (static_cast<uint32_t>(found) != stated) {
      return BadFrame("its checksum differs");
    }
  }
  if (state.rest.empty()) return Status();
  return Status(Code::kCorrupt,
                fmt::format("{} bytes follow the zstd frame of the tensor",
                            state.rest.size()));
}

}  // namespace haulway::delta
