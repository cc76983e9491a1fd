// Design: between two steps of training few elements change, most by their
// lowest bits, so the mask of changed bits is a few bytes between runs of
// zeros. A run is one sequence of zstd: the literals up to its first zero, then
// a match one byte back. Every offset is therefore 1, "the last offset" of a
// new frame, and takes no bits. zstd's own search finds these runs slowly, and
// not all of them; given the sequences, it still spends 80 ns on each, four
// times as much as here.
//
// The loops over bytes and runs have no branches that depend on where the
// changes are, because processors cannot predict them: the indices of changed
// bytes are written first, several at a time, and kept if they are valid.

#include "delta/mask_encoder.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "delta/zstd_codes.h"

namespace haulway::delta {

namespace {

constexpr size_t kComparedAhead = 2048;
constexpr size_t kLine = 64;  // Bytes that are compared at a time.
// Bytes, or indices, that are written after the end.
constexpr size_t kSlack = 64;
// A shorter run of zeros costs less as literals.
constexpr size_t kShortestRun = 5;
constexpr size_t kMostRuns = MaskEncoder::kMostBytes / kShortestRun + 1;
constexpr uint32_t kShortestMatch = 3;
constexpr size_t kBlockHeader = 3;
// Fewer literals are not worth a code, and fewer runs no table.
constexpr size_t kLeastCoded = 16;
constexpr size_t kLeastTabled = 16;
// From this many literals on, four streams are decoded faster than one.
constexpr size_t kLeastFour = 256;

enum TableMode { kUsual, kOneCode, kOwn };

// The codes of lengths below this are looked up.
constexpr size_t kLookedUp = 1024;

// Returns the code of a literal length, or of a match length less 3.
template <size_t kCodes>
constexpr uint8_t FindCode(const std::array<CodeMeaning, kCodes>& meanings,
                           uint32_t value) {
  uint8_t code = 0;
  while (code + 1u < kCodes && meanings[code + 1].base <= value) ++code;
  return code;
}
constexpr auto kLiteralCodes = [] {
  std::array<uint8_t, kLookedUp> codes{};
  for (uint32_t i = 0; i < kLookedUp; ++i) {
    codes[i] = FindCode(kLiteralLengths, i);
  }
  return codes;
}();
constexpr auto kMatchCodes = [] {
  std::array<uint8_t, kLookedUp> codes{};
  for (uint32_t i = 0; i < kLookedUp; ++i) {
    codes[i] = FindCode(kMatchLengths, i + kShortestMatch);
  }
  return codes;
}();

unsigned LiteralCode(uint32_t length) {
  return length < kLookedUp
             ? kLiteralCodes[length]
             : static_cast<unsigned>(std::bit_width(length)) - 1 + 19;
}
unsigned MatchCode(uint32_t match) {
  return match < kLookedUp
             ? kMatchCodes[match]
             : static_cast<unsigned>(std::bit_width(match)) - 1 + 36;
}

// The default distributions, which need no description.
constexpr FseCounts UsualCounts(std::span<const int16_t> counts) {
  FseCounts made;
  made.log = 6;
  made.symbols = static_cast<int>(counts.size());
  std::ranges::copy(counts, made.counts.begin());
  return made;
}
constexpr FseCounts kUsualLiterals = UsualCounts(kLiteralLengthCounts);
constexpr FseCounts kUsualMatches = UsualCounts(kMatchLengthCounts);

// Returns about how many bits codes take in a table, as multiples of 1/256.
uint64_t Cost(std::span<const uint32_t> occurs, const FseCounts& counts) {
  uint64_t cost = 0;
  for (size_t s = 0; s < occurs.size(); ++s) {
    if (occurs[s] == 0) continue;
    const auto count =
        static_cast<uint32_t>(std::max<int>(counts.counts[s], 1));
    const auto high = static_cast<uint32_t>(std::bit_width(count)) - 1;
    const uint32_t log = 256 * high + ((count << 8) >> high) - 256;
    cost +=
        uint64_t{occurs[s]} * (256 * static_cast<uint32_t>(counts.log) - log);
  }
  return cost;
}

// Writes a little-endian number.
void SetNumber(uint8_t* at, uint64_t number, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    at[i] = static_cast<uint8_t>(number >> (8 * i));
  }
}

uint32_t BlockHeader(bool is_last, BlockKind kind, size_t size) {
  return (is_last ? 1u : 0u) | static_cast<uint32_t>(kind) << 1 |
         static_cast<uint32_t>(size) << 3;
}

// Writes the mask of a line; returns a bit for each byte that is not zero.
uint64_t MakeLine(const std::byte* before, const std::byte* after,
                  uint8_t* mask) {
  uint64_t changed = 0;
#if defined(__SSE2__)
  for (size_t i = 0; i < kLine; i += sizeof(__m128i)) {
    const __m128i bits = _mm_xor_si128(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(before + i)),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(after + i)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(mask + i), bits);
    const int equal =
        _mm_movemask_epi8(_mm_cmpeq_epi8(bits, _mm_setzero_si128()));
    changed |= uint64_t{static_cast<uint32_t>(~equal) & 0xFFFF} << i;
  }
#else
  constexpr uint64_t kLow = 0x7F7F7F7F7F7F7F7F;
  for (size_t i = 0; i < kLine; i += sizeof(uint64_t)) {
    uint64_t bits;
    uint64_t other;
    std::memcpy(&bits, before + i, sizeof(bits));
    std::memcpy(&other, after + i, sizeof(other));
    bits ^= other;
    std::memcpy(mask + i, &bits, sizeof(bits));
    // The highest bit of each byte, then all of them side by side.
    const uint64_t high = (((bits & kLow) + kLow) | bits) & ~kLow;
    changed |= (((high >> 7) * 0x0102040810204080) >> 56) << i;
  }
#endif
  return changed;
}

// Makes the mask, and writes the indices of its bytes that are not zero.
// Returns their end.
uint32_t* MakeMask(const std::byte* before, const std::byte* after, size_t size,
                   uint8_t* mask, uint32_t* out) {
  constexpr int kTogether = 4;
  size_t i = 0;
  for (; i + kLine <= size; i += kLine) {
    // Processors fetch to the end of a page only.
    __builtin_prefetch(before + i + kComparedAhead);
    __builtin_prefetch(after + i + kComparedAhead);
    uint64_t changed = MakeLine(before + i, after + i, mask + i);
    for (int k = 0; k < kTogether; ++k) {
      *out = static_cast<uint32_t>(i) +
             static_cast<uint32_t>(std::countr_zero(changed | 1ull << 63));
      out += changed != 0 ? 1 : 0;
      changed &= changed - 1;
    }
    for (; changed != 0; changed &= changed - 1) [[unlikely]] {
      *out++ = static_cast<uint32_t>(i) +
               static_cast<uint32_t>(std::countr_zero(changed));
    }
  }
  for (; i < size; ++i) {
    mask[i] = std::to_integer<uint8_t>(before[i] ^ after[i]);
    *out = static_cast<uint32_t>(i);
    out += mask[i] != 0 ? 1 : 0;
  }
  return out;
}

template <class T>
std::unique_ptr<T[]> NewArray(size_t count) {
  return std::unique_ptr<T[]>(new (std::nothrow) T[count]);
}

}  // namespace

Result<MaskEncoder> MaskEncoder::Make() {
  MaskEncoder made;
  made.mask_ = NewArray<uint8_t>(kMostBytes + kSlack);
  made.changed_ = NewArray<uint32_t>(kMostBytes + kSlack);
  made.literals_ = NewArray<uint8_t>(kMostBytes + kSlack);
  made.found_ = NewArray<Run>(kMostRuns);
  // Literals, 56 bits for each run, and tables.
  made.block_ = NewArray<uint8_t>(kMostBytes + 7 * kMostRuns + 1024);
  if (made.mask_ == nullptr || made.changed_ == nullptr ||
      made.literals_ == nullptr || made.found_ == nullptr ||
      made.block_ == nullptr) {
    return Status(Code::kLimit, "no memory to encode changes");
  }
  return made;
}

bool MaskEncoder::Compare(std::span<const std::byte> before,
                          std::span<const std::byte> after) {
  size_ = before.size();
  const uint32_t* const end =
      MakeMask(before.data(), after.data(), size_, mask_.get(), changed_.get());
  FindRuns(end);
  return end != changed_.get();
}

bool MaskEncoder::Replace(std::span<std::byte> tensor,
                          std::span<const std::byte> after) {
  size_ = tensor.size();
  const uint32_t* const end =
      MakeMask(tensor.data(), after.data(), size_, mask_.get(), changed_.get());
  for (const uint32_t* at = changed_.get(); at != end; ++at) {
    tensor[*at] ^= static_cast<std::byte>(mask_[*at]);
  }
  FindRuns(end);
  return end != changed_.get();
}

// Finds the runs of zeros, and gathers the bytes that are not in matches. The
// bytes after the last run are literals without a sequence of their own.
void MaskEncoder::FindRuns(const uint32_t* changed_end) {
  constexpr size_t kCopied = 16;
  uint8_t* const mask = mask_.get();
  uint8_t* literals = literals_.get();
  Run* run = found_.get();
  size_t begin = 0;  // Where the literals without a sequence begin.
  size_t end = 0;    // After the last changed byte.
  const auto copy = [&](size_t length) {
    std::memcpy(literals, mask + begin, kCopied);
    if (length > kCopied) [[unlikely]] {
      std::memcpy(literals, mask + begin, length);
    }
    literals += length;
  };
  const auto end_run = [&](size_t at) {
    const size_t zeros = at - end;
    if (zeros < kShortestRun) return;
    const size_t length = end + 1 - begin;
    copy(length);
    *run++ = {static_cast<uint32_t>(length),
              static_cast<uint32_t>(zeros - 1 - kShortestMatch)};
    begin = at;
  };
  for (const uint32_t* at = changed_.get(); at != changed_end; ++at) {
    end_run(*at);
    end = *at + 1;
  }
  end_run(size_);
  copy(size_ - begin);
  runs_ = static_cast<size_t>(run - found_.get());
  literal_count_ = static_cast<size_t>(literals - literals_.get());
}

std::span<const std::byte> MaskEncoder::Encode(bool is_last) {
  uint8_t* const block = block_.get();
  uint8_t* const content = block + kBlockHeader;
  const auto finish = [&](BlockKind kind, size_t stated, size_t stored) {
    SetNumber(block, BlockHeader(is_last, kind, stated), kBlockHeader);
    return std::as_bytes(std::span(block, kBlockHeader + stored));
  };
  const bool is_unchanged =
      runs_ == 1 && literal_count_ == 1 && literals_[0] == 0;
  if (is_unchanged) {
    content[0] = 0;
    return finish(BlockKind::kRun, size_, 1);
  }
  const auto size =
      static_cast<size_t>(WriteRuns(WriteLiterals(content)) - content);
  if (size < size_) return finish(BlockKind::kCompressed, size, size);
  std::memcpy(content, mask_.get(), size_);
  return finish(BlockKind::kRaw, size_, size_);
}

std::array<std::byte, 4> MaskEncoder::Unchanged(size_t size) {
  std::array<uint8_t, 4> block{};
  SetNumber(block.data(), BlockHeader(false, BlockKind::kRun, size),
            kBlockHeader);
  return std::bit_cast<std::array<std::byte, 4>>(block);
}

// RFC 8878, 3.1.1.3.1.
uint8_t* MaskEncoder::WriteLiterals(uint8_t* out) {
  enum Kind : uint32_t { kAsTheyAre, kOneByte, kCoded };
  const size_t count = literal_count_;
  const std::span<const uint8_t> literals(literals_.get(), count);
  if (count >= kLeastCoded) {
    // Neighbours are counted apart, so that they need not wait for each other.
    std::array<ByteCounts, 4> parts{};
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
      for (size_t k = 0; k < 4; ++k) ++parts[k][literals[i + k]];
    }
    for (; i < count; ++i) ++parts[0][literals[i]];
    ByteCounts& counts = parts[0];
    for (size_t s = 0; s < counts.size(); ++s) {
      counts[s] += parts[1][s] + parts[2][s] + parts[3][s];
    }
    const bool has_four = count >= kLeastFour;
    if (huffman_.Make(counts) && huffman_.Bytes(counts) < count) {
      const size_t format = !has_four       ? 0
                            : count < 1024  ? 1
                            : count < 16384 ? 2
                                            : 3;
      constexpr size_t kWidths[] = {10, 10, 14, 18};
      const size_t head = format < 2 ? 3 : format + 2;
      uint8_t* const coded = out + head;
      uint8_t* end = huffman_.WriteDescription(coded);
      end = has_four ? huffman_.EncodeFour(literals, end)
                     : huffman_.Encode(literals, end);
      const auto size = static_cast<uint64_t>(end - coded);
      SetNumber(out,
                kCoded | format << 2 | uint64_t{count} << 4 |
                    size << (4 + kWidths[format]),
                head);
      return end;
    }
  }
  const bool is_repeated =
      count > 1 && std::ranges::count(literals, literals[0]) ==
                       static_cast<ptrdiff_t>(count);
  const uint64_t kind = is_repeated ? kOneByte : kAsTheyAre;
  if (count < 32) {
    *out++ = static_cast<uint8_t>(kind | count << 3);
  } else if (count < 4096) {
    SetNumber(out, kind | 1u << 2 | uint64_t{count} << 4, 2);
    out += 2;
  } else {
    SetNumber(out, kind | 3u << 2 | uint64_t{count} << 4, 3);
    out += 3;
  }
  return std::copy_n(literals.begin(), is_repeated ? 1 : count, out);
}

uint8_t* MaskEncoder::WriteTable(const CodeCounts& occurs,
                                 const FseCounts& usual, int* mode,
                                 FseEncoder* encoder, uint8_t* out) const {
  const auto one = std::ranges::find(occurs, static_cast<uint32_t>(runs_));
  if (one != occurs.end()) {
    *mode = kOneCode;
    encoder->MakeRepeated();
    *out = static_cast<uint8_t>(one - occurs.begin());
    return out + 1;
  }
  *mode = kUsual;
  if (runs_ >= kLeastTabled) {
    const FseCounts counts =
        ScaleCounts(occurs, static_cast<uint32_t>(runs_), FseEncoder::kMostLog);
    uint8_t* const end = WriteFseCounts(counts, out);
    const auto described = static_cast<uint64_t>(end - out) * 8 * 256;
    if (described + Cost(occurs, counts) < Cost(occurs, usual)) {
      *mode = kOwn;
      encoder->Make(counts);
      return end;
    }
  }
  encoder->Make(usual);
  return out;
}

// RFC 8878, 3.1.1.3.2.
uint8_t* MaskEncoder::WriteRuns(uint8_t* out) {
  const size_t count = runs_;
  if (count < 128) {
    *out++ = static_cast<uint8_t>(count);
  } else {
    *out++ = static_cast<uint8_t>(128 + (count >> 8));
    *out++ = static_cast<uint8_t>(count);
  }
  if (count == 0) return out;
  const std::span<const Run> runs(found_.get(), count);
  CodeCounts literal_occurs{};
  CodeCounts match_occurs{};
  for (const Run& run : runs) {
    ++literal_occurs[LiteralCode(run.literals)];
    ++match_occurs[MatchCode(run.match)];
  }
  uint8_t* const modes = out++;
  int literal_mode = 0;
  int match_mode = 0;
  out = WriteTable(literal_occurs, kUsualLiterals, &literal_mode,
                   &literal_lengths_, out);
  *out++ = 0;  // The only code of offsets.
  out = WriteTable(match_occurs, kUsualMatches, &match_mode, &match_lengths_,
                   out);
  *modes =
      static_cast<uint8_t>(literal_mode << 6 | kOneCode << 4 | match_mode << 2);

  BitWriter bits(out);
  const auto add = [&](const Run& run, unsigned literal_code,
                       unsigned match_code) {
    const CodeMeaning& literal = kLiteralLengths[literal_code];
    bits.Add(run.literals - literal.base, literal.extra);
    const CodeMeaning& match = kMatchLengths[match_code];
    bits.Add(run.match + kShortestMatch - match.base, match.extra);
    bits.Flush();
  };
  const Run& last = runs.back();
  unsigned literal_code = LiteralCode(last.literals);
  unsigned match_code = MatchCode(last.match);
  uint32_t match_state = match_lengths_.Begin(match_code);
  uint32_t literal_state = literal_lengths_.Begin(literal_code);
  add(last, literal_code, match_code);
  for (size_t i = count - 1; i-- > 0;) {
    const Run& run = runs[i];
    literal_code = LiteralCode(run.literals);
    match_code = MatchCode(run.match);
    match_lengths_.Encode(match_code, &match_state, &bits);
    literal_lengths_.Encode(literal_code, &literal_state, &bits);
    add(run, literal_code, match_code);
  }
  match_lengths_.End(match_state, &bits);
  literal_lengths_.End(literal_state, &bits);
  return bits.FinishStream();
}

}  // namespace haulway::delta
