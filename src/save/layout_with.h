// A layout that owns the memory of its payloads.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "haulway/layout.h"
#include "haulway/status.h"

namespace haulway {

// A LayoutWith owns a `Held`, and forwards to the layout that was made from it.
template <class Held>
class LayoutWith : public Layout {
 public:
  explicit LayoutWith(Held held) : held_(std::move(held)) {}

  const Held& held() const { return held_; }
  // Sets the layout. Call it once, before any other method. Requires: the
  // layout refers only to held(), or to objects that outlive this.
  void Take(std::unique_ptr<const Layout> layout) {
    layout_ = std::move(layout);
  }

  uint64_t size() const override { return layout_->size(); }
  std::span<const Payload> payloads() const override {
    return layout_->payloads();
  }
  std::span<const Frame> frames() const override { return layout_->frames(); }
  Digesting digesting() const override { return layout_->digesting(); }
  Status EncodeFrame(size_t frame, const Digests& digests,
                     std::span<std::byte> out) const override {
    return layout_->EncodeFrame(frame, digests, out);
  }
  std::unique_ptr<PayloadEncoder> Start(size_t payload) const override {
    return layout_->Start(payload);
  }
  void DigestTogether(
      std::span<PayloadEncoder* const> encoders,
      std::span<const std::span<const std::byte>> pieces) const override {
    layout_->DigestTogether(encoders, pieces);
  }
  uint64_t split() const override { return layout_->split(); }

 private:
  const Held held_;
  std::unique_ptr<const Layout> layout_;
};

}  // namespace haulway
