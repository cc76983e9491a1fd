// Design: between two steps of training few elements change, most by their
// lowest bits, so the mask of changed bits is a few bytes between runs of
// zeros. zstd's own search finds these runs slowly, and not all of them. Here
// they are found by words while the mask is made, and handed to zstd as
// sequences, one for each run: the literals up to its first zero, then a match
// one byte back. zstd's entropy coder writes them.
//
// Measured on 64 MiB of BF16 with 2 % of the elements changed, one thread:
// 65x smaller at 1.0 GB/s; zstd's level 1 alone 40x at 0.6 GB/s, level 19 53x
// at 0.003 GB/s.

#define ZSTD_STATIC_LINKING_ONLY  // For ZSTD_compressSequences().
#include "delta/change_writer.h"

#include <fmt/format.h>
#include <zstd.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "haulway/options.h"

namespace haulway::delta {

namespace {

// A shorter run of zeros costs less as literals.
constexpr size_t kShortestRun = 5;
constexpr int kWindowLog = 17;
constexpr int kLevel = 1;
constexpr uint64_t kMostPositions = uint64_t{1} << 32;

using Compressor = std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)>;
// Memory that is not written before it is used.
using Scratch = std::unique_ptr<std::byte[]>;

Scratch NewScratch(size_t bytes) {
  return Scratch(new (std::nothrow) std::byte[bytes]);
}

Status NoMemory(size_t bytes) {
  return Status(Code::kLimit,
                fmt::format("no memory for {} bytes of changes", bytes));
}

Result<Compressor> NewCompressor() {
  Compressor made(ZSTD_createCCtx(), ZSTD_freeCCtx);
  if (made == nullptr) return NoMemory(0);
  ZSTD_CCtx_setParameter(made.get(), ZSTD_c_compressionLevel, kLevel);
  return made;
}

Result<std::vector<std::byte>> Finish(size_t size, const Scratch& frame) {
  if (ZSTD_isError(size)) {
    return Status(Code::kInternal, fmt::format("zstd cannot compress: {}",
                                               ZSTD_getErrorName(size)));
  }
  return std::vector<std::byte>(frame.get(), frame.get() + size);
}

// Compresses by zstd's own search.
Result<std::vector<std::byte>> Compress(std::span<const std::byte> content) {
  HAULWAY_ASSIGN(const Compressor compressor, NewCompressor());
  const size_t bound = ZSTD_compressBound(content.size());
  const Scratch frame = NewScratch(bound);
  if (frame == nullptr) return NoMemory(bound);
  return Finish(ZSTD_compress2(compressor.get(), frame.get(), bound,
                               content.data(), content.size()),
                frame);
}

// A MaskWriter makes the mask of the bits that changed, and the sequences of
// its runs of zeros.
class MaskWriter {
 public:
  MaskWriter(std::span<const std::byte> before,
             std::span<const std::byte> after, std::byte* mask)
      : before_(before), after_(after), mask_(mask) {}

  void Run() {
    size_t i = 0;
    for (; i + sizeof(uint64_t) <= before_.size(); i += sizeof(uint64_t)) {
      uint64_t a;
      uint64_t b;
      std::memcpy(&a, before_.data() + i, sizeof(a));
      std::memcpy(&b, after_.data() + i, sizeof(b));
      a ^= b;
      std::memcpy(mask_ + i, &a, sizeof(a));
      while (a != 0) {
        const int byte = std::countr_zero(a) / 8;
        AddByte(i + static_cast<size_t>(byte));
        a &= ~(uint64_t{0xFF} << (8 * byte));
      }
    }
    for (; i < before_.size(); ++i) {
      mask_[i] = before_[i] ^ after_[i];
      if (mask_[i] != std::byte{0}) AddByte(i);
    }
    EndRun(before_.size());
  }

  std::vector<ZSTD_Sequence>& sequences() { return sequences_; }

 private:
  // Adds the changed byte at `at`, which is after all others.
  void AddByte(size_t at) {
    EndRun(at);
    end_ = at + 1;
  }

  // Ends the run of zeros from end_ to `at`. The bytes after the last run
  // become literals without a sequence of their own: one without a match is
  // taken for a match.
  void EndRun(size_t at) {
    const size_t zeros = at - end_;
    if (zeros < kShortestRun) return;
    sequences_.push_back({.offset = 1,
                          .litLength = static_cast<unsigned>(end_ + 1 - begin_),
                          .matchLength = static_cast<unsigned>(zeros - 1),
                          .rep = 0});
    begin_ = at;
  }

  const std::span<const std::byte> before_;
  const std::span<const std::byte> after_;
  std::byte* const mask_;
  std::vector<ZSTD_Sequence> sequences_;
  size_t begin_ = 0;  // Where the literals without a sequence begin.
  size_t end_ = 0;    // After the last changed byte.
};

Result<std::vector<std::byte>> MakeXor(std::span<const std::byte> before,
                                       std::span<const std::byte> after) {
  const Scratch mask = NewScratch(before.size());
  if (mask == nullptr) return NoMemory(before.size());
  MaskWriter writer(before, after, mask.get());
  writer.Run();
  const std::span<const std::byte> content(mask.get(), before.size());
  // A sequence counts in 32 bits.
  if (writer.sequences().empty() || content.size() > UINT32_MAX) {
    return Compress(content);
  }
  HAULWAY_ASSIGN(const Compressor compressor, NewCompressor());
  ZSTD_CCtx_setParameter(compressor.get(), ZSTD_c_windowLog, kWindowLog);
  ZSTD_CCtx_setParameter(compressor.get(), ZSTD_c_minMatch, 3);
  const size_t bound = ZSTD_compressBound(content.size());
  const Scratch frame = NewScratch(bound);
  if (frame == nullptr) return NoMemory(bound);
  const size_t size = ZSTD_compressSequences(
      compressor.get(), frame.get(), bound, writer.sequences().data(),
      writer.sequences().size(), content.data(), content.size());
  // Without enough runs, the bound for sequences may be too small.
  if (ZSTD_isError(size)) return Compress(content);
  return Finish(size, frame);
}

Result<std::vector<std::byte>> MakeOverwrite(std::span<const std::byte> before,
                                             std::span<const std::byte> after) {
  if (before.size() >= kMostPositions) {
    return Status(Code::kUnsupported,
                  fmt::format("overwrite has positions of 32 bits: expected a "
                              "tensor of less than {} bytes, found {}; use xor",
                              kMostPositions, before.size()));
  }
  std::vector<std::byte> content(sizeof(uint32_t));
  std::vector<std::byte> values;
  const auto set = [&](size_t at, uint32_t number) {
    for (size_t i = 0; i < sizeof(number); ++i) {
      content[at + i] = static_cast<std::byte>(number >> (8 * i));
    }
  };
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] == after[i]) continue;
    content.resize(content.size() + sizeof(uint32_t));
    set(content.size() - sizeof(uint32_t), static_cast<uint32_t>(i));
    values.push_back(after[i]);
  }
  set(0, static_cast<uint32_t>(values.size()));
  content.insert(content.end(), values.begin(), values.end());
  return Compress(content);
}

}  // namespace

Result<std::vector<std::byte>> MakeChange(Change change,
                                          std::span<const std::byte> before,
                                          std::span<const std::byte> after) {
  return change == Change::kXor ? MakeXor(before, after)
                                : MakeOverwrite(before, after);
}

}  // namespace haulway::delta
