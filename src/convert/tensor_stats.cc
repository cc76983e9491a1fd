#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "base/no_memory.h"
#include "base/posix.h"
#include "base/thread_pool.h"
#include "convert/numbers.h"
#include "convert/tensor_source.h"
#include "haulway/compare.h"

namespace haulway {

namespace {

// Moments are statistics of some numbers that can be combined with others by
// the method of Chan, Golub and LeVeque, which loses no digits to large means.
struct Moments {
  uint64_t nan = 0;
  uint64_t inf = 0;
  uint64_t finite = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double mean = 0;
  double squares = 0;  // Sum of the squared differences from the mean.

  void Join(const Moments& other) {
    nan += other.nan;
    inf += other.inf;
    if (other.finite == 0) return;
    const auto n = static_cast<double>(finite);
    const auto m = static_cast<double>(other.finite);
    const double apart = other.mean - mean;
    mean += apart * (m / (n + m));
    squares += other.squares + apart * apart * (n * m / (n + m));
    finite += other.finite;
    min = std::min(min, other.min);
    max = std::max(max, other.max);
  }

  static Moments Of(std::span<const double> numbers) {
    Moments made;
    double sum = 0;
    for (const double number : numbers) {
      if (!std::isfinite(number)) {
        ++(std::isnan(number) ? made.nan : made.inf);
        continue;
      }
      ++made.finite;
      sum += number;
      made.min = std::min(made.min, number);
      made.max = std::max(made.max, number);
    }
    if (made.finite == 0) return made;
    made.mean = sum / static_cast<double>(made.finite);
    for (const double number : numbers) {
      if (!std::isfinite(number)) continue;
      made.squares += (number - made.mean) * (number - made.mean);
    }
    return made;
  }
};

// A tensor that is measured piece by piece.
struct Measured {
  size_t position = 0;  // Position in the request.
  DType dtype = DType::kU8;
  BytesToWrite bytes;
  std::vector<Moments> pieces;
};

class Measuring {
 public:
  Measuring(const Checkpoint& checkpoint, const TensorStatsOptions& options)
      : checkpoint_(checkpoint), options_(options) {
    threads_ = convert::ThreadsOf(options.threads);
    source_.block_bytes =
        convert::BlockBytesFor(options.memory_budget, threads_);
    source_.verify = false;
    source_.cancel = options.cancel;
  }

  Result<std::vector<std::optional<TensorStats>>> Run(
      std::span<const uint32_t> tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      HAULWAY_TRY(Take(i, tensors[i]));
    }
    std::vector<std::pair<uint32_t, uint64_t>> work;  // Tensor and piece.
    for (uint32_t i = 0; i < measured_.size(); ++i) {
      for (uint64_t piece = 0; piece < measured_[i].pieces.size(); ++piece) {
        work.emplace_back(i, piece);
      }
    }
    HAULWAY_TRY(ParallelFor(work.size(), threads_, [&](uint64_t i) {
      return Measure(measured_[work[i].first], work[i].second);
    }));
    std::vector<std::optional<TensorStats>> stats(tensors.size());
    for (const Measured& one : measured_) stats[one.position] = Conclude(one);
    return stats;
  }

 private:
  Status Take(size_t position, uint32_t tensor) {
    const TensorInfo& info = checkpoint_.index().tensors[tensor];
    if (info.kind == TensorKind::kMeta || !convert::AreNumbers(info.dtype)) {
      return Status();
    }
    HAULWAY_TRY(convert::CheckElements(checkpoint_.index(), info));
    Measured& one = measured_.emplace_back();
    one.position = position;
    one.dtype = info.dtype;
    one.bytes = convert::ElementsOf(checkpoint_, tensor, info.dtype, source_);
    one.pieces.resize((info.nbytes + convert::kPieceBytes - 1) /
                      convert::kPieceBytes);
    total_ += info.nbytes;
    return Status();
  }

  Status Measure(Measured& one, uint64_t piece) {
    if (options_.cancel != nullptr && options_.cancel->load()) {
      return Status(Code::kCancelled, "measuring was cancelled");
    }
    const uint64_t first = piece * convert::kPieceBytes;
    const uint64_t size =
        std::min(convert::kPieceBytes, one.bytes.length - first);
    const auto memory = std::make_unique_for_overwrite<std::byte[]>(size);
    const std::span<std::byte> bytes(memory.get(), size);
    HAULWAY_TRY(
        one.bytes.source->ReadAt(one.bytes.source_offset + first, bytes));
    const size_t parts = convert::NumbersPerElement(one.dtype);
    const uint64_t item = ItemBytes(one.dtype);
    const uint64_t step = convert::kNumbersAtOnce / parts * item;
    double numbers[convert::kNumbersAtOnce];
    for (uint64_t at = 0; at < size; at += step) {
      const uint64_t part = std::min(step, size - at);
      convert::ToNumbers(bytes.subspan(at, part), one.dtype, numbers);
      const size_t count = part / item;
      for (size_t i = 0; parts == 2 && i < count; ++i) {
        numbers[i] = std::hypot(numbers[2 * i], numbers[2 * i + 1]);
      }
      one.pieces[piece].Join(Moments::Of(std::span(numbers, count)));
    }
    const std::lock_guard lock(mutex_);
    done_ += size;
    if (options_.progress) options_.progress(done_, total_);
    return Status();
  }

  // Combines the pieces in order, so the result does not depend on threads.
  static TensorStats Conclude(const Measured& one) {
    Moments all;
    for (const Moments& piece : one.pieces) all.Join(piece);
    TensorStats stats;
    stats.elements = all.nan + all.inf + all.finite;
    stats.nan = all.nan;
    stats.inf = all.inf;
    if (all.finite == 0) return stats;
    stats.min = all.min;
    stats.max = all.max;
    stats.mean = all.mean;
    stats.std = std::sqrt(all.squares / static_cast<double>(all.finite));
    return stats;
  }

  const Checkpoint& checkpoint_;
  const TensorStatsOptions& options_;
  int threads_ = 1;
  convert::SourceOptions source_;
  std::vector<Measured> measured_;
  std::mutex mutex_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

}  // namespace

Result<std::vector<std::optional<TensorStats>>> MeasureTensors(
    const Checkpoint& checkpoint, std::span<const uint32_t> tensors,
    const TensorStatsOptions& options) {
  return OrNoMemory(
      [&] { return Measuring(checkpoint, options).Run(tensors); });
}

}  // namespace haulway
