#include "delta/frame_reader.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/zstd.h"
#include "haulway/options.h"

namespace haulway::delta {

namespace {

constexpr size_t kSkippedAtATime = 64 * kKiB;

}  // namespace

struct FrameReader::State {
  explicit State(ZstdDecoder made) : decoder(std::move(made)) {}

  // Returns whether the end of the frame was read.
  bool is_done() const { return has_begun && decoder.is_between_frames(); }

  ZstdDecoder decoder;
  uint64_t stated = ZSTD_CONTENTSIZE_UNKNOWN;
  std::span<const std::byte> rest;  // What follows in the frame.
  bool has_begun = false;
  uint64_t made = 0;  // Bytes decompressed so far.
};

FrameReader::FrameReader(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
FrameReader::FrameReader(FrameReader&&) noexcept = default;
FrameReader::~FrameReader() = default;

Result<FrameReader> FrameReader::Open(std::span<const std::byte> frame) {
  if (frame.empty()) return Status(Code::kTruncated, "zstd frame is empty");
  if (!BeginsAsZstdFrame(frame)) {
    return Status(Code::kCorrupt,
                  "no zstd frame: expected the signature 28 b5 2f fd");
  }
  const uint64_t stated = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (stated == ZSTD_CONTENTSIZE_ERROR) {
    return Status(Code::kTruncated, "zstd frame ends within its header");
  }
  if (ZSTD_getDictID_fromFrame(frame.data(), frame.size()) != 0) {
    return Status(Code::kUnsupported, "zstd frame needs a dictionary");
  }
  HAULWAY_ASSIGN(ZstdDecoder decoder, ZstdDecoder::Make());
  auto state = std::make_unique<State>(std::move(decoder));
  state->stated = stated;
  state->rest = frame;
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
  std::span<std::byte> left = out;
  while (!left.empty()) {
    if (state.is_done()) {
      return Status(Code::kCorrupt,
                    fmt::format("zstd frame is too short: it ends after {} "
                                "bytes",
                                state.made + out.size() - left.size()));
    }
    const size_t before = left.size() + state.rest.size();
    HAULWAY_TRY(state.decoder.Next(&state.rest, &left));
    state.has_begun = true;
    if (!state.is_done() && left.size() + state.rest.size() == before) {
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
  while (!state.is_done()) {
    const size_t before = state.rest.size();
    std::span<std::byte> left(&more, 1);
    HAULWAY_TRY(state.decoder.Next(&state.rest, &left));
    state.has_begun = true;
    if (left.empty()) {
      return Status(
          Code::kCorrupt,
          fmt::format("zstd frame is too long: expected {} bytes", state.made));
    }
    if (!state.is_done() && state.rest.size() == before) {
      return Status(Code::kTruncated, "zstd frame ends early");
    }
  }
  if (!state.rest.empty()) {
    return Status(Code::kCorrupt,
                  fmt::format("{} bytes follow the zstd frame of the tensor",
                              state.rest.size()));
  }
  return Status();
}

}  // namespace haulway::delta
