#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "haulway/layout.h"

namespace haulway {

namespace {

class JoinedLayout : public Layout {
 public:
  explicit JoinedLayout(std::vector<std::unique_ptr<const Layout>> parts)
      : parts_(std::move(parts)) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Layout& part = *parts_[i];
      first_payloads_.push_back(payloads_.size());
      for (size_t f = 0; f < part.frames().size(); ++f) {
        Frame frame = part.frames()[f];
        frame.offset += size_;
        frame.payload += payloads_.size();
        frames_.push_back(frame);
        places_.push_back({i, f});
      }
      for (Payload payload : part.payloads()) {
        payload.offset += size_;
        payloads_.push_back(payload);
      }
      size_ += part.size();
    }
  }

  uint64_t size() const override { return size_; }
  std::span<const Payload> payloads() const override { return payloads_; }
  std::span<const Frame> frames() const override { return frames_; }
  Digesting digesting() const override {
    return parts_.empty() ? Digesting::kNone : parts_[0]->digesting();
  }
  Status EncodeFrame(size_t frame, const Digests& digests,
                     std::span<std::byte> out) const override {
    const Place& place = places_[frame];
    const Layout& part = *parts_[place.part];
    Digests own = digests;
    if (!own.crc32.empty()) {
      own.crc32 = own.crc32.subspan(first_payloads_[place.part],
                                    part.payloads().size());
    }
    return part.EncodeFrame(place.frame, own, out);
  }

 private:
  // The part and number of a frame.
  struct Place {
    size_t part;
    size_t frame;
  };

  const std::vector<std::unique_ptr<const Layout>> parts_;
  std::vector<size_t> first_payloads_;
  std::vector<Payload> payloads_;
  std::vector<Frame> frames_;
  std::vector<Place> places_;  // Parallel to frames.
  uint64_t size_ = 0;
};

}  // namespace

std::unique_ptr<const Layout> JoinLayouts(
    std::vector<std::unique_ptr<const Layout>> archives) {
  return std::make_unique<const JoinedLayout>(std::move(archives));
}

}  // namespace haulway
