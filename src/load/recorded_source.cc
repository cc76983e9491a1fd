#include "load/recorded_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "base/checked.h"

namespace haulway {

size_t Recording::AddFile(std::string name, uint64_t size) {
  const std::lock_guard lock(mutex_);
  files_.push_back({std::move(name), size, {}});
  return files_.size() - 1;
}

void Recording::AddRange(size_t file, uint64_t offset,
                         std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const std::lock_guard lock(mutex_);
  auto& ranges = files_[file].ranges;
  auto at = ranges.upper_bound(offset);
  // Find the range that the new range continues or overlaps, if any.
  if (at != ranges.begin()) {
    const auto before = std::prev(at);
    if (offset - before->first <= before->second.size()) at = before;
  }
  if (at == ranges.end() || at->first > offset) {
    at = ranges.emplace_hint(at, offset, std::vector<std::byte>());
  }
  std::vector<std::byte>& kept = at->second;
  const uint64_t inside = offset - at->first;
  const uint64_t known = std::min<uint64_t>(kept.size() - inside, bytes.size());
  kept.insert(kept.end(), bytes.begin() + static_cast<ptrdiff_t>(known),
              bytes.end());
  // Merge the ranges that the extended range now touches.
  for (auto next = std::next(at); next != ranges.end();) {
    const uint64_t end = at->first + kept.size();
    if (next->first > end) break;
    const uint64_t seen = end - next->first;
    if (seen < next->second.size()) {
      kept.insert(kept.end(),
                  next->second.begin() + static_cast<ptrdiff_t>(seen),
                  next->second.end());
    }
    next = ranges.erase(next);
  }
}

namespace {

// Returns the recorded name of a file that was opened from the file `of`.
std::string NameBeside(std::string_view of, std::string_view name) {
  if (of.empty()) return std::string(name);
  return fmt::format("{}//{}", of, name);
}

// Returns the recorded name of the base of the version in the file `of`.
std::string NameOfBase(std::string_view of, std::string_view base) {
  return fmt::format("{}//base//{}", of, base);
}

class RecordingSource : public ByteSource {
 public:
  RecordingSource(std::shared_ptr<const ByteSource> source,
                  std::shared_ptr<Recording> recording, std::string name)
      : source_(std::move(source)),
        recording_(std::move(recording)),
        recorded_name_(std::move(name)),
        file_(recording_->AddFile(recorded_name_, source_->size())) {}

  std::string_view name() const override { return source_->name(); }
  uint64_t size() const override { return source_->size(); }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    Status status = source_->ReadAt(offset, out);
    if (status.ok()) Keep(offset, out);
    return status;
  }

  Status ReadMany(std::span<const ReadRequest> requests) const override {
    Status status = source_->ReadMany(requests);
    if (!status.ok()) return status;
    for (const ReadRequest& request : requests) {
      Keep(request.offset, request.out);
    }
    return status;
  }

  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    if (!recording_->stopped()) return std::nullopt;
    return source_->View(offset, length);
  }

  SourceTraits Look(std::span<const ByteRange> ranges) const override {
    return source_->Look(ranges);
  }

  std::optional<RemoteStats> remote_stats() const override {
    return source_->remote_stats();
  }

  // Reads of the reopened source are not recorded.
  Result<std::shared_ptr<const ByteSource>> Reopen(IoMode io) const override {
    return source_->Reopen(io);
  }

  Status Prefetch(uint64_t offset, uint64_t length) const override {
    return source_->Prefetch(offset, length);
  }
  void DropCache(uint64_t offset, uint64_t length) const override {
    source_->DropCache(offset, length);
  }

  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override {
    auto opened = source_->OpenNeighbour(name);
    if (!opened.ok() || recording_->stopped()) return opened;
    return std::shared_ptr<const ByteSource>(
        std::make_shared<RecordingSource>(std::move(opened).value(), recording_,
                                          NameBeside(recorded_name_, name)));
  }

  Result<std::shared_ptr<const ByteSource>> OpenBase(
      std::string_view version, std::string_view base) const override {
    auto opened = source_->OpenBase(version, base);
    if (!opened.ok() || recording_->stopped()) return opened;
    return std::shared_ptr<const ByteSource>(
        std::make_shared<RecordingSource>(std::move(opened).value(), recording_,
                                          NameOfBase(recorded_name_, base)));
  }

 private:
  void Keep(uint64_t offset, std::span<const std::byte> bytes) const {
    if (!recording_->stopped()) recording_->AddRange(file_, offset, bytes);
  }

  const std::shared_ptr<const ByteSource> source_;
  const std::shared_ptr<Recording> recording_;
  const std::string recorded_name_;
  const size_t file_;
};

class ReplayingSource : public ByteSource {
 public:
  ReplayingSource(std::shared_ptr<const std::vector<ReplayedFile>> files,
                  size_t file, std::shared_ptr<const void> owner,
                  std::string name)
      : files_(std::move(files)),
        file_((*files_)[file]),
        owner_(std::move(owner)),
        name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  uint64_t size() const override { return file_.size; }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    if (!RangeFits(offset, out.size(), file_.size)) {
      return Status(Code::kTruncated,
                    fmt::format("read needs {} bytes, {} remain", out.size(),
                                file_.size - std::min(offset, file_.size)))
          .At(offset);
    }
    if (out.empty()) return Status();
    const auto after = std::ranges::upper_bound(file_.ranges, offset, {},
                                                &ReplayedRange::offset);
    if (after != file_.ranges.begin()) {
      const ReplayedRange& range = *std::prev(after);
      const uint64_t inside = offset - range.offset;
      if (RangeFits(inside, out.size(), range.bytes.size())) {
        std::memcpy(out.data(), range.bytes.data() + inside, out.size());
        return Status();
      }
    }
    return Status(Code::kCorrupt,
                  fmt::format("shared memory lacks {} bytes of the index",
                              out.size()))
        .At(offset);
  }

  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override {
    return Open(NameBeside(file_.name, name), name);
  }

  Result<std::shared_ptr<const ByteSource>> OpenBase(
      std::string_view, std::string_view base) const override {
    return Open(NameOfBase(file_.name, base), base);
  }

 private:
  Result<std::shared_ptr<const ByteSource>> Open(const std::string& recorded,
                                                 std::string_view name) const {
    for (size_t i = 1; i < files_->size(); ++i) {
      if ((*files_)[i].name == recorded) {
        return std::shared_ptr<const ByteSource>(
            std::make_shared<ReplayingSource>(
                files_, i, owner_, fmt::format("{}/{}", name_, name)));
      }
    }
    return Status(Code::kCorrupt, "shared memory lacks a part of the index");
  }

  const std::shared_ptr<const std::vector<ReplayedFile>> files_;
  const ReplayedFile& file_;
  const std::shared_ptr<const void> owner_;
  const std::string name_;
};

}  // namespace

std::shared_ptr<const ByteSource> RecordSource(
    std::shared_ptr<const ByteSource> source,
    std::shared_ptr<Recording> recording) {
  return std::make_shared<RecordingSource>(std::move(source),
                                           std::move(recording), "");
}

std::shared_ptr<const ByteSource> ReplaySource(
    std::shared_ptr<const std::vector<ReplayedFile>> files,
    std::shared_ptr<const void> owner, std::string name) {
  return std::make_shared<ReplayingSource>(std::move(files), 0,
                                           std::move(owner), std::move(name));
}

}  // namespace haulway
