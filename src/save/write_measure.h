// What writing a file took, seen from outside of the writers: by what passes
// between them and the sink.

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

// A WorkTime adds up the time that threads spend on something.
class WorkTime {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::nanoseconds(time_))
        .count();
  }
  // Runs `work`, whose time is added; returns what it does.
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

// A MeasuredSink passes everything on to another sink, which must outlive it.
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

  // Sets what is known here.
  void Record(WriteStats* stats) const;

 private:
  ByteSink& sink_;
  WorkTime allocating_;
  WorkTime writing_;
  WorkTime committing_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> copied_{0};
};

// `options` with as many threads as there are to be, and as its memory budget
// allows.
WriteOptions WithThreads(const WriteOptions& options);

}  // namespace haulway
