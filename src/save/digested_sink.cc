#include "save/digested_sink.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

namespace haulway {

namespace {

// Shorter writes are not worth a thread.
constexpr uint64_t kLong = 256 << 10;

class DigestedSink : public ByteSink {
 public:
  DigestedSink(std::unique_ptr<ByteSink> sink,
               std::function<void(uint64_t, const Sha256Value&)> done)
      : sink_(std::move(sink)), done_(std::move(done)) {}

  std::string_view name() const override { return sink_->name(); }
  uint64_t direct_bytes() const override { return sink_->direct_bytes(); }

  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    HAULWAY_ASSIGN(SinkTraits traits, sink_->Begin(size));
    traits.ordered = true;
    return traits;
  }

  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    if (offset != end_) {
      return Status(Code::kInternal, "bytes of an ordered file have a gap");
    }
    uint64_t length = 0;
    for (const auto part : parts) length += part.size();
    end_ += length;
    const auto digest = [&] {
      for (const auto part : parts) digest_.Update(part);
    };
    if (length < kLong) {
      digest();
      return sink_->WriteAt(offset, parts);
    }
    std::thread helper(digest);
    Status written = sink_->WriteAt(offset, parts);
    helper.join();
    return written;
  }

  Status Commit(uint64_t size) override {
    HAULWAY_TRY(sink_->Commit(size));
    // Bytes that were never written are zero.
    constexpr std::array<std::byte, 4096> kZeros{};
    while (end_ < size) {
      const auto some = std::span(kZeros).first(
          std::min<uint64_t>(kZeros.size(), size - end_));
      digest_.Update(some);
      end_ += some.size();
    }
    done_(size, digest_.Finish());
    return Status();
  }

 private:
  const std::unique_ptr<ByteSink> sink_;
  const std::function<void(uint64_t, const Sha256Value&)> done_;
  uint64_t end_ = 0;
  Sha256 digest_;
};

}  // namespace

std::unique_ptr<ByteSink> MakeDigestedSink(
    std::unique_ptr<ByteSink> sink,
    std::function<void(uint64_t bytes, const Sha256Value& sha256)> done) {
  return std::make_unique<DigestedSink>(std::move(sink), std::move(done));
}

}  // namespace haulway
