// What writing a file took, seen from outside of the writers: by what passes
// between them and the sink.

#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/record_layout.h"
#include "haulway/save.h"
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
  Status Commit(uint64_t size) override;

  // Sets what is known here.
  void Record(WriteStats* stats) const;

 private:
  ByteSink& sink_;
  WorkTime allocating_;
  WorkTime writing_;
  WorkTime committing_;
  std::atomic<uint64_t> bytes_{0};
};

// A MeasuredLayout passes everything on to another layout, which must outlive
// it.
class MeasuredLayout : public RecordLayout {
 public:
  explicit MeasuredLayout(const RecordLayout* layout) : layout_(*layout) {}

  uint64_t size() const override { return layout_.size(); }
  std::span<const FileRecord> records() const override {
    return layout_.records();
  }
  std::span<const FixedBytes> fixed() const override { return layout_.fixed(); }
  uint64_t split() const override { return layout_.split(); }
  std::unique_ptr<RecordEncoder> Start(size_t record) const override {
    return layout_.Start(record);
  }
  void DigestTogether(
      std::span<RecordEncoder* const> encoders,
      std::span<const std::span<const std::byte>> pieces) const override;
  std::vector<std::byte> Tail() const override { return layout_.Tail(); }

  double digest_seconds() const { return digesting_.seconds(); }

 private:
  const RecordLayout& layout_;
  mutable WorkTime digesting_;
};

// `options` with as many threads as there are to be, and as its memory budget
// allows.
WriteOptions WithThreads(const WriteOptions& options);

}  // namespace haulway
