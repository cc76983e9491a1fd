#include "base/sha256.h"

// OpenSSL's current functions cannot import or export the state between blocks.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <algorithm>
#include <cassert>
#include <vector>

#include "base/sha256_lanes.h"

namespace haulway {

namespace {

// FIPS 180-4, 5.3.3.
constexpr std::array<uint32_t, 8> kStart = {0x6a09e667, 0xbb67ae85, 0x3c6ef372,
                                            0xa54ff53a, 0x510e527f, 0x9b05688c,
                                            0x1f83d9ab, 0x5be0cd19};
constexpr size_t kBlock = 64;

// Compresses whole blocks with OpenSSL.
void Compress(std::array<uint32_t, 8>* state,
              std::span<const std::byte> blocks) {
  assert(blocks.size() % kBlock == 0);
  if (blocks.empty()) return;
  SHA256_CTX context;
  SHA256_Init(&context);
  std::ranges::copy(*state, context.h);
  SHA256_Update(&context, blocks.data(), blocks.size());
  std::ranges::copy(context.h, state->begin());
}

// A message that is compressed in lock-step with others.
struct Message {
  std::array<uint32_t, 8>* state;
  const std::byte* bytes;
  size_t blocks;
};

// Compresses up to lanes.lanes messages in lock-step, as many blocks of each as
// the shortest has.
void CompressTogether(const Sha256Lanes& lanes, std::span<Message> messages) {
  std::array<uint32_t, 8 * kMaxSha256Lanes> states;
  std::array<const std::byte*, kMaxSha256Lanes> bytes;
  size_t blocks = SIZE_MAX;
  for (size_t l = 0; l < lanes.lanes; ++l) {
    // Unused lanes repeat the first message.
    const Message& message = messages[l < messages.size() ? l : 0];
    for (size_t w = 0; w < 8; ++w) {
      states[w * lanes.lanes + l] = (*message.state)[w];
    }
    bytes[l] = message.bytes;
    blocks = std::min(blocks, message.blocks);
  }
  lanes.compress(states.data(), bytes.data(), blocks);
  for (size_t l = 0; l < messages.size(); ++l) {
    Message& message = messages[l];
    for (size_t w = 0; w < 8; ++w) {
      (*message.state)[w] = states[w * lanes.lanes + l];
    }
    message.bytes += blocks * kBlock;
    message.blocks -= blocks;
  }
}

void CompressAll(std::vector<Message> messages) {
  const auto longer = [](const Message& a, const Message& b) {
    return a.blocks > b.blocks;
  };
  std::erase_if(messages, [](const Message& m) { return m.blocks == 0; });
  while (const Sha256Lanes* lanes = BestSha256Lanes(messages.size())) {
    // Take the longest messages, so that all end at about the same time.
    std::ranges::sort(messages, longer);
    const size_t count = std::min(messages.size(), lanes->lanes);
    CompressTogether(*lanes, std::span(messages).subspan(0, count));
    std::erase_if(messages, [](const Message& m) { return m.blocks == 0; });
  }
  for (const Message& message : messages) {
    Compress(message.state, {message.bytes, message.blocks * kBlock});
  }
}

}  // namespace

Sha256::Sha256() { Begin(); }

void Sha256::Begin() {
  state_ = kStart;
  bytes_ = 0;
}

std::span<const std::byte> Sha256::FillBlock(std::span<const std::byte> bytes) {
  const size_t held = bytes_ % kBlockBytes;
  if (held == 0) return bytes;
  const size_t taken = std::min(bytes.size(), kBlockBytes - held);
  Keep(bytes.subspan(0, taken));
  if (held + taken == kBlockBytes) Compress(&state_, block_);
  return bytes.subspan(taken);
}

void Sha256::Keep(std::span<const std::byte> bytes) {
  std::ranges::copy(
      bytes, block_.begin() + static_cast<ptrdiff_t>(bytes_ % kBlockBytes));
  bytes_ += bytes.size();
}

void Sha256::Update(std::span<const std::byte> bytes) {
  bytes = FillBlock(bytes);
  const size_t whole = bytes.size() / kBlockBytes * kBlockBytes;
  Compress(&state_, bytes.subspan(0, whole));
  bytes_ += whole;
  Keep(bytes.subspan(whole));
}

void Sha256::UpdateTogether(
    std::span<Sha256* const> digests,
    std::span<const std::span<const std::byte>> pieces) {
  assert(digests.size() == pieces.size());
  std::vector<Message> messages;
  messages.reserve(digests.size());
  for (size_t i = 0; i < digests.size(); ++i) {
    Sha256& digest = *digests[i];
    const auto bytes = digest.FillBlock(pieces[i]);
    const size_t blocks = bytes.size() / kBlockBytes;
    messages.push_back({&digest.state_, bytes.data(), blocks});
    digest.bytes_ += blocks * kBlockBytes;
    digest.Keep(bytes.subspan(blocks * kBlockBytes));
  }
  CompressAll(std::move(messages));
}

Sha256Value Sha256::Finish() {
  const uint64_t bits = bytes_ * 8;
  std::array<std::byte, kBlockBytes> padding{};
  padding[0] = std::byte{0x80};
  const size_t held = bytes_ % kBlockBytes;
  const size_t room = held < 56 ? 56 - held : 120 - held;
  // Up to 64 bytes: padding starts with 0x80 even if the last block is empty.
  Update(std::span(padding).first(room));
  std::array<std::byte, 8> length;
  for (size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<std::byte>(bits >> (56 - 8 * i) & 0xFF);
  }
  Update(length);
  Sha256Value value;
  for (size_t i = 0; i < value.size(); ++i) {
    value[i] =
        static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)) & 0xFF);
  }
  Begin();
  return value;
}

}  // namespace haulway
