#include "torch/pickle_stream.h"

#include <fmt/format.h>

#include <algorithm>

#include "haulway/options.h"

namespace haulway::torch {

namespace {
// Holds the pickles of most files in one read. For longer pickles, the window
// doubles.
constexpr uint64_t kFirstWindow = 256 * kKiB;
}  // namespace

Result<PickleResult> PickleStream::Next(const PickleOptions& options,
                                        std::string_view what) {
  // The window may hold more pickles. Read more only when one is cut, so that
  // many small pickles share a window.
  uint64_t wanted = 1;
  while (true) {
    const uint64_t held =
        position_ >= window_start_ && position_ - window_start_ < window_.size()
            ? window_.size() - (position_ - window_start_)
            : 0;
    if (held < std::min(wanted, remaining())) {
      const uint64_t length =
          std::min(std::max(wanted, kFirstWindow), remaining());
      // Copy even from a mapping, because trees refer to the bytes, and the
      // file's owner may truncate the file.
      HAULWAY_ASSIGN(window_, AllocateBuffer(length));
      HAULWAY_TRY(source_.ReadAt(position_, window_.mutable_bytes()));
      window_start_ = position_;
      kept_.push_back(window_);
    }
    // At the end there may be no window, or one that ends before the position.
    const auto bytes = remaining() == 0
                           ? std::span<const std::byte>()
                           : window_.bytes().subspan(position_ - window_start_);
    PickleOptions window = options;
    window.more_follows = bytes.size() < remaining();
    auto parsed = ParsePickle(bytes, arena_, window);
    const bool cut = bytes.size() < remaining() &&
                     (parsed.ok() ? options.scan && !parsed->complete
                                  : parsed.status().code() == Code::kTruncated);
    if (cut) {
      wanted = std::max(kFirstWindow, bytes.size() * 2);
      continue;
    }
    if (!parsed.ok()) {
      return std::move(parsed).status().In(
          fmt::format("{} at byte {}", what, position_));
    }
    position_ += parsed->consumed;
    return parsed;
  }
}

Status PickleStream::Read(std::span<std::byte> out) {
  if (out.size() > remaining()) {
    return Status(Code::kTruncated,
                  fmt::format("file ends early: expected {} bytes, found {}",
                              out.size(), remaining()))
        .At(position_);
  }
  HAULWAY_TRY(source_.ReadAt(position_, out));
  position_ += out.size();
  return Status();
}

Status PickleStream::Skip(uint64_t bytes) {
  if (bytes > remaining()) {
    return Status(Code::kTruncated,
                  fmt::format("file ends early: expected {} bytes, found {}",
                              bytes, remaining()))
        .At(position_);
  }
  position_ += bytes;
  return Status();
}

}  // namespace haulway::torch
