#include "delta/blake3.h"

#include <algorithm>

#include "delta/blake3_lanes.h"

namespace haulway::delta {

namespace {

using Chain = std::array<uint32_t, 8>;
constexpr uint32_t kRootFlag = blake3::kRoot;
using blake3::kHashedBlock;
using blake3::kHashedChunk;
using blake3::kMostLanes;

void HashMany(const std::byte* chunks, uint64_t counter, Chain* out) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return blake3::HashLanesAvx2(chunks, counter, out);
#endif
  blake3::HashLanes<4>(chunks, counter, out);
  blake3::HashLanes<4>(chunks + 4 * kHashedChunk, counter + 4, out + 4);
}

// Returns the chaining value of a chunk, which may be short only at the end.
Chain HashChunk(std::span<const std::byte> chunk, uint64_t counter,
                uint32_t root) {
  Chain chain = blake3::kStart;
  uint32_t flags = blake3::kChunkStart;
  do {
    const auto part = chunk.first(std::min(chunk.size(), kHashedBlock));
    chunk = chunk.subspan(part.size());
    std::array<std::byte, kHashedBlock> padded{};
    std::ranges::copy(part, padded.begin());
    uint32_t words[16];
    for (int i = 0; i < 16; ++i) words[i] = blake3::WordAt(&padded[i * 4]);
    if (chunk.empty()) flags |= blake3::kChunkEnd | root;
    blake3::Compress<uint32_t>(chain.data(), words,
                               static_cast<uint32_t>(counter),
                               static_cast<uint32_t>(counter >> 32),
                               static_cast<uint32_t>(part.size()), flags);
    flags = 0;
  } while (!chunk.empty());
  return chain;
}

Chain Parent(const Chain& left, const Chain& right, uint32_t root) {
  uint32_t words[16];
  std::ranges::copy(left, words);
  std::ranges::copy(right, words + 8);
  Chain chain = blake3::kStart;
  blake3::Compress<uint32_t>(chain.data(), words, 0, 0, kHashedBlock,
                             blake3::kParent | root);
  return chain;
}

}  // namespace

void Blake3::Push(Chain value) {
  ++chunks_;
  // Each bit that is zero closes a subtree.
  for (uint64_t total = chunks_; (total & 1) == 0; total >>= 1) {
    value = Parent(stack_.back(), value, 0);
    stack_.pop_back();
  }
  stack_.push_back(value);
}

void Blake3::HashChunks(const std::byte* chunks, size_t count) {
  std::array<Chain, kMostLanes> values;
  for (; count >= kMostLanes; count -= kMostLanes) {
    HashMany(chunks, chunks_, values.data());
    for (const Chain& value : values) Push(value);
    chunks += kMostLanes * kHashedChunk;
  }
  for (; count > 0; --count) {
    Push(HashChunk({chunks, kHashedChunk}, chunks_, 0));
    chunks += kHashedChunk;
  }
}

void Blake3::Update(std::span<const std::byte> bytes) {
  constexpr size_t kTogether = kMostLanes * kHashedChunk;
  // The last chunk stays in `rest_`, because it is compressed differently.
  while (!bytes.empty()) {
    if (rest_.empty() && bytes.size() > kTogether) {
      const size_t whole = (bytes.size() - 1) / kTogether * kMostLanes;
      HashChunks(bytes.data(), whole);
      bytes = bytes.subspan(whole * kHashedChunk);
    }
    if (rest_.size() == kTogether) {
      HashChunks(rest_.data(), kMostLanes);
      rest_.clear();
      continue;
    }
    const auto taken =
        bytes.first(std::min(bytes.size(), kTogether - rest_.size()));
    rest_.insert(rest_.end(), taken.begin(), taken.end());
    bytes = bytes.subspan(taken.size());
  }
}

std::array<std::byte, 32> Blake3::Finish() {
  const size_t whole = rest_.empty() ? 0 : (rest_.size() - 1) / kHashedChunk;
  HashChunks(rest_.data(), whole);
  const auto last =
      std::span<const std::byte>(rest_).subspan(whole * kHashedChunk);
  Chain value = HashChunk(last, chunks_, stack_.empty() ? kRootFlag : 0);
  while (!stack_.empty()) {
    const Chain left = stack_.back();
    stack_.pop_back();
    value = Parent(left, value, stack_.empty() ? kRootFlag : 0);
  }
  std::array<std::byte, 32> hash;
  for (size_t i = 0; i < hash.size(); ++i) {
    hash[i] = static_cast<std::byte>(value[i / 4] >> (8 * (i % 4)));
  }
  return hash;
}

}  // namespace haulway::delta
