// Measures writing outside of the writers: at the calls between them and the
// sink.

#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "haulway/layout.h"
#include "haulway/sink.h"

namespace haulway {

// A WorkTime sums the time that threads spend on some work.
class WorkTime {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::nanoseconds(time_))
        .count();
  }
  // Runs `work`, adds its time, and returns its result.
  template <class Work>
  auto Measure(const Work& work) {
    const Span span(&time_);
    return work();
  }

 private:
  class Span {
   public:
    explicit Span(std::atomic<int64_t>* time) : time_(time) {}
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    ~Span() {
      const auto passed = Clock::now() - start_;
      time_->fetch_add(
          std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count(),
          std::memory_order_relaxed);
    }

   private:
    using Clock = std::chrono::steady_clock;
    std::atomic<int64_t>* const time_;
    const Clock::time_point start_ = Clock::now();
  };

  std::atomic<int64_t> time_{0};
};

// A MeasuredSink forwards to another sink, which must outlive it, and adds its
// name to errors.
class MeasuredSink : public ByteSink {
 public:
  using ByteSink::WriteAt;
  explicit MeasuredSink(ByteSink* sink) : sink_(*sink) {}

  std::string_view name() const override { return sink_.name(); }
  Result<SinkTraits> Begin(std::optional<uint64_t> size) override;
  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override;
  Status CopyAt(uint64_t offset, const FileBytes& from,
                uint64_t length) override;
  uint64_t direct_bytes() const override { return sink_.direct_bytes(); }
  Status Commit(uint64_t size) override;

  // Stores the measurements in `stats`.
  void Record(WriteStats* stats) const;

 private:
  ByteSink& sink_;
  WorkTime allocating_;
  WorkTime writing_;
  WorkTime committing_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> copied_{0};
};

// Returns `options` with the number of threads resolved, limited by the memory
// budget.
WriteOptions WithThreads(const WriteOptions& options);

}  // namespace haulway
