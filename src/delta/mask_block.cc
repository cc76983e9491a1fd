// Design: a frame of changes is some bytes between runs of zeros, which are
// stored as matches one byte back. libzstd writes these zeros, and another pass
// reads them again to combine them. Here a match whose source is zero costs
// nothing: the mask is zero already, and the tensor does not change. Words of
// the mask are combined with the tensor as they are written, so the tensor is
// touched where it changes only.
//
// Other frames, as of zstd's own search, have twice as many sequences, whose
// words overlap each other in the tensor: libzstd is faster for them.

#include "delta/mask_block.h"

#include <algorithm>
#include <cstring>

#include "delta/zstd_codes.h"

namespace haulway::delta {

namespace {

constexpr size_t kWord = sizeof(uint64_t);
constexpr size_t kFetchAhead = 1024;
// Literals may be read this far after their end.
constexpr size_t kLiteralSlack = 16;

uint64_t Load(const uint8_t* at) {
  uint64_t word;
  std::memcpy(&word, at, kWord);
  return word;
}

uint64_t MaskOf(unsigned bits) { return (uint64_t{1} << bits) - 1; }

// Returns the first `length` bytes of a word, zeros after them.
uint64_t First(uint64_t word, size_t length) {
  return length >= kWord ? word : word & ((uint64_t{1} << (8 * length)) - 1);
}

}  // namespace

struct BlockDecoder::Code {
  std::span<const CodeMeaning> meanings;
  std::span<const int16_t> usual;  // The default distribution.
  int usual_log;
  int most_log;
};

[[gnu::always_inline]] inline void MaskCombiner::Put(uint64_t bytes,
                                                     size_t length) {
  std::memcpy(mask + at, &bytes, kWord);
  uint8_t* const to = tensor + (at - begin);
  // Between two changes, the tensor is not touched, so processors do not fetch
  // it ahead.
  __builtin_prefetch(to + kFetchAhead, 1);
  __builtin_prefetch(to + kFetchAhead + 64, 1);
  all |= bytes;
  if (limit - at >= kWord) {
    bytes ^= Load(to);
    std::memcpy(to, &bytes, kWord);
  } else {
    for (size_t i = 0; i < length; ++i) to[i] ^= mask[at + i];
  }
  at += length;
}

[[gnu::always_inline]] inline bool MaskCombiner::AddLiterals(
    const uint8_t* literals, size_t length) {
  if (length > limit - at) return false;
  for (; length > kWord; length -= kWord, literals += kWord) {
    Put(Load(literals), kWord);
  }
  Put(First(Load(literals), length), length);
  return true;
}

[[gnu::always_inline]] inline bool MaskCombiner::AddRun(uint8_t value,
                                                        size_t length) {
  if (length > limit - at) return false;
  if (value == 0) {
    at += length;
    return true;
  }
  const uint64_t word = value * uint64_t{0x0101010101010101};
  for (; length > kWord; length -= kWord) Put(word, kWord);
  Put(First(word, length), length);
  return true;
}

[[gnu::always_inline]] inline bool MaskCombiner::AddMatch(size_t offset,
                                                          size_t length) {
  if (offset - 1 >= at) return false;  // 0, or before the beginning.
  if (offset == 1) return AddRun(mask[at - 1], length);
  if (length > limit - at) return false;
  if (offset < kWord) {
    if (First(Load(mask + at - offset), offset) == 0) {
      at += length;
      return true;
    }
    for (; length > 0; --length) Put(mask[at - offset], 1);
    return true;
  }
  const uint8_t* from = mask + at - offset;
  for (; length > kWord; length -= kWord, from += kWord) {
    Put(Load(from), kWord);
  }
  Put(First(Load(from), length), length);
  return true;
}

bool MaskCombiner::AddRaw(std::span<const uint8_t> bytes) {
  if (bytes.size() > limit - at) return false;
  while (!bytes.empty()) {
    const size_t part = std::min(bytes.size(), kWord);
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), part);
    Put(word, part);
    bytes = bytes.subspan(part);
  }
  return true;
}

bool MaskCombiner::AddRepeated(uint8_t value, size_t length) {
  return AddRun(value, length);
}

BlockDecoder::BlockDecoder() : literals_(kMostBytes + kLiteralSlack) {}

bool BlockDecoder::ReadLiterals(std::span<const uint8_t>* block, size_t most) {
  if (block->empty()) return false;
  const uint8_t head = block->front();
  const int kind = head & 3;
  const int format = (head >> 2) & 3;
  uint64_t bits = 0;
  std::memcpy(&bits, block->data(), std::min<size_t>(block->size(), 5));
  size_t count = 0;
  size_t size = 0;
  size_t head_size = 0;
  const bool is_coded = kind >= 2;
  if (!is_coded) {
    head_size = format == 1 ? 2 : format == 3 ? 3 : 1;
    count = format == 1   ? (bits >> 4) & 0xFFF
            : format == 3 ? (bits >> 4) & 0xFFFFF
                          : head >> 3;
    size = kind == 0 ? count : 1;
  } else {
    constexpr int kWidths[] = {10, 10, 14, 18};
    const int width = kWidths[format];
    const uint64_t mask = (uint64_t{1} << width) - 1;
    head_size = format < 2 ? 3 : static_cast<size_t>(format) + 2;
    count = (bits >> 4) & mask;
    size = (bits >> (4 + width)) & mask;
  }
  if (head_size > block->size() || size > block->size() - head_size ||
      count > most) {
    return false;
  }
  std::span<const uint8_t> from = block->subspan(head_size, size);
  *block = block->subspan(head_size + size);
  literal_count_ = count;
  const std::span<uint8_t> out = std::span(literals_).first(count);
  switch (kind) {
    case 0:
      std::ranges::copy(from, out.begin());
      return true;
    case 1:
      std::ranges::fill(out, from.front());
      return true;
    case 2: {
      size_t used = 0;
      if (!huffman_.Open(from, &used)) return false;
      from = from.subspan(used);
      break;
    }
    default:
      if (!huffman_.is_open()) return false;
  }
  return format == 0 ? huffman_.Decode(from, out)
                     : huffman_.DecodeFour(from, out);
}

bool BlockDecoder::SetTable(const FseCounts& counts, const Code& code,
                            Table* table) {
  std::array<FseEntry, 512> fse;
  if (!MakeFseTable(counts, fse)) return false;
  table->log = counts.log;
  const size_t size = size_t{1} << counts.log;
  for (size_t i = 0; i < size; ++i) {
    const CodeMeaning& meaning = code.meanings[fse[i].symbol];
    table->entries[i] = Pack(fse[i], meaning.base, meaning.extra);
  }
  return true;
}

bool BlockDecoder::ReadTable(int mode, const Code& code,
                             std::span<const uint8_t>* block, Table* table) {
  FseCounts counts;
  switch (mode) {
    case 0:
      counts.log = code.usual_log;
      counts.symbols = static_cast<int>(code.usual.size());
      std::ranges::copy(code.usual, counts.counts.begin());
      return SetTable(counts, code, table);
    case 1: {
      if (block->empty() || block->front() >= code.meanings.size()) {
        return false;
      }
      const CodeMeaning& meaning = code.meanings[block->front()];
      table->log = 0;
      table->entries[0] = Pack({}, meaning.base, meaning.extra);
      *block = block->subspan(1);
      return true;
    }
    case 2: {
      size_t used = 0;
      if (!ReadFseCounts(*block, static_cast<int>(code.meanings.size()),
                         code.most_log, &counts, &used)) {
        return false;
      }
      *block = block->subspan(used);
      return SetTable(counts, code, table);
    }
    default:
      return table->log >= 0;
  }
}

bool BlockDecoder::RunSequences(std::span<const uint8_t> stream, uint32_t count,
                                MaskCombiner* made) {
  BackwardBits bits;
  if (!bits.Open(stream)) return false;
  MaskCombiner out = *made;
  const Entry* const lengths = literal_lengths_.entries.data();
  const Entry* const offsets = offsets_.entries.data();
  const Entry* const matches = match_lengths_.entries.data();
  uint64_t length_state =
      bits.Read(static_cast<unsigned>(literal_lengths_.log));
  uint64_t offset_state = bits.Read(static_cast<unsigned>(offsets_.log));
  uint64_t match_state = bits.Read(static_cast<unsigned>(match_lengths_.log));
  bits.Refill();
  auto [first, second, third] = repeats_;
  const uint8_t* literals = literals_.data();
  size_t left = literal_count_;
  while (true) {
    if (bits.is_over()) return false;
    const Entry length_entry = lengths[length_state];
    const Entry offset_entry = offsets[offset_state];
    const Entry match_entry = matches[match_state];
    const unsigned offset_bits = ExtraOf(offset_entry);
    const unsigned match_bits = ExtraOf(match_entry);
    const unsigned length_bits = ExtraOf(length_entry);
    uint64_t offset = offset_entry >> 32;
    uint64_t match = match_entry >> 32;
    uint64_t length = length_entry >> 32;
    const unsigned extra = offset_bits + match_bits + length_bits;
    // Refill() makes 57 bits available, and three states take at most 26.
    if (extra <= 31) [[likely]] {
      uint64_t read = bits.Read(extra);
      length += read & MaskOf(length_bits);
      read >>= length_bits;
      match += read & MaskOf(match_bits);
      offset += read >> match_bits;
    } else {
      offset += bits.Read(offset_bits);
      bits.Refill();
      match += bits.Read(match_bits);
      length += bits.Read(length_bits);
      bits.Refill();
    }
    if (offset > 3) {
      third = second;
      second = first;
      offset -= 3;
      first = offset;
    } else {
      // Without literals, the three mean one later, and the last a new one.
      if (length == 0) ++offset;
      if (offset > 1) {
        const uint64_t again = offset == 2   ? second
                               : offset == 3 ? third
                                             : first - 1;
        if (offset > 2) third = second;
        second = first;
        first = again;
      }
      offset = first;
    }
    if (length > left || !out.AddLiterals(literals, length) ||
        !out.AddMatch(offset, match)) {
      return false;
    }
    literals += length;
    left -= length;
    if (--count == 0) break;
    const unsigned match_step = StepOf(match_entry);
    const unsigned offset_step = StepOf(offset_entry);
    uint64_t read = bits.Read(StepOf(length_entry) + match_step + offset_step);
    offset_state = NextOf(offset_entry) + (read & MaskOf(offset_step));
    read >>= offset_step;
    match_state = NextOf(match_entry) + (read & MaskOf(match_step));
    length_state = NextOf(length_entry) + (read >> match_step);
    bits.Refill();
  }
  bits.Refill();
  if (!bits.is_at_end()) return false;
  repeats_ = {first, second, third};
  if (!out.AddLiterals(literals, left)) return false;
  *made = out;
  return true;
}

bool BlockDecoder::Decode(std::span<const uint8_t> block, MaskCombiner* out) {
  if (!ReadLiterals(&block, kMostBytes) || block.empty()) return false;
  uint32_t count = block[0];
  size_t used = 1;
  if (count >= 128) {
    used = count == 255 ? 3 : 2;
    if (block.size() < used) return false;
    count = count == 255 ? 0x7F00u + block[1] + (uint32_t{block[2]} << 8)
                         : ((count - 128) << 8) + block[1];
  }
  block = block.subspan(used);
  if (count == 0) {
    return block.empty() && out->AddLiterals(literals_.data(), literal_count_);
  }
  if (block.empty()) return false;
  const int modes = block[0];
  block = block.subspan(1);
  const Code kLiteralLengthCode = {kLiteralLengths, kLiteralLengthCounts, 6, 9};
  const Code kOffsetCode = {kOffsets, kOffsetCounts, 5, 8};
  const Code kMatchLengthCode = {kMatchLengths, kMatchLengthCounts, 6, 9};
  if ((modes & 3) != 0 ||
      !ReadTable(modes >> 6, kLiteralLengthCode, &block, &literal_lengths_) ||
      !ReadTable((modes >> 4) & 3, kOffsetCode, &block, &offsets_) ||
      !ReadTable((modes >> 2) & 3, kMatchLengthCode, &block, &match_lengths_)) {
    return false;
  }
  return RunSequences(block, count, out);
}

}  // namespace haulway::delta
