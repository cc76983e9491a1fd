#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "haulway/options.h"
#include "haulway/source.h"

namespace haulway {

namespace {

// Page-aligned data in a part stays page-aligned.
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

  // Calls each part once, so that a part can read several ranges at a time.
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

  std::optional<FileBytes> InFile(uint64_t offset,
                                  uint64_t length) const override {
    if (parts_.empty()) return std::nullopt;
    const size_t part = PartAt(offset);
    const uint64_t within = offset - starts_[part];
    if (!RangeFits(within, length, parts_[part]->size())) return std::nullopt;
    return parts_[part]->InFile(within, length);
  }

  SourceTraits Look(std::span<const ByteRange> ranges) const override;
  Result<std::shared_ptr<const ByteSource>> Reopen(IoMode io) const override;
  Result<std::shared_ptr<const ByteSource>> Snapshot(
      std::span<const ByteRange> ranges) const override;
  Status Prefetch(uint64_t offset, uint64_t length) const override;
  Status Authenticate(std::span<const ByteRange> ranges) const override;
  void DropCache(uint64_t offset, uint64_t length) const override;

 private:
  // Calls visit(part, range within it) for each part that holds bytes of
  // `range`.
  template <class Visit>
  void ForEachPart(const ByteRange& range, const Visit& visit) const {
    if (!RangeFits(range.offset, range.length, size_) || parts_.empty()) return;
    const uint64_t end = range.offset + range.length;
    for (size_t part = PartAt(range.offset);
         part < parts_.size() && starts_[part] < end; ++part) {
      const uint64_t begin = std::max(range.offset, starts_[part]);
      const uint64_t stop = std::min(end, starts_[part] + parts_[part]->size());
      if (begin < stop) visit(part, {begin - starts_[part], stop - begin});
    }
  }

  // Returns the last part that starts at or before `offset`.
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

Result<std::shared_ptr<const ByteSource>> ConcatenatedSource::Snapshot(
    std::span<const ByteRange> ranges) const {
  std::vector<std::vector<ByteRange>> by_part(parts_.size());
  for (const ByteRange& range : ranges) {
    ForEachPart(range, [&](size_t part, const ByteRange& within) {
      by_part[part].push_back(within);
    });
  }
  std::vector<std::shared_ptr<const ByteSource>> parts;
  parts.reserve(parts_.size());
  for (size_t part = 0; part < parts_.size(); ++part) {
    HAULWAY_ASSIGN(auto snapshot, parts_[part]->Snapshot(by_part[part]));
    parts.push_back(std::move(snapshot));
  }
  return std::shared_ptr<const ByteSource>(
      std::make_shared<const ConcatenatedSource>(std::move(parts), starts_,
                                                 size_, name_));
}

SourceTraits ConcatenatedSource::Look(std::span<const ByteRange> ranges) const {
  std::vector<std::vector<ByteRange>> by_part(parts_.size());
  std::vector<double> bytes(parts_.size());
  double total = 0;
  for (const ByteRange& range : ranges) {
    ForEachPart(range, [&](size_t part, const ByteRange& within) {
      by_part[part].push_back(within);
      bytes[part] += static_cast<double>(within.length);
      total += static_cast<double>(within.length);
    });
  }
  SourceTraits all{
      .views = true, .local_file = true, .direct = true, .uring = true};
  for (size_t part = 0; part < parts_.size(); ++part) {
    const SourceTraits one = parts_[part]->Look(by_part[part]);
    all.views &= one.views;
    all.local_file &= one.local_file;
    all.remote |= one.remote;
    all.direct &= one.direct;
    // Parts start at page boundaries, so alignment within a part is preserved.
    all.direct_alignment = std::max(all.direct_alignment, one.direct_alignment);
    all.uring &= one.uring;
    if (all.file_system.empty()) all.file_system = one.file_system;
    if (total > 0) all.resident += one.resident * bytes[part] / total;
    all.parallel = std::max(all.parallel, one.parallel);
    all.gathers |= one.gathers;
    all.in_order |= one.in_order;
  }
  if (total == 0) all.resident = 1;
  return all;
}

Result<std::shared_ptr<const ByteSource>> ConcatenatedSource::Reopen(
    IoMode io) const {
  std::vector<std::shared_ptr<const ByteSource>> parts;
  parts.reserve(parts_.size());
  for (const auto& part : parts_) {
    HAULWAY_ASSIGN(auto again, part->Reopen(io));
    parts.push_back(std::move(again));
  }
  return std::shared_ptr<const ByteSource>(
      std::make_shared<const ConcatenatedSource>(std::move(parts), starts_,
                                                 size_, name_));
}

Status ConcatenatedSource::Prefetch(uint64_t offset, uint64_t length) const {
  Status status;
  ForEachPart({offset, length}, [&](size_t part, const ByteRange& within) {
    if (!status.ok()) return;
    status = parts_[part]->Prefetch(within.offset, within.length);
  });
  return status;
}

Status ConcatenatedSource::Authenticate(
    std::span<const ByteRange> ranges) const {
  std::vector<std::vector<ByteRange>> by_part(parts_.size());
  for (const ByteRange& range : ranges) {
    ForEachPart(range, [&](size_t part, const ByteRange& within) {
      by_part[part].push_back(within);
    });
  }
  for (size_t part = 0; part < parts_.size(); ++part) {
    if (by_part[part].empty()) continue;
    HAULWAY_TRY(parts_[part]->Authenticate(by_part[part]));
  }
  return Status();
}

void ConcatenatedSource::DropCache(uint64_t offset, uint64_t length) const {
  ForEachPart({offset, length}, [&](size_t part, const ByteRange& within) {
    parts_[part]->DropCache(within.offset, within.length);
  });
}

}  // namespace

Result<Concatenation> ConcatenateSources(
    std::vector<std::shared_ptr<const ByteSource>> parts, std::string name) {
  Concatenation made;
  uint64_t size = 0;
  for (const auto& part : parts) {
    if (part == nullptr) {
      return Status(Code::kInvalidArgument, "source is null").Of(name);
    }
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
