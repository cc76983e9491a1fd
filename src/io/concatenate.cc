#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "haulway/limits.h"
#include "haulway/source.h"

namespace haulway {

namespace {

// What is aligned to a page in a part stays so.
constexpr uint64_t kPartAlignment = 4 * kKiB;

class ConcatenatedSource : public ByteSource {
 public:
  ConcatenatedSource(std::vector<std::shared_ptr<const ByteSource>> parts,
                     std::vector<uint64_t> starts, uint64_t size,
                     std::string name)
      : parts_(std::move(parts)),
        starts_(std::move(starts)),
        size_(size),
        name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  uint64_t size() const override { return size_; }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const ReadRequest request{offset, out};
    return ReadMany(std::span(&request, 1));
  }

  // Every part is asked once, so that it can read at many places at a time.
  Status ReadMany(std::span<const ReadRequest> requests) const override {
    std::vector<std::vector<ReadRequest>> by_part(parts_.size());
    for (const ReadRequest& request : requests) {
      if (!RangeFits(request.offset, request.out.size(), size_)) {
        return Status(Code::kTruncated, "read ends past the source")
            .At(request.offset);
      }
      uint64_t offset = request.offset;
      std::span<std::byte> out = request.out;
      while (!out.empty()) {
        const size_t part = PartAt(offset);
        const uint64_t within = offset - starts_[part];
        const uint64_t held = parts_[part]->size();
        const uint64_t next =
            part + 1 < parts_.size() ? starts_[part + 1] : size_;
        uint64_t length = std::min<uint64_t>(out.size(), next - offset);
        if (within < held) {
          length = std::min(length, held - within);
          by_part[part].push_back({within, out.subspan(0, length)});
        } else {
          std::memset(out.data(), 0, length);
        }
        offset += length;
        out = out.subspan(length);
      }
    }
    for (size_t part = 0; part < parts_.size(); ++part) {
      if (by_part[part].empty()) continue;
      Status status = parts_[part]->ReadMany(by_part[part]);
      if (!status.ok()) return std::move(status).Of(parts_[part]->name());
    }
    return Status();
  }

  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    if (parts_.empty()) return std::nullopt;
    const size_t part = PartAt(offset);
    const uint64_t within = offset - starts_[part];
    if (!RangeFits(within, length, parts_[part]->size())) return std::nullopt;
    return parts_[part]->View(within, length);
  }

 private:
  // The last part that starts at or before `offset`.
  size_t PartAt(uint64_t offset) const {
    return static_cast<size_t>(std::ranges::upper_bound(starts_, offset) -
                               starts_.begin()) -
           1;
  }

  const std::vector<std::shared_ptr<const ByteSource>> parts_;
  const std::vector<uint64_t> starts_;  // The first is 0.
  const uint64_t size_;
  const std::string name_;
};

}  // namespace

Result<Concatenation> ConcatenateSources(
    std::vector<std::shared_ptr<const ByteSource>> parts, std::string name) {
  Concatenation made;
  uint64_t size = 0;
  for (const auto& part : parts) {
    uint64_t start = 0;
    if (!CheckedRoundUp(size, kPartAlignment, &start) ||
        !CheckedAdd(start, part->size(), &size)) {
      return Status(Code::kLimit, "the parts are too large together").Of(name);
    }
    made.starts.push_back(start);
  }
  made.source = std::make_shared<const ConcatenatedSource>(
      std::move(parts), made.starts, size, std::move(name));
  return made;
}

}  // namespace haulway
