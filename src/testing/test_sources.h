// Sources that count reads, or fail on demand.

#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "haulway/source.h"

namespace haulway::test {

// Returns a source of `bytes`, which must outlive it.
inline std::shared_ptr<const ByteSource> InMemory(const std::string& bytes) {
  return MakeMemorySource(std::as_bytes(std::span<const char>(bytes)));
}

// A CountingSource counts reads; a vectored read counts once. It has no views.
class CountingSource : public ByteSource {
 public:
  explicit CountingSource(std::string bytes) : bytes_(std::move(bytes)) {}
  std::string_view name() const override { return "counted"; }
  uint64_t size() const override { return bytes_.size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    ++reads;
    return all_->ReadAt(offset, out);
  }
  Status ReadMany(std::span<const ReadRequest> requests) const override {
    ++reads;
    return all_->ReadMany(requests);
  }
  mutable std::atomic<int> reads{0};

 private:
  const std::string bytes_;
  const std::shared_ptr<const ByteSource> all_ =
      MakeMemorySource(std::as_bytes(std::span<const char>(bytes_)));
};

// A FaultSource fails every read of bytes from `begin` to `end`, once armed.
class FaultSource : public ByteSource {
 public:
  FaultSource(std::string bytes, Status fault)
      : bytes_(std::move(bytes)), fault_(std::move(fault)) {}
  std::string_view name() const override { return "faulty"; }
  uint64_t size() const override { return bytes_.size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    if (offset < end && offset + out.size() > begin) return fault_;
    return all_->ReadAt(offset, out);
  }
  std::atomic<uint64_t> begin{0};
  std::atomic<uint64_t> end{0};

 private:
  const std::string bytes_;
  const Status fault_;
  const std::shared_ptr<const ByteSource> all_ =
      MakeMemorySource(std::as_bytes(std::span<const char>(bytes_)));
};

}  // namespace haulway::test
