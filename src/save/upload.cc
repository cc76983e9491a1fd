#include <algorithm>

#include "haulway/layout.h"
#include "io/web_page.h"

namespace haulway {

namespace {

// Limit on bytes read ahead of the sink, which has bytes of its own in flight.
constexpr uint64_t kMostAhead = 32 * kMiB;

// The layout of a file with exactly the bytes of a source.
class WholeSource : public Layout {
 public:
  explicit WholeSource(const ByteSource& source) {
    payload_.length = source.size();
    payload_.source = &source;
  }

  uint64_t size() const override { return payload_.length; }
  std::span<const Payload> payloads() const override {
    if (size() == 0) return {};
    return std::span(&payload_, 1);
  }
  std::span<const Frame> frames() const override { return {}; }
  Status EncodeFrame(size_t, const Digests&,
                     std::span<std::byte>) const override {
    return Status(Code::kInternal, "there is no frame");
  }

 private:
  Payload payload_;
};

}  // namespace

Result<WriteStats> Upload(const ByteSource& source, ByteSink& sink,
                          const WriteOptions& options) {
  HAULWAY_TRY(RefuseWebPage(source, sink.name()));
  WriteOptions bounded = options;
  bounded.memory_budget = std::min(bounded.memory_budget, kMostAhead);
  return Write(WholeSource(source), sink, bounded);
}

}  // namespace haulway
