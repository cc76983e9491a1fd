// Design: as zstd_entropy.cc decodes them. A table of FSE is made once a block;
// a symbol then costs an addition and two look-ups. A code of Huffman is found
// by joining the two rarest of its literals, again and again; codes that get
// too long are cut, and others lengthened until all fit. Streams are written
// from their last symbol to the first, in words of 64 bits, whose whole bytes
// are stored after a few symbols.

#include "delta/entropy_encoder.h"

#include <algorithm>
#include <bit>

namespace haulway::delta {

namespace {

constexpr int kLeastLog = 5;
constexpr int kMostCodeBits = 11;
constexpr int kMostWeightLog = 6;

unsigned HighBit(uint32_t value) {
  return static_cast<unsigned>(std::bit_width(value)) - 1;
}

// Returns the logarithm of the size of a table: larger tables are more precise,
// but their description is longer.
int LogFor(uint32_t total, uint32_t symbols, int most_log) {
  const int precise = static_cast<int>(HighBit(total - 1)) - 2;
  const int least = std::min<int>(static_cast<int>(HighBit(total)) + 1,
                                  static_cast<int>(HighBit(symbols)) + 2);
  return std::clamp(std::max(precise, least), kLeastLog, most_log);
}

}  // namespace

FseCounts ScaleCounts(std::span<const uint32_t> occurs, uint32_t total,
                      int most_log) {
  FseCounts made;
  uint32_t used = 0;
  for (size_t s = 0; s < occurs.size(); ++s) {
    if (occurs[s] == 0) continue;
    ++used;
    made.symbols = static_cast<int>(s) + 1;
  }
  made.log = LogFor(total, used, most_log);
  const uint64_t size = uint64_t{1} << made.log;
  auto left = static_cast<int64_t>(size);
  for (int s = 0; s < made.symbols; ++s) {
    if (occurs[s] == 0) continue;
    const uint64_t share = (occurs[s] * size + total / 2) / total;
    made.counts[s] = static_cast<int16_t>(std::max<uint64_t>(share, 1));
    left -= made.counts[s];
  }
  // What rounding left goes to, or comes from, the most frequent symbols.
  while (left != 0) {
    int16_t& most = *std::ranges::max_element(made.counts);
    const auto change = static_cast<int16_t>(
        left > 0 ? left : -std::min<int64_t>(-left, (most + 7) / 8));
    most = static_cast<int16_t>(most + change);
    left -= change;
  }
  return made;
}

uint8_t* WriteFseCounts(const FseCounts& counts, uint8_t* out) {
  BitWriter bits(out);
  bits.Add(static_cast<uint64_t>(counts.log - kLeastLog), 4);
  uint32_t left = 1u << counts.log;
  for (int s = 0; left > 0;) {
    // A value of 0 to left + 1, in one bit less if it is small.
    const unsigned width = HighBit(left + 1) + 1;
    const uint32_t small = (1u << width) - 1 - (left + 1);
    const int count = counts.counts[s++];
    auto value = static_cast<uint32_t>(count + 1);
    if (value < small) {
      bits.Add(value, width - 1);
    } else {
      if (value >= 1u << (width - 1)) value += small;
      bits.Add(value, width);
    }
    bits.Flush();
    left -= static_cast<uint32_t>(count < 0 ? 1 : count);
    if (count != 0) continue;
    int zeros = 0;
    while (counts.counts[s + zeros] == 0) ++zeros;
    s += zeros;
    for (; zeros >= 3; zeros -= 3) {
      bits.Add(3, 2);
      bits.Flush();
    }
    bits.Add(static_cast<uint64_t>(zeros), 2);
    bits.Flush();
  }
  return bits.Finish();
}

void FseEncoder::Make(const FseCounts& counts) {
  log_ = counts.log;
  const uint32_t size = 1u << log_;
  std::array<uint8_t, size_t{1} << kMostLog> symbols;
  std::array<uint16_t, 65> first{};
  uint32_t high = size;
  for (int s = 0; s < counts.symbols; ++s) {
    const int count = counts.counts[s];
    if (count == -1) symbols[--high] = static_cast<uint8_t>(s);
    first[s + 1] = static_cast<uint16_t>(first[s] + (count < 0 ? 1 : count));
  }
  const uint32_t step = (size >> 1) + (size >> 3) + 3;
  uint32_t at = 0;
  for (int s = 0; s < counts.symbols; ++s) {
    for (int i = 0; i < counts.counts[s]; ++i) {
      symbols[at] = static_cast<uint8_t>(s);
      do {
        at = (at + step) & (size - 1);
      } while (at >= high);
    }
  }
  for (int s = 0; s < counts.symbols; ++s) {
    const int count = counts.counts[s];
    if (count == 0) continue;
    if (count == 1 || count == -1) {
      symbols_[s] = {(static_cast<uint32_t>(log_) << 16) - size, first[s] - 1};
      continue;
    }
    const auto share = static_cast<uint32_t>(count);
    const uint32_t most = static_cast<uint32_t>(log_) - HighBit(share - 1);
    symbols_[s] = {(most << 16) - (share << most), first[s] - count};
  }
  for (uint32_t i = 0; i < size; ++i) {
    next_[first[symbols[i]]++] = static_cast<uint16_t>(size + i);
  }
}

bool HuffmanEncoder::SetLengths(const ByteCounts& counts) {
  // Sorted by count. A node is a literal or joins two earlier ones.
  struct Node {
    uint32_t count;
    uint16_t parent;
    uint8_t depth;
  };
  std::array<uint32_t, 256> order;
  int literals = 0;
  for (uint32_t i = 0; i < counts.size(); ++i) {
    // A block has at most 2 to the power of 17 literals.
    if (counts[i] != 0) order[literals++] = counts[i] << 8 | i;
  }
  if (literals < 2) return false;
  last_ = static_cast<int>(order[literals - 1] & 0xFF);
  std::sort(order.begin(), order.begin() + literals);
  std::array<Node, 512> nodes;
  for (int i = 0; i < literals; ++i) nodes[i].count = order[i] >> 8;
  const int root = 2 * literals - 2;
  int leaf = 0;
  int joined = literals;
  for (int made = literals; made <= root; ++made) {
    nodes[made].count = 0;
    for (int k = 0; k < 2; ++k) {
      const bool takes_leaf =
          leaf < literals &&
          (joined >= made || nodes[leaf].count <= nodes[joined].count);
      Node& child = nodes[takes_leaf ? leaf++ : joined++];
      child.parent = static_cast<uint16_t>(made);
      nodes[made].count += child.count;
    }
  }
  nodes[root].depth = 0;
  // The sum of 2 to the power of minus length is 1 in a complete code.
  constexpr int kWhole = 1 << kMostCodeBits;
  int sum = 0;
  for (int i = root - 1; i >= 0; --i) {
    nodes[i].depth = static_cast<uint8_t>(nodes[nodes[i].parent].depth + 1);
  }
  for (int i = 0; i < literals; ++i) {
    nodes[i].depth = std::min<uint8_t>(nodes[i].depth, kMostCodeBits);
    sum += 1 << (kMostCodeBits - nodes[i].depth);
  }
  // Lengthens the longest codes that are not too long, then shortens others.
  for (int i = 0; sum > kWhole && i < literals;) {
    if (nodes[i].depth == kMostCodeBits) {
      ++i;
      continue;
    }
    ++nodes[i].depth;
    sum -= 1 << (kMostCodeBits - nodes[i].depth);
  }
  for (int i = literals - 1; sum < kWhole && i >= 0; --i) {
    while (nodes[i].depth > 1 &&
           sum + (1 << (kMostCodeBits - nodes[i].depth)) <= kWhole) {
      sum += 1 << (kMostCodeBits - nodes[i].depth);
      --nodes[i].depth;
    }
  }
  if (sum != kWhole) return false;
  log_ = 0;
  codes_.fill({});
  for (int i = 0; i < literals; ++i) {
    codes_[order[i] & 0xFF].length = nodes[i].depth;
    log_ = std::max<int>(log_, nodes[i].depth);
  }
  return true;
}

bool HuffmanEncoder::Make(const ByteCounts& counts) {
  if (!SetLengths(counts)) return false;
  // The longest codes have the lowest numbers.
  std::array<uint32_t, kMostCodeBits + 1> of_length{};
  for (const Code& code : codes_) ++of_length[code.length];
  std::array<uint32_t, kMostCodeBits + 1> next{};
  uint32_t least = 0;
  for (int length = log_; length > 0; --length) {
    next[length] = least;
    least = (least + of_length[length]) >> 1;
  }
  for (Code& code : codes_) {
    if (code.length == 0) continue;
    code.bits = static_cast<uint16_t>(next[code.length]++);
  }
  description_size_ = 0;
  Describe();
  return description_size_ != 0;
}

// Writes the weights of all literals before the last one.
void HuffmanEncoder::Describe() {
  std::array<uint8_t, 256> weights;
  std::array<uint32_t, kMostCodeBits + 2> occurs{};
  for (int i = 0; i < last_; ++i) {
    const int length = codes_[i].length;
    weights[i] = static_cast<uint8_t>(length == 0 ? 0 : log_ + 1 - length);
    ++occurs[weights[i]];
  }
  const auto count = static_cast<size_t>(last_);
  const size_t direct = count <= 128 ? 1 + (count + 1) / 2 : SIZE_MAX;
  constexpr size_t kMostCoded = 128;
  if (count > 4 &&
      *std::ranges::max_element(occurs) != static_cast<uint32_t>(count)) {
    const FseCounts counts =
        ScaleCounts(occurs, static_cast<uint32_t>(count), kMostWeightLog);
    FseEncoder encoder;
    encoder.Make(counts);
    std::array<uint8_t, 512> coded;
    BitWriter bits(WriteFseCounts(counts, coded.data()));
    // Two streams take turns.
    std::array<uint32_t, 2> states{};
    for (size_t i = count; i-- > 0;) {
      if (i + 2 >= count) {
        states[i & 1] = encoder.Begin(weights[i]);
      } else {
        encoder.Encode(weights[i], &states[i & 1], &bits);
        bits.Flush();
      }
    }
    encoder.End(states[1], &bits);
    encoder.End(states[0], &bits);
    const size_t size = static_cast<size_t>(bits.FinishStream() - coded.data());
    if (size < kMostCoded && 1 + size < direct) {
      description_[0] = static_cast<uint8_t>(size);
      std::copy_n(coded.begin(), size, description_.begin() + 1);
      description_size_ = 1 + size;
      return;
    }
  }
  if (direct == SIZE_MAX) return;
  weights[count] = 0;
  description_[0] = static_cast<uint8_t>(127 + count);
  for (size_t i = 0; i < count; i += 2) {
    description_[1 + i / 2] =
        static_cast<uint8_t>(weights[i] << 4 | weights[i + 1]);
  }
  description_size_ = direct;
}

uint64_t HuffmanEncoder::Bytes(const ByteCounts& counts) const {
  uint64_t bits = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    bits += uint64_t{counts[i]} * codes_[i].length;
  }
  return bits / 8 + description_size_;
}

uint8_t* HuffmanEncoder::WriteDescription(uint8_t* out) const {
  return std::copy_n(description_.begin(), description_size_, out);
}

uint8_t* HuffmanEncoder::Encode(std::span<const uint8_t> literals,
                                uint8_t* out) const {
  BitWriter bits(out);
  const auto add = [&](uint8_t literal) {
    const Code code = codes_[literal];
    bits.Add(code.bits, code.length);
  };
  size_t i = literals.size();
  for (; i % 4 != 0; --i) add(literals[i - 1]);
  bits.Flush();
  for (; i > 0; i -= 4) {
    add(literals[i - 1]);
    add(literals[i - 2]);
    add(literals[i - 3]);
    add(literals[i - 4]);
    bits.Flush();
  }
  return bits.FinishStream();
}

uint8_t* HuffmanEncoder::EncodeFour(std::span<const uint8_t> literals,
                                    uint8_t* out) const {
  constexpr size_t kJumps = 6;
  uint8_t* const jumps = out;
  out += kJumps;
  const size_t part = (literals.size() + 3) / 4;
  for (size_t i = 0; i < 4; ++i) {
    const auto stream =
        i < 3 ? literals.subspan(i * part, part) : literals.subspan(3 * part);
    uint8_t* const end = Encode(stream, out);
    if (i < 3) {
      const auto size = static_cast<size_t>(end - out);
      jumps[2 * i] = static_cast<uint8_t>(size);
      jumps[2 * i + 1] = static_cast<uint8_t>(size >> 8);
    }
    out = end;
  }
  return out;
}

}  // namespace haulway::delta
