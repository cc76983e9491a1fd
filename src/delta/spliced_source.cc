#include "delta/spliced_source.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "base/checked.h"

namespace haulway::delta {

namespace {

using Splices = std::shared_ptr<const std::vector<Splice>>;

class SplicedSource : public ByteSource {
 public:
  SplicedSource(std::shared_ptr<const ByteSource> parent, Splices splices,
                std::string name)
      : parent_(std::move(parent)),
        splices_(std::move(splices)),
        name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  uint64_t size() const override {
    return splices_->empty() ? 0
                             : splices_->back().begin + splices_->back().length;
  }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const ReadRequest request{offset, out};
    return ReadMany({&request, 1});
  }

  Status ReadMany(std::span<const ReadRequest> requests) const override {
    std::vector<ReadRequest> of_parent;
    for (const ReadRequest& request : requests) {
      if (!RangeFits(request.offset, request.out.size(), size())) {
        return Status(Code::kTruncated, "read ends past the source")
            .At(request.offset);
      }
      uint64_t done = 0;
      ForEach({request.offset, request.out.size()},
              [&](uint64_t at, const ByteRange& range) {
                Clear(request.out.subspan(done, at - done));
                of_parent.push_back(
                    {range.offset, request.out.subspan(at, range.length)});
                done = at + range.length;
              });
      Clear(request.out.subspan(done));
    }
    if (of_parent.empty()) return Status();
    if (of_parent.size() == 1) {
      return parent_->ReadAt(of_parent[0].offset, of_parent[0].out);
    }
    return parent_->ReadMany(of_parent);
  }

  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    const Splice* const splice = At(offset);
    if (splice == nullptr ||
        !RangeFits(offset - splice->begin, length, splice->length)) {
      return std::nullopt;
    }
    return parent_->View(splice->from + (offset - splice->begin), length);
  }

  SourceTraits Look(std::span<const ByteRange> ranges) const override {
    return parent_->Look(Mapped(ranges));
  }
  std::optional<RemoteStats> remote_stats() const override {
    return parent_->remote_stats();
  }
  Result<std::shared_ptr<const ByteSource>> Reopen(IoMode io) const override {
    return Spliced(parent_->Reopen(io));
  }
  Result<std::shared_ptr<const ByteSource>> Snapshot(
      std::span<const ByteRange> ranges) const override {
    return Spliced(parent_->Snapshot(Mapped(ranges)));
  }
  Status Prefetch(uint64_t offset, uint64_t length) const override {
    const ByteRange wanted{offset, length};
    for (const ByteRange& range : Mapped({&wanted, 1})) {
      HAULWAY_TRY(parent_->Prefetch(range.offset, range.length));
    }
    return Status();
  }
  void DropCache(uint64_t offset, uint64_t length) const override {
    const ByteRange wanted{offset, length};
    for (const ByteRange& range : Mapped({&wanted, 1})) {
      parent_->DropCache(range.offset, range.length);
    }
  }

 private:
  static void Clear(std::span<std::byte> bytes) {
    if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
  }

  // Returns the splice that holds `offset` or is the last before it; null if
  // there is none.
  const Splice* At(uint64_t offset) const {
    const auto after =
        std::ranges::upper_bound(*splices_, offset, {}, &Splice::begin);
    return after == splices_->begin() ? nullptr : &*(after - 1);
  }

  // Calls visit(place in `wanted`, range of the parent) in ascending order.
  template <class Visit>
  void ForEach(const ByteRange& wanted, const Visit& visit) const {
    const uint64_t end = wanted.offset + wanted.length;
    const Splice* splice = At(wanted.offset);
    if (splice == nullptr) splice = splices_->data();
    for (; splice != splices_->data() + splices_->size() && splice->begin < end;
         ++splice) {
      const uint64_t begin = std::max(wanted.offset, splice->begin);
      const uint64_t stop = std::min(end, splice->begin + splice->length);
      if (begin >= stop) continue;
      visit(begin - wanted.offset,
            ByteRange{splice->from + (begin - splice->begin), stop - begin});
    }
  }

  std::vector<ByteRange> Mapped(std::span<const ByteRange> ranges) const {
    std::vector<ByteRange> mapped;
    for (const ByteRange& range : ranges) {
      if (!RangeFits(range.offset, range.length, size())) continue;
      ForEach(range, [&](uint64_t, const ByteRange& of_parent) {
        mapped.push_back(of_parent);
      });
    }
    return mapped;
  }

  Result<std::shared_ptr<const ByteSource>> Spliced(
      Result<std::shared_ptr<const ByteSource>> parent) const {
    if (!parent.ok()) return parent;
    return std::shared_ptr<const ByteSource>(
        std::make_shared<const SplicedSource>(*std::move(parent), splices_,
                                              name_));
  }

  const std::shared_ptr<const ByteSource> parent_;
  const Splices splices_;
  const std::string name_;
};

}  // namespace

std::shared_ptr<const ByteSource> SpliceSource(
    std::shared_ptr<const ByteSource> parent, std::vector<Splice> splices,
    std::string name) {
  return std::make_shared<const SplicedSource>(
      std::move(parent),
      std::make_shared<const std::vector<Splice>>(std::move(splices)),
      std::move(name));
}

}  // namespace haulway::delta
