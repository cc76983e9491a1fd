#include "io/stoppable_source.h"

#include <utility>

#include "haulway/options.h"

namespace haulway {

namespace {

class StoppableSource : public ByteSource {
 public:
  StoppableSource(std::shared_ptr<const ByteSource> source,
                  const std::atomic<bool>* stop)
      : source_(std::move(source)), stop_(*stop) {}

  std::string_view name() const override { return source_->name(); }
  uint64_t size() const override { return source_->size(); }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    if (stop_.load()) return Stopped();
    const CancelScope scope(&stop_);
    return source_->ReadAt(offset, out);
  }

  Status ReadMany(std::span<const ReadRequest> requests) const override {
    if (stop_.load()) return Stopped();
    const CancelScope scope(&stop_);
    return source_->ReadMany(requests);
  }

  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    if (stop_.load()) return std::nullopt;
    return source_->View(offset, length);
  }

  SourceTraits Look(std::span<const ByteRange> ranges) const override {
    return source_->Look(ranges);
  }

  std::optional<RemoteStats> remote_stats() const override {
    return source_->remote_stats();
  }

  Result<std::shared_ptr<const ByteSource>> Reopen(IoMode io) const override {
    return Wrapped(source_->Reopen(io));
  }

  Result<std::shared_ptr<const ByteSource>> Snapshot(
      std::span<const ByteRange> ranges) const override {
    return Wrapped(source_->Snapshot(ranges));
  }

  Status Prefetch(uint64_t offset, uint64_t length) const override {
    if (stop_.load()) return Stopped();
    const CancelScope scope(&stop_);
    return source_->Prefetch(offset, length);
  }
  void DropCache(uint64_t offset, uint64_t length) const override {
    source_->DropCache(offset, length);
  }

  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override {
    return Wrapped(source_->OpenNeighbour(name));
  }

  Result<std::shared_ptr<const ByteSource>> OpenBase(
      std::string_view version, std::string_view base) const override {
    return Wrapped(source_->OpenBase(version, base));
  }

 private:
  static Status Stopped() {
    return Status(Code::kCancelled, "reading was cancelled");
  }

  Result<std::shared_ptr<const ByteSource>> Wrapped(
      Result<std::shared_ptr<const ByteSource>> opened) const {
    if (!opened.ok()) return opened;
    return MakeStoppableSource(std::move(opened).value(), &stop_);
  }

  const std::shared_ptr<const ByteSource> source_;
  const std::atomic<bool>& stop_;
};

}  // namespace

std::shared_ptr<const ByteSource> MakeStoppableSource(
    std::shared_ptr<const ByteSource> source, const std::atomic<bool>* stop) {
  return std::make_shared<const StoppableSource>(std::move(source), stop);
}

}  // namespace haulway
