// Design: a table has an entry for each state, made once a block, so that one
// symbol costs one look-up. Streams are read from their ends in words of 64
// bits; the loops that read most check once for several symbols that a stream
// has enough left, and the rest is read with a check for each symbol. Four
// streams of literals are read in turn, because each symbol waits for the one
// before it in its own stream.

#include "delta/zstd_entropy.h"

#include <algorithm>

namespace haulway::delta {

namespace {

constexpr int kLeastFseLog = 5;
constexpr int kMostWeightLog = 6;
constexpr int kMostWeights = 255;

unsigned HighBit(uint32_t value) {
  return static_cast<unsigned>(std::bit_width(value)) - 1;
}

// Reads bits from the beginning of bytes; zeros after their end.
class ForwardBits {
 public:
  explicit ForwardBits(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  uint32_t Peek(unsigned count) const {
    uint64_t bits = 0;
    for (size_t i = 0; i < 4 && at_ / 8 + i < bytes_.size(); ++i) {
      bits |= uint64_t{bytes_[at_ / 8 + i]} << (8 * i);
    }
    return static_cast<uint32_t>(bits >> (at_ % 8)) & ((1u << count) - 1);
  }
  void Skip(unsigned count) { at_ += count; }
  bool is_over() const { return at_ > 8 * bytes_.size(); }
  // Returns the number of bytes that were begun.
  size_t bytes() const { return (at_ + 7) / 8; }

 private:
  const std::span<const uint8_t> bytes_;
  size_t at_ = 0;
};

// Reads the weights of a Huffman code, which are two interleaved streams of
// FSE.
bool ReadWeights(std::span<const uint8_t> bytes,
                 std::array<uint8_t, kMostWeights + 1>* weights, int* count) {
  FseCounts counts;
  size_t used = 0;
  std::array<FseEntry, size_t{1} << kMostWeightLog> table;
  BackwardBits bits;
  if (!ReadFseCounts(bytes, 12, kMostWeightLog, &counts, &used) ||
      !MakeFseTable(counts, table) || !bits.Open(bytes.subspan(used))) {
    return false;
  }
  const auto log = static_cast<unsigned>(counts.log);
  std::array<uint64_t, 2> states;
  for (uint64_t& state : states) state = bits.Read(log);
  bits.Refill();
  if (bits.is_over()) return false;
  *count = 0;
  // The stream ends where the bits do; then both states have a symbol left.
  for (int turn = 0;; turn ^= 1) {
    if (*count >= kMostWeights) return false;
    const FseEntry& entry = table[states[turn]];
    (*weights)[(*count)++] = entry.symbol;
    states[turn] = entry.next + bits.Read(entry.bits);
    bits.Refill();
    if (!bits.is_over()) continue;
    if (*count >= kMostWeights) return false;
    (*weights)[(*count)++] = table[states[turn ^ 1]].symbol;
    return true;
  }
}

}  // namespace

bool ReadFseCounts(std::span<const uint8_t> bytes, int most, int most_log,
                   FseCounts* made, size_t* used) {
  ForwardBits bits(bytes);
  made->log = static_cast<int>(bits.Peek(4)) + kLeastFseLog;
  bits.Skip(4);
  if (made->log > most_log) return false;
  made->counts.fill(0);
  made->symbols = 0;
  auto left = static_cast<uint32_t>(1 << made->log);
  while (left > 0) {
    if (made->symbols >= most || bits.is_over()) return false;
    // A value of 0 to left + 1, in one bit less if it is small.
    const unsigned width = HighBit(left + 1) + 1;
    const uint32_t mask = (1u << (width - 1)) - 1;
    const uint32_t small = (1u << width) - 1 - (left + 1);
    uint32_t value = bits.Peek(width);
    if ((value & mask) < small) {
      value &= mask;
      bits.Skip(width - 1);
    } else {
      if (value > mask) value -= small;
      bits.Skip(width);
    }
    const int count = static_cast<int>(value) - 1;
    const uint32_t share = count < 0 ? 1 : static_cast<uint32_t>(count);
    if (share > left) return false;
    left -= share;
    made->counts[made->symbols++] = static_cast<int16_t>(count);
    if (count != 0) continue;
    for (uint32_t zeros = 3; zeros == 3;) {
      zeros = bits.Peek(2);
      bits.Skip(2);
      made->symbols += static_cast<int>(zeros);
      if (made->symbols > most || bits.is_over()) return false;
    }
  }
  *used = bits.bytes();
  return !bits.is_over();
}

bool MakeFseTable(const FseCounts& counts, std::span<FseEntry> table) {
  const uint32_t size = 1u << counts.log;
  uint32_t high = size;
  std::array<uint16_t, 64> next{};
  for (int s = 0; s < counts.symbols; ++s) {
    if (counts.counts[s] == -1) {
      table[--high].symbol = static_cast<uint8_t>(s);
      next[s] = 1;
    } else {
      next[s] = static_cast<uint16_t>(counts.counts[s]);
    }
  }
  const uint32_t step = (size >> 1) + (size >> 3) + 3;
  uint32_t at = 0;
  for (int s = 0; s < counts.symbols; ++s) {
    for (int i = 0; i < counts.counts[s]; ++i) {
      table[at].symbol = static_cast<uint8_t>(s);
      do {
        at = (at + step) & (size - 1);
      } while (at >= high);
    }
  }
  if (at != 0) return false;
  for (uint32_t i = 0; i < size; ++i) {
    const uint32_t state = next[table[i].symbol]++;
    const unsigned bits = static_cast<unsigned>(counts.log) - HighBit(state);
    table[i].bits = static_cast<uint8_t>(bits);
    table[i].next = static_cast<uint16_t>((state << bits) - size);
  }
  return true;
}

bool HuffmanCode::Open(std::span<const uint8_t> bytes, size_t* used) {
  log_ = 0;
  if (bytes.empty()) return false;
  std::array<uint8_t, kMostWeights + 1> weights{};
  int count = 0;
  const size_t head = bytes.front();
  bytes = bytes.subspan(1);
  if (head >= 128) {
    count = static_cast<int>(head) - 127;
    *used = 1 + (static_cast<size_t>(count) + 1) / 2;
    if (*used - 1 > bytes.size()) return false;
    for (int i = 0; i < count; ++i) {
      const uint8_t pair = bytes[i / 2];
      weights[i] = i % 2 == 0 ? pair >> 4 : pair & 15;
    }
  } else {
    *used = 1 + head;
    if (head > bytes.size() ||
        !ReadWeights(bytes.first(head), &weights, &count)) {
      return false;
    }
  }
  uint32_t sum = 0;
  for (int i = 0; i < count; ++i) {
    if (weights[i] > kMostBits) return false;
    if (weights[i] > 0) sum += 1u << (weights[i] - 1);
  }
  if (sum == 0) return false;
  const int log = static_cast<int>(HighBit(sum)) + 1;
  const uint32_t rest = (1u << log) - sum;
  if (log > kMostBits || !std::has_single_bit(rest)) return false;
  // The last weight fills the table.
  weights[count++] = static_cast<uint8_t>(HighBit(rest) + 1);
  std::array<uint32_t, kMostBits + 2> begins{};
  for (int i = 0; i < count; ++i) {
    if (weights[i] > 0) begins[weights[i] + 1] += 1u << (weights[i] - 1);
  }
  // The shortest codes are two, and in pairs.
  if (begins[2] < 2 || begins[2] % 2 != 0) return false;
  for (size_t w = 1; w < begins.size(); ++w) begins[w] += begins[w - 1];
  for (int i = 0; i < count; ++i) {
    const int weight = weights[i];
    if (weight == 0) continue;
    const uint32_t length = 1u << (weight - 1);
    std::fill_n(table_.begin() + begins[weight], length,
                Symbol{static_cast<uint8_t>(i),
                       static_cast<uint8_t>(log + 1 - weight)});
    begins[weight] += length;
  }
  log_ = log;
  return true;
}

bool HuffmanCode::Decode(std::span<const uint8_t> stream,
                         std::span<uint8_t> out) const {
  BackwardBits bits;
  if (!bits.Open(stream)) return false;
  for (uint8_t& literal : out) {
    const Symbol symbol = Next(bits);
    literal = symbol.value;
    bits.Skip(symbol.bits);
    bits.Refill();
    if (bits.is_over()) return false;
  }
  return bits.is_at_end();
}

bool HuffmanCode::DecodeFour(std::span<const uint8_t> streams,
                             std::span<uint8_t> out) const {
  constexpr size_t kJumps = 6;
  if (streams.size() < kJumps) return false;
  const size_t part = (out.size() + 3) / 4;
  if (3 * part > out.size()) return false;
  std::array<BackwardBits, 4> bits;
  std::array<uint8_t*, 4> to;
  std::span<const uint8_t> rest = streams.subspan(kJumps);
  for (size_t i = 0; i < 4; ++i) {
    size_t size = rest.size();
    if (i < 3) {
      size = streams[2 * i] | size_t{streams[2 * i + 1]} << 8;
      if (size > rest.size()) return false;
    }
    if (!bits[i].Open(rest.first(size))) return false;
    rest = rest.subspan(size);
    to[i] = out.data() + i * part;
  }
  // Five codes of 11 bits fit what Refill() provides.
  size_t done = 0;
  const size_t last = out.size() - 3 * part;
  while (done + 5 <= last && bits[0].has_many() && bits[1].has_many() &&
         bits[2].has_many() && bits[3].has_many()) {
    for (size_t k = 0; k < 5; ++k) {
      for (size_t i = 0; i < 4; ++i) {
        const Symbol symbol = Next(bits[i]);
        to[i][done + k] = symbol.value;
        bits[i].Skip(symbol.bits);
      }
    }
    for (size_t i = 0; i < 4; ++i) bits[i].Refill();
    done += 5;
  }
  for (size_t i = 0; i < 4; ++i) {
    const size_t end = i < 3 ? part : last;
    for (size_t k = done; k < end; ++k) {
      const Symbol symbol = Next(bits[i]);
      to[i][k] = symbol.value;
      bits[i].Skip(symbol.bits);
      bits[i].Refill();
      if (bits[i].is_over()) return false;
    }
    if (!bits[i].is_at_end()) return false;
  }
  return true;
}

}  // namespace haulway::delta
