#include "delta/frame_reader.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "haulway/options.h"

namespace haulway::delta {

namespace {

// The largest window that receivers in Python accept.
constexpr int kLargestWindowLog = 27;
constexpr size_t kSkippedAtATime = 64 * kKiB;

using Context = std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)>;

Status Damaged(std::string_view why) {
  return Status(Code::kCorrupt,
                fmt::format("zstd frame cannot be decompressed: {}", why));
}

}  // namespace

struct FrameReader::State {
  std::span<const std::byte> frame;
  uint64_t stated = ZSTD_CONTENTSIZE_UNKNOWN;
  Context context{nullptr, ZSTD_freeDCtx};
  ZSTD_inBuffer in{};
  bool is_done = false;  // The end of the frame was read.
  uint64_t made = 0;     // Bytes decompressed so far.
};

FrameReader::FrameReader(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
FrameReader::FrameReader(FrameReader&&) noexcept = default;
FrameReader::~FrameReader() = default;

Result<FrameReader> FrameReader::Open(std::span<const std::byte> frame) {
  if (frame.empty()) return Status(Code::kTruncated, "zstd frame is empty");
  constexpr std::array<uint8_t, 4> kMagic = {0x28, 0xB5, 0x2F, 0xFD};
  const auto magic = std::as_bytes(std::span(kMagic));
  const size_t compared = std::min(magic.size(), frame.size());
  if (!std::ranges::equal(frame.first(compared), magic.first(compared))) {
    return Status(Code::kCorrupt,
                  "no zstd frame: expected the signature 28 b5 2f fd");
  }
  auto state = std::make_unique<State>();
  state->stated = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (state->stated == ZSTD_CONTENTSIZE_ERROR) {
    return Status(Code::kTruncated, "zstd frame ends within its header");
  }
  if (ZSTD_getDictID_fromFrame(frame.data(), frame.size()) != 0) {
    return Status(Code::kUnsupported, "zstd frame needs a dictionary");
  }
  state->context.reset(ZSTD_createDCtx());
  if (state->context == nullptr) {
    return Status(Code::kLimit, "no memory to decompress a zstd frame");
  }
  ZSTD_DCtx_setParameter(state->context.get(), ZSTD_d_windowLogMax,
                         kLargestWindowLog);
  state->frame = frame;
  state->in = {frame.data(), frame.size(), 0};
  return FrameReader(std::move(state));
}

bool FrameReader::Contradicts(uint64_t bytes) const {
  return state_->stated != ZSTD_CONTENTSIZE_UNKNOWN && state_->stated != bytes;
}

uint64_t FrameReader::stated_bytes() const {
  return state_->stated == ZSTD_CONTENTSIZE_UNKNOWN ? 0 : state_->stated;
}

Status FrameReader::Fill(std::span<std::byte> out) {
  State& state = *state_;
  ZSTD_outBuffer to = {out.data(), out.size(), 0};
  while (to.pos < to.size) {
    if (state.is_done) {
      return Status(Code::kCorrupt,
                    fmt::format("zstd frame is too short: it ends after {} "
                                "bytes",
                                state.made + to.pos));
    }
    const size_t before = to.pos + state.in.pos;
    const size_t left =
        ZSTD_decompressStream(state.context.get(), &to, &state.in);
    if (ZSTD_isError(left)) return Damaged(ZSTD_getErrorName(left));
    state.is_done = left == 0;
    if (!state.is_done && to.pos + state.in.pos == before) {
      return Status(Code::kTruncated, "zstd frame ends early");
    }
  }
  state.made += out.size();
  return Status();
}

Status FrameReader::Skip(uint64_t bytes) {
  std::vector<std::byte> scratch(std::min<uint64_t>(bytes, kSkippedAtATime));
  while (bytes > 0) {
    const uint64_t part = std::min<uint64_t>(bytes, scratch.size());
    HAULWAY_TRY(Fill(std::span(scratch).first(part)));
    bytes -= part;
  }
  return Status();
}

Status FrameReader::Finish() {
  State& state = *state_;
  std::byte more;
  ZSTD_outBuffer to = {&more, 1, 0};
  while (!state.is_done) {
    const size_t before = state.in.pos;
    const size_t left =
        ZSTD_decompressStream(state.context.get(), &to, &state.in);
    if (ZSTD_isError(left)) return Damaged(ZSTD_getErrorName(left));
    if (to.pos != 0) {
      return Status(
          Code::kCorrupt,
          fmt::format("zstd frame is too long: expected {} bytes", state.made));
    }
    state.is_done = left == 0;
    if (!state.is_done && state.in.pos == before) {
      return Status(Code::kTruncated, "zstd frame ends early");
    }
  }
  if (state.in.pos != state.in.size) {
    return Status(Code::kCorrupt,
                  fmt::format("{} bytes follow the zstd frame of the tensor",
                              state.in.size - state.in.pos));
  }
  return Status();
}

}  // namespace haulway::delta
