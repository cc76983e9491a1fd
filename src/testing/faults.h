// Injects faults, for tests of code that reads.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "haulway/source.h"

namespace haulway::test {

// The faults to inject. Reads are counted from 0 over the life of the source;
// each request of a ReadMany() counts as one.
struct Faults {
  // Called before each read; if it fails, the read fails. May block to be slow,
  // count, or truncate files.
  std::function<Status(uint64_t read, uint64_t offset, uint64_t bytes)>
      before_read = nullptr;
  // The `failures` reads from number `fail_from` on fail with `failure`.
  uint64_t fail_from = ~uint64_t{0};
  uint64_t failures = ~uint64_t{0};
  Status failure = Status(Code::kIoError, "injected");
  // From read `cut_from` on, the source ends at `cut_at`.
  uint64_t cut_from = ~uint64_t{0};
  uint64_t cut_at = 0;
};

// A FaultySource has the bytes of `source`, with faults. It has no views.
// Reopen() returns a source with the same faults and the same count of reads.
class FaultySource : public ByteSource {
 public:
  FaultySource(std::shared_ptr<const ByteSource> source, Faults faults)
      : FaultySource(std::move(source),
                     std::make_shared<State>(std::move(faults))) {}

  std::string_view name() const override { return source_->name(); }
  uint64_t size() const override { return source_->size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override;
  Status ReadMany(std::span<const ReadRequest> requests) const override;
  SourceTraits Look(std::span<const ByteRange> ranges) const override;
  Result<std::shared_ptr<const ByteSource>> Reopen(IoMode io) const override;
  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override;

  uint64_t reads() const { return state_->reads.load(); }

 private:
  struct State {
    explicit State(Faults all) : faults(std::move(all)) {}
    const Faults faults;
    std::atomic<uint64_t> reads{0};
  };
  FaultySource(std::shared_ptr<const ByteSource> source,
               std::shared_ptr<State> state)
      : source_(std::move(source)), state_(std::move(state)) {}

  const std::shared_ptr<const ByteSource> source_;
  const std::shared_ptr<State> state_;
};

// While a ShortReads exists, preadv(2) and pread(2) of the whole test program
// do what a system may do at any time: return fewer bytes than requested, or be
// interrupted. From a given call on, they may fail.
class ShortReads {
 public:
  struct Plan {
    uint64_t most_bytes = ~uint64_t{0};  // Maximum that one call returns.
    // Interrupt every so many calls; 0 for never.
    uint64_t interrupt_every = 0;
    uint64_t fail_from = ~uint64_t{0};  // Calls from this number on fail
    int error = 0;                      // with this errno.
  };
  explicit ShortReads(const Plan& plan);
  ShortReads(const ShortReads&) = delete;
  ShortReads& operator=(const ShortReads&) = delete;
  ~ShortReads();

  uint64_t calls() const;
};

}  // namespace haulway::test
