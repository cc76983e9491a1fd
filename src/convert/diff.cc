// Design: both files are read in pieces of 1 MiB, the same elements of both, so
// that memcmp() finds both pieces in the cache. If it finds a difference, both
// pieces are converted to numbers. Threads take pieces in the order of the
// first file.
//
// Equal pieces of a tensor are not converted, unless another piece of it
// differs: then they are read again, because NaNs and infinities are counted
// over whole tensors. Counting them in the first pass would slow every
// comparison of equal files for the sake of few.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <utility>

#include "base/no_memory.h"
#include "base/posix.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "convert/leaves.h"
#include "convert/numbers.h"
#include "convert/tensor_source.h"
#include "haulway/compare.h"
#include "haulway/tree.h"
#include "tensor/dtype_kind.h"

namespace haulway {

namespace {

// Statistics of some of a tensor's elements.
struct Tally {
  uint64_t differing = 0;
  uint64_t finite = 0;  // Elements with a finite difference.
  uint64_t nan = 0;
  uint64_t inf = 0;
  double max_abs = 0;
  double sum_abs = 0;
};

// Two tensors with the same name whose elements are compared.
struct Pair {
  std::string_view name;
  uint32_t a = 0, b = 0;  // Rows in tensors.
  DType a_dtype = DType::kU8, b_dtype = DType::kU8;
  uint64_t count = 0;
  uint64_t piece_elements = 0;  // Elements per piece, except the last.
  uint64_t place = 0;           // Position in the first file.
  BytesToWrite a_bytes{}, b_bytes{};
  uint64_t pieces_left = 0;  // Pieces that are not compared yet.
  // By piece, for pieces whose bytes differ. The sums are added in this order,
  // so the result does not depend on threads.
  std::map<uint64_t, Tally> tallies{};

  uint64_t pieces() const {
    return (count + piece_elements - 1) / piece_elements;
  }
};

struct Work {
  uint32_t pair = 0;
  uint64_t piece = 0;
};

struct Memory {
  std::unique_ptr<std::byte[]> a, b;
  std::unique_ptr<double[]> a_numbers, b_numbers;
};

// Returns whether two quantizers have the same scheme, scale, zero point and
// axis. Scales and zero points per channel are tensors with names of their own.
bool IsSame(const Value& a, const Value& b) {
  return std::ranges::equal(a.sequence().items(), b.sequence().items(),
                            [](const Value& x, const Value& y) {
                              if (x.kind() != y.kind()) return false;
                              switch (x.kind()) {
                                case Kind::kGlobal:
                                  return x.global().name == y.global().name;
                                case Kind::kFloat:
                                  return x.real() == y.real();
                                case Kind::kInt:
                                  return x.integer() == y.integer();
                                default:
                                  return true;
                              }
                            });
}

// Returns the quantizer of each quantized tensor, by row.
std::map<uint32_t, Value> QuantizersOf(const CheckpointIndex& index) {
  const auto is_quantized = [](const TensorInfo& tensor) {
    return IsQuantized(tensor.dtype);
  };
  // Walking an object of a million values takes 0.3 s.
  if (std::ranges::none_of(index.tensors, is_quantized)) return {};
  return convert::FindLeaves(index).quantizers;
}

class Comparison {
 public:
  Comparison(const Checkpoint& a, const Checkpoint& b,
             const DiffOptions& options)
      : a_(a), b_(b), options_(options) {
    threads_ = convert::ThreadsOf(options.threads);
    source_.block_bytes =
        convert::BlockBytesFor(options.memory_budget, threads_);
    source_.threads = 1;
    source_.verify = options.verify;
    source_.cancel = options.cancel;
  }

  Result<DiffReport> Run() {
    const auto start = std::chrono::steady_clock::now();
    HAULWAY_TRY(Match());
    HAULWAY_TRY(Compare(AllPieces(), /*only_count=*/false));
    HAULWAY_TRY(Compare(EqualPiecesOfChanged(), /*only_count=*/true));
    Conclude();
    report_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    return std::move(report_);
  }

 private:
  using Names = std::vector<convert::NamedTensor>;

  // Returns the tensors to compare, by name.
  Names NamesOf(const Checkpoint& checkpoint) const {
    Names names = convert::NameTensors(checkpoint.index());
    if (options_.select) {
      std::erase_if(names, [&](const convert::NamedTensor& one) {
        return !options_.select(one.name);
      });
    }
    if (!std::ranges::is_sorted(names, {}, &convert::NamedTensor::name)) {
      std::ranges::stable_sort(names, {}, &convert::NamedTensor::name);
    }
    const auto same =
        std::ranges::unique(names, {}, &convert::NamedTensor::name);
    names.erase(same.begin(), same.end());
    return names;
  }

  Status Match() {
    const Names a_names = NamesOf(a_);
    const Names b_names = NamesOf(b_);
    a_quantizers_ = QuantizersOf(a_.index());
    b_quantizers_ = QuantizersOf(b_.index());
    const bool is_array =
        a_.index().format == Format::kNpy || b_.index().format == Format::kNpy;
    if (is_array && a_names.size() == 1 && b_names.size() == 1) {
      return MatchTensors(a_names[0].name, a_names[0].tensor,
                          b_names[0].tensor);
    }
    auto b = b_names.begin();
    for (const auto& [name, tensor] : a_names) {
      for (; b != b_names.end() && b->name < name; ++b) {
        report_.added.emplace_back(b->name);
      }
      if (b == b_names.end() || b->name != name) {
        report_.removed.emplace_back(name);
      } else {
        HAULWAY_TRY(MatchTensors(name, tensor, b->tensor));
        ++b;
      }
    }
    for (; b != b_names.end(); ++b) report_.added.emplace_back(b->name);
    return Status();
  }

  Status MatchTensors(std::string_view name, uint32_t a, uint32_t b) {
    const TensorInfo& x = a_.index().tensors[a];
    const TensorInfo& y = b_.index().tensors[b];
    const bool has_numbers = convert::AreNumbers(x.dtype) &&
                             convert::AreNumbers(y.dtype) &&
                             IsComplex(x.dtype) == IsComplex(y.dtype);
    if (ElementShape(x.dtype, x.shape) != ElementShape(y.dtype, y.shape)) {
      return Note(name, Difference::kShape, x, y);
    }
    if (x.dtype != y.dtype && !(options_.ignore_dtype && has_numbers)) {
      return Note(name, Difference::kDType, x, y);
    }
    if (!HaveSameQuantizer(a, b)) {
      return Note(name, Difference::kBytes, x, y);
    }
    const bool a_is_meta = x.kind == TensorKind::kMeta;
    if (a_is_meta != (y.kind == TensorKind::kMeta)) {
      return Note(name, Difference::kBytes, x, y);
    }
    if (a_is_meta || x.nbytes == 0) {
      ++report_.same;
      return Status();
    }
    for (const auto& [side, info] : {std::pair(&a_, &x), std::pair(&b_, &y)}) {
      Status status = convert::CheckElements(side->index(), *info);
      if (!status.ok()) return std::move(status).In(Quote(name));
    }
    Pair pair = {.name = name, .a = a, .b = b};
    pair.a_dtype = x.dtype;
    pair.b_dtype = y.dtype;
    pair.count = x.nbytes / ItemBytes(x.dtype);
    pair.piece_elements =
        convert::kPieceBytes / std::max(ItemBytes(x.dtype), ItemBytes(y.dtype));
    pair.place = a_.index().storages[x.storage].offset +
                 x.storage_offset * ItemBytes(x.dtype);
    total_ += x.nbytes;
    report_.compared_bytes += x.nbytes + y.nbytes;
    pairs_.push_back(std::move(pair));
    return Status();
  }

  bool HaveSameQuantizer(uint32_t a, uint32_t b) const {
    const auto x = a_quantizers_.find(a);
    const auto y = b_quantizers_.find(b);
    if (x == a_quantizers_.end() || y == b_quantizers_.end()) {
      return x == a_quantizers_.end() && y == b_quantizers_.end();
    }
    return IsSame(x->second, y->second);
  }

  Status Note(std::string_view name, Difference what, const TensorInfo& a,
              const TensorInfo& b) {
    report_.changed.push_back({.name = std::string(name),
                               .what = what,
                               .a_dtype = a.dtype,
                               .b_dtype = b.dtype,
                               .a_shape = ElementShape(a.dtype, a.shape),
                               .b_shape = ElementShape(b.dtype, b.shape)});
    return Status();
  }

  std::vector<Work> AllPieces() {
    std::ranges::sort(pairs_, {}, &Pair::place);
    std::vector<Work> work;
    for (uint32_t i = 0; i < pairs_.size(); ++i) {
      for (uint64_t piece = 0; piece < pairs_[i].pieces(); ++piece) {
        work.push_back({i, piece});
      }
    }
    return work;
  }

  std::vector<Work> EqualPiecesOfChanged() const {
    std::vector<Work> work;
    for (uint32_t i = 0; i < pairs_.size(); ++i) {
      const Pair& pair = pairs_[i];
      if (!IsChanged(pair) || !HasNumbers(pair)) continue;
      for (uint64_t piece = 0; piece < pair.pieces(); ++piece) {
        if (!pair.tallies.contains(piece)) work.push_back({i, piece});
      }
    }
    return work;
  }

  // Compares the pieces. Small tensors are grouped, so that threads do not
  // synchronise for each one.
  Status Compare(const std::vector<Work>& work, bool only_count) {
    for (const Work& one : work) ++pairs_[one.pair].pieces_left;
    std::vector<size_t> starts = {0};
    uint64_t bytes = 0;
    for (size_t i = 0; i < work.size(); ++i) {
      bytes += PieceBytes(work[i]);
      if (bytes < convert::kPieceBytes && i + 1 != work.size()) continue;
      starts.push_back(i + 1);
      bytes = 0;
    }
    return ParallelFor(starts.size() - 1, threads_, [&](uint64_t n) -> Status {
      Memory memory = Borrow();
      const auto run =
          std::span(work).subspan(starts[n], starts[n + 1] - starts[n]);
      for (const Work& one : run) {
        if (options_.cancel != nullptr && options_.cancel->load()) {
          return Status(Code::kCancelled, "comparing was cancelled");
        }
        Status status = ComparePiece(one, only_count, memory);
        if (!status.ok()) {
          return std::move(status).In(Quote(pairs_[one.pair].name));
        }
      }
      Return(std::move(memory));
      return Status();
    });
  }

  uint64_t PieceBytes(const Work& work) const {
    const Pair& pair = pairs_[work.pair];
    const uint64_t first = work.piece * pair.piece_elements;
    return std::min(pair.piece_elements, pair.count - first) *
           ItemBytes(pair.a_dtype);
  }

  // Returns the bytes of both tensors. The first caller opens them, the last
  // one closes them.
  std::pair<BytesToWrite, BytesToWrite> BytesOf(Pair& pair) {
    const std::lock_guard lock(mutex_);
    if (pair.a_bytes.source == nullptr) {
      pair.a_bytes = convert::ElementsOf(a_, pair.a, pair.a_dtype, source_);
      pair.b_bytes = convert::ElementsOf(b_, pair.b, pair.b_dtype, source_);
    }
    return {pair.a_bytes, pair.b_bytes};
  }

  Status ComparePiece(const Work& work, bool only_count, Memory& memory) {
    Pair& pair = pairs_[work.pair];
    const uint64_t first = work.piece * pair.piece_elements;
    const uint64_t count = std::min(pair.piece_elements, pair.count - first);
    const uint64_t a_item = ItemBytes(pair.a_dtype);
    const uint64_t b_item = ItemBytes(pair.b_dtype);
    const auto [a_bytes, b_bytes] = BytesOf(pair);
    const std::span<std::byte> a(memory.a.get(), count * a_item);
    HAULWAY_TRY(
        a_bytes.source->ReadAt(a_bytes.source_offset + first * a_item, a));
    std::span<std::byte> b = a;
    if (!only_count) {
      b = {memory.b.get(), count * b_item};
      HAULWAY_TRY(
          b_bytes.source->ReadAt(b_bytes.source_offset + first * b_item, b));
    }
    const bool is_same = !only_count && pair.a_dtype == pair.b_dtype &&
                         std::memcmp(a.data(), b.data(), a.size()) == 0;
    std::optional<Tally> tally;
    if (!is_same) {
      tally = HasNumbers(pair) ? CountNumbers(pair, a, b, memory) : Tally();
    }
    const std::lock_guard lock(mutex_);
    if (tally.has_value()) pair.tallies[work.piece] = *tally;
    if (--pair.pieces_left == 0) {
      pair.a_bytes = {};
      pair.b_bytes = {};
    }
    if (!only_count) {
      done_ += a.size();
      if (options_.progress) options_.progress(done_, total_);
    }
    return Status();
  }

  static bool HasNumbers(const Pair& pair) {
    return convert::AreNumbers(pair.a_dtype) &&
           convert::AreNumbers(pair.b_dtype);
  }
  // Returns whether numbers are compared instead of bytes.
  bool ByNumbers(const Pair& pair) const {
    return HasNumbers(pair) &&
           (options_.absolute != 0 || options_.relative != 0 ||
            pair.a_dtype != pair.b_dtype);
  }

  bool IsChanged(const Pair& pair) const {
    if (!ByNumbers(pair)) return !pair.tallies.empty();
    return std::ranges::any_of(pair.tallies, [](const auto& tally) {
      return tally.second.differing != 0;
    });
  }

  Tally CountNumbers(const Pair& pair, std::span<const std::byte> a,
                     std::span<const std::byte> b, Memory& memory) const {
    if (memory.a_numbers == nullptr) {
      memory.a_numbers = std::make_unique<double[]>(convert::kNumbersAtOnce);
      memory.b_numbers = std::make_unique<double[]>(convert::kNumbersAtOnce);
    }
    const size_t parts = convert::NumbersPerElement(pair.a_dtype);
    const uint64_t a_item = ItemBytes(pair.a_dtype);
    const uint64_t b_item = ItemBytes(pair.b_dtype);
    // A double cannot hold every 64-bit integer. Two of one dtype are compared
    // as integers, which takes 0.6 of the time of long doubles.
    const bool is_wide = IsWide(pair.a_dtype) || IsWide(pair.b_dtype);
    const bool is_exact = is_wide && pair.a_dtype == pair.b_dtype;
    const uint64_t count = a.size() / a_item;
    const uint64_t step = convert::kNumbersAtOnce / parts;
    Tally tally;
    for (uint64_t at = 0; at < count; at += step) {
      const uint64_t size = std::min(step, count - at);
      const auto a_part = a.subspan(at * a_item, size * a_item);
      const auto b_part = b.subspan(at * b_item, size * b_item);
      double* const x = memory.a_numbers.get();
      double* const y = memory.b_numbers.get();
      convert::ToNumbers(a_part, pair.a_dtype, x);
      convert::ToNumbers(b_part, pair.b_dtype, y);
      for (uint64_t i = 0; i < size; ++i) {
        if (parts == 2) {
          CountComplex(x + 2 * i, y + 2 * i, tally);
        } else if (is_exact) {
          CountExact(a_part.data() + i * a_item, b_part.data() + i * b_item,
                     pair.a_dtype == DType::kI64, std::abs(y[i]), tally);
        } else if (is_wide) {
          CountWide(Widest(a_part.data() + i * a_item, pair.a_dtype, x[i]),
                    Widest(b_part.data() + i * b_item, pair.b_dtype, y[i]),
                    tally);
        } else {
          CountOne(x[i], y[i], tally);
        }
      }
    }
    return tally;
  }

  void Add(double difference, double size, Tally& tally) const {
    ++tally.finite;
    tally.sum_abs += difference;
    tally.max_abs = std::max(tally.max_abs, difference);
    if (difference > options_.absolute + options_.relative * size) {
      ++tally.differing;
    }
  }

  void CountOne(double x, double y, Tally& tally) const {
    const double difference = std::abs(x - y);
    if (std::isfinite(difference)) return Add(difference, std::abs(y), tally);
    const bool x_nan = std::isnan(x), y_nan = std::isnan(y);
    if (x_nan || y_nan) {
      ++tally.nan;
      if (x_nan != y_nan) ++tally.differing;
    }
    if (std::isinf(x) || std::isinf(y)) {
      ++tally.inf;
      if (x == y) return Add(0, 0, tally);
      if (!x_nan && !y_nan) ++tally.differing;
      return;
    }
    // Two finite numbers whose difference overflows a double.
    if (!x_nan && !y_nan) Add(difference, std::abs(y), tally);
  }

  void CountComplex(const double* x, const double* y, Tally& tally) const {
    const double difference = std::hypot(x[0] - y[0], x[1] - y[1]);
    if (std::isfinite(difference)) {
      return Add(difference, std::hypot(y[0], y[1]), tally);
    }
    const auto any = [&](auto is) {
      return is(x[0]) || is(x[1]) || is(y[0]) || is(y[1]);
    };
    const auto same = [](double p, double q) {
      return p == q || (std::isnan(p) && std::isnan(q));
    };
    if (any([](double part) { return std::isnan(part); })) ++tally.nan;
    if (any([](double part) { return std::isinf(part); })) ++tally.inf;
    if (!same(x[0], y[0]) || !same(x[1], y[1])) ++tally.differing;
  }

  void CountExact(const std::byte* a, const std::byte* b, bool is_signed,
                  double size, Tally& tally) const {
    uint64_t x = 0, y = 0;
    std::memcpy(&x, a, sizeof(x));
    std::memcpy(&y, b, sizeof(y));
    // With the sign bit flipped, signed integers compare like unsigned ones.
    const uint64_t sign = is_signed ? uint64_t{1} << 63 : 0;
    const bool is_less = (x ^ sign) < (y ^ sign);
    Add(static_cast<double>(is_less ? y - x : x - y), size, tally);
  }

  static bool IsWide(DType dtype) {
    return dtype == DType::kI64 || dtype == DType::kU64;
  }
  // Returns the exact value of an element. `number` is the element as a double.
  static long double Widest(const std::byte* element, DType dtype,
                            double number) {
    static_assert(std::numeric_limits<long double>::digits >= 64);
    if (!IsWide(dtype)) return number;
    uint64_t value = 0;
    std::memcpy(&value, element, sizeof(value));
    if (dtype == DType::kU64) return static_cast<long double>(value);
    return static_cast<long double>(static_cast<int64_t>(value));
  }
  void CountWide(long double x, long double y, Tally& tally) const {
    if (!std::isfinite(x) || !std::isfinite(y)) {
      return CountOne(static_cast<double>(x), static_cast<double>(y), tally);
    }
    Add(static_cast<double>(std::abs(x - y)), static_cast<double>(std::abs(y)),
        tally);
  }

  void Conclude() {
    for (const Pair& pair : pairs_) {
      if (!IsChanged(pair)) {
        ++report_.same;
        continue;
      }
      (void)Note(pair.name, Difference::kBytes, a_.index().tensors[pair.a],
                 b_.index().tensors[pair.b]);
      if (!HasNumbers(pair)) continue;
      NumberDifference& numbers = report_.changed.back().numbers.emplace();
      uint64_t finite = 0;
      for (const auto& [piece, tally] : pair.tallies) {
        numbers.differing += tally.differing;
        numbers.nan += tally.nan;
        numbers.inf += tally.inf;
        numbers.max_abs = std::max(numbers.max_abs, tally.max_abs);
        numbers.mean_abs += tally.sum_abs;
        finite += tally.finite;
      }
      numbers.elements = pair.count;
      if (finite != 0) numbers.mean_abs /= static_cast<double>(finite);
    }
    std::ranges::sort(report_.changed, {}, &ChangedTensor::name);
  }

  Memory Borrow() {
    const std::lock_guard lock(mutex_);
    if (memories_.empty()) {
      return {std::make_unique_for_overwrite<std::byte[]>(convert::kPieceBytes),
              std::make_unique_for_overwrite<std::byte[]>(convert::kPieceBytes),
              nullptr, nullptr};
    }
    Memory memory = std::move(memories_.back());
    memories_.pop_back();
    return memory;
  }
  void Return(Memory memory) {
    const std::lock_guard lock(mutex_);
    memories_.push_back(std::move(memory));
  }

  const Checkpoint& a_;
  const Checkpoint& b_;
  const DiffOptions& options_;
  int threads_ = 1;
  convert::SourceOptions source_;
  std::map<uint32_t, Value> a_quantizers_, b_quantizers_;  // By row.
  std::vector<Pair> pairs_;
  DiffReport report_;
  // Guards the following members and the mutable members of pairs.
  std::mutex mutex_;
  std::vector<Memory> memories_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

}  // namespace

std::string_view Name(Difference difference) {
  switch (difference) {
    case Difference::kShape:
      return "shape";
    case Difference::kDType:
      return "dtype";
    case Difference::kBytes:
      return "bytes";
  }
  return {};
}

Result<DiffReport> Diff(const Checkpoint& a, const Checkpoint& b,
                        const DiffOptions& options) {
  // No difference is larger than a tolerance that is NaN.
  for (const double tolerance : {options.absolute, options.relative}) {
    if (tolerance >= 0) continue;
    return Status(Code::kInvalidArgument,
                  fmt::format("tolerance is {}: expected a number of 0 or more",
                              tolerance));
  }
  return OrNoMemory([&] { return Comparison(a, b, options).Run(); });
}

}  // namespace haulway
