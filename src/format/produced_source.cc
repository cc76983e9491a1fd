#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "haulway/save.h"

namespace haulway {

namespace {

// Writers may read the first bytes of a payload again at the end. These are
// kept, so that the payload is not produced again.
constexpr uint64_t kHeadKept = 64;

class ProducedSource : public ByteSource {
 public:
  ProducedSource(uint64_t size, std::function<Result<Buffer>()> produce,
                 std::string name)
      : size_(size), produce_(std::move(produce)), name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  uint64_t size() const override { return size_; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    if (!RangeFits(offset, out.size(), size_)) {
      return Status(Code::kTruncated, "range ends past what is produced")
          .At(offset);
    }
    if (out.empty()) return Status();
    HAULWAY_ASSIGN(const std::optional<Buffer> made, Take(offset, out));
    if (!made.has_value()) return Status();
    std::memcpy(out.data(), made->data() + offset, out.size());
    const std::lock_guard lock(mutex_);
    read_ += out.size();
    if (read_ >= size_) {
      made_.reset();
      read_ = 0;
    }
    return Status();
  }

 private:
  // Returns the produced bytes; nullopt if `out` was filled from the kept ones.
  Result<std::optional<Buffer>> Take(uint64_t offset,
                                     std::span<std::byte> out) const {
    const std::lock_guard lock(mutex_);
    if (!made_.has_value() && has_head_ && offset + out.size() <= kHeadKept) {
      std::memcpy(out.data(), head_.data() + offset, out.size());
      return std::optional<Buffer>();
    }
    if (!made_.has_value()) {
      HAULWAY_ASSIGN(Buffer made, produce_());
      if (made.size() != size_) {
        return Status(Code::kInvalidArgument,
                      "the produced bytes are of another size");
      }
      std::copy_n(made.data(), std::min(size_, kHeadKept), head_.begin());
      has_head_ = true;
      made_ = std::move(made);
    }
    return made_;
  }

  const uint64_t size_;
  const std::function<Result<Buffer>()> produce_;
  const std::string name_;
  mutable std::mutex mutex_;
  mutable std::optional<Buffer> made_ HAULWAY_GUARDED_BY(mutex_);
  mutable uint64_t read_ HAULWAY_GUARDED_BY(mutex_) = 0;
  mutable std::array<std::byte, kHeadKept> head_ HAULWAY_GUARDED_BY(mutex_){};
  mutable bool has_head_ HAULWAY_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::shared_ptr<const ByteSource> MakeProducedSource(
    uint64_t size, std::function<Result<Buffer>()> produce, std::string name) {
  return std::make_shared<const ProducedSource>(size, std::move(produce),
                                                std::move(name));
}

}  // namespace haulway
