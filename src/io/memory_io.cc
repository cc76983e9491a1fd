#include <fmt/format.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "base/checked.h"
#include "haulway/source.h"

namespace haulway {

namespace {

Status CheckRange(uint64_t offset, uint64_t length, uint64_t size) {
  if (RangeFits(offset, length, size)) return Status();
  return Status(Code::kTruncated,
                fmt::format("read of {} bytes ends past the source: expected "
                            "at most {} bytes in all",
                            length, size))
      .At(offset);
}

class BufferSource : public ByteSource {
 public:
  BufferSource(Buffer bytes, std::string name)
      : bytes_(std::move(bytes)), name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  uint64_t size() const override { return bytes_.size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    HAULWAY_TRY(CheckRange(offset, out.size(), size()));
    if (!out.empty()) {
      std::memcpy(out.data(), bytes_.data() + offset, out.size());
    }
    return Status();
  }
  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    return bytes_.Slice(offset, length);
  }

 private:
  const Buffer bytes_;
  const std::string name_;
};

class FunctionSource : public ByteSource {
 public:
  FunctionSource(uint64_t size, ReadFunction read, std::string name)
      : size_(size), read_(std::move(read)), name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  uint64_t size() const override { return size_; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    HAULWAY_TRY(CheckRange(offset, out.size(), size_));
    if (out.empty()) return Status();
    if (!read_) {
      return Status(Code::kInvalidArgument, "function that reads is null");
    }
    return read_(offset, out);
  }

 private:
  const uint64_t size_;
  const ReadFunction read_;
  const std::string name_;
};

class SliceSource : public ByteSource {
 public:
  SliceSource(std::shared_ptr<const ByteSource> parent, uint64_t offset,
              uint64_t length)
      : parent_(std::move(parent)), offset_(offset), length_(length) {}

  std::string_view name() const override { return parent_->name(); }
  uint64_t size() const override { return length_; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    HAULWAY_TRY(CheckRange(offset, out.size(), length_));
    return parent_->ReadAt(offset_ + offset, out);
  }
  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    return parent_->View(offset_ + offset, length);
  }
  std::optional<FileBytes> InFile(uint64_t offset,
                                  uint64_t length) const override {
    return parent_->InFile(offset_ + offset, length);
  }
  Status ReadMany(std::span<const ReadRequest> requests) const override {
    std::vector<ReadRequest> shifted(requests.begin(), requests.end());
    for (ReadRequest& request : shifted) {
      HAULWAY_TRY(CheckRange(request.offset, request.out.size(), length_));
      request.offset += offset_;
    }
    return parent_->ReadMany(shifted);
  }
  SourceTraits Look(std::span<const ByteRange> ranges) const override {
    return parent_->Look(Shifted(ranges));
  }
  std::optional<RemoteStats> remote_stats() const override {
    return parent_->remote_stats();
  }
  Result<std::shared_ptr<const ByteSource>> Reopen(IoMode io) const override {
    HAULWAY_ASSIGN(auto parent, parent_->Reopen(io));
    return SliceOf(std::move(parent));
  }
  Result<std::shared_ptr<const ByteSource>> Snapshot(
      std::span<const ByteRange> ranges) const override {
    HAULWAY_ASSIGN(auto parent, parent_->Snapshot(Shifted(ranges)));
    return SliceOf(std::move(parent));
  }
  Status Prefetch(uint64_t offset, uint64_t length) const override {
    return parent_->Prefetch(offset_ + offset, length);
  }
  void DropCache(uint64_t offset, uint64_t length) const override {
    parent_->DropCache(offset_ + offset, length);
  }

 private:
  std::shared_ptr<const ByteSource> SliceOf(
      std::shared_ptr<const ByteSource> parent) const {
    return std::make_shared<const SliceSource>(std::move(parent), offset_,
                                               length_);
  }
  // Returns the ranges in the parent, without ranges that end past the slice.
  std::vector<ByteRange> Shifted(std::span<const ByteRange> ranges) const {
    std::vector<ByteRange> shifted;
    shifted.reserve(ranges.size());
    for (const ByteRange& range : ranges) {
      if (!RangeFits(range.offset, range.length, length_)) continue;
      shifted.push_back({offset_ + range.offset, range.length});
    }
    return shifted;
  }

  const std::shared_ptr<const ByteSource> parent_;
  const uint64_t offset_;
  const uint64_t length_;
};

}  // namespace

std::shared_ptr<const ByteSource> MakeMemorySource(
    std::span<const std::byte> bytes, std::string name) {
  // The Buffer is not writable, so nothing writes through the cast.
  const std::span<std::byte> same(const_cast<std::byte*>(bytes.data()),
                                  bytes.size());
  return MakeBufferSource(Buffer(nullptr, same, /*writable=*/false),
                          std::move(name));
}

std::shared_ptr<const ByteSource> MakeBufferSource(Buffer bytes,
                                                   std::string name) {
  return std::make_shared<const BufferSource>(std::move(bytes),
                                              std::move(name));
}

std::shared_ptr<const ByteSource> MakeFunctionSource(uint64_t size,
                                                     ReadFunction read,
                                                     std::string name) {
  return std::make_shared<const FunctionSource>(size, std::move(read),
                                                std::move(name));
}

Result<std::shared_ptr<const ByteSource>> MakeSliceSource(
    std::shared_ptr<const ByteSource> parent, uint64_t offset,
    uint64_t length) {
  if (parent == nullptr) {
    return Status(Code::kInvalidArgument, "source is null");
  }
  HAULWAY_TRY(CheckRange(offset, length, parent->size()));
  return std::shared_ptr<const ByteSource>(
      std::make_shared<const SliceSource>(std::move(parent), offset, length));
}

Result<std::shared_ptr<const ByteSource>> MakeIstreamSource(
    std::shared_ptr<std::istream> stream, std::string name) {
  if (stream == nullptr) {
    return Status(Code::kInvalidArgument, "stream is null").Of(name);
  }
  stream->exceptions(std::ios::goodbit);  // Errors are checked below.
  const std::istream::pos_type start = stream->tellg();
  stream->seekg(0, std::ios::end);
  const std::istream::pos_type end = stream->tellg();
  if (!stream->good() || start < 0 || end < start) {
    return Status(Code::kIoError, "stream cannot seek").Of(name);
  }
  struct Shared {
    std::mutex mutex;
    std::shared_ptr<std::istream> stream;
  };
  auto shared = std::make_shared<Shared>();
  shared->stream = std::move(stream);
  const auto base = static_cast<uint64_t>(start);
  const auto size = static_cast<uint64_t>(end - start);
  return MakeFunctionSource(
      size,
      [shared, base](uint64_t offset, std::span<std::byte> out) -> Status {
        const std::lock_guard lock(shared->mutex);
        std::istream& in = *shared->stream;
        in.clear();
        in.seekg(static_cast<std::istream::off_type>(base + offset));
        in.read(reinterpret_cast<char*>(out.data()),
                static_cast<std::streamsize>(out.size()));
        if (static_cast<size_t>(in.gcount()) == out.size()) return Status();
        return Status(Code::kIoError,
                      fmt::format("stream read failed: expected {} bytes, "
                                  "found {}",
                                  out.size(), in.gcount()))
            .At(offset);
      },
      std::move(name));
}

}  // namespace haulway
