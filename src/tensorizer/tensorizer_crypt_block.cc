#include "tensorizer/tensorizer_crypt_block.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/cursor.h"
#include "tensorizer/byte_writer.h"

namespace haulway::tensorizer {

namespace {

constexpr uint16_t kDerivation = 1;
constexpr uint16_t kParallel = 2;
constexpr uint16_t kSequential = 3;
constexpr uint16_t kMethodPwhash = 1;
constexpr uint32_t kArgon2id13 = 2;
constexpr uint64_t kChunkUnit = 64;
constexpr uint64_t kSmallestChunk = 1024;

Status WrongBlock(std::string_view what) {
  return Status(Code::kCorrupt, what).In("crypt block");
}

// Applies rule C03.
Status ParseDerivation(std::span<const std::byte> bytes,
                       const ParseLimits& limits, CryptBlock* out) {
  ByteCursor cursor(bytes);
  const uint16_t method = cursor.U16();
  KeyDerivation derivation;
  derivation.operations = cursor.U64();
  derivation.memory_bytes = cursor.U64();
  const uint32_t algorithm = cursor.U32();
  const uint16_t salt_bytes = cursor.U16();
  const auto salt = cursor.Bytes(salt_bytes);
  if (!cursor.ok() || cursor.remaining() != 0 || salt.size() != kSaltBytes) {
    return WrongBlock(
        "key derivation does not fill its chunk, or its salt is of "
        "wrong length");
  }
  if (method != kMethodPwhash || algorithm != kArgon2id13) {
    return WrongBlock(
        fmt::format("key derivation is unknown: expected method 1 and "
                    "algorithm 2, found {} and {}",
                    method, algorithm));
  }
  if (derivation.operations > limits.max_kdf_operations ||
      derivation.memory_bytes > limits.max_kdf_memory_bytes) {
    return Status(Code::kLimit,
                  fmt::format("key derivation with {} operations and {} bytes "
                              "passes max_kdf_operations {} or "
                              "max_kdf_memory_bytes {}",
                              derivation.operations, derivation.memory_bytes,
                              limits.max_kdf_operations,
                              limits.max_kdf_memory_bytes))
        .In("crypt block");
  }
  if (out->derivation.has_value()) return WrongBlock("two key derivations");
  std::ranges::copy(salt, derivation.salt.begin());
  out->derivation = derivation;
  return Status();
}

// Applies rule C02.
Status ParseCipher(uint16_t type, std::span<const std::byte> bytes,
                   uint64_t data_bytes, CryptBlock* out) {
  if (out->cipher != Cipher::kNone) return WrongBlock("two ciphers");
  ByteCursor cursor(bytes);
  uint64_t chunk_bytes = data_bytes;
  if (type == kParallel) chunk_bytes = cursor.U64();
  const auto nonce = cursor.Bytes(kNonceBytes);
  const uint64_t macs = type == kParallel ? cursor.U64() : 1;
  if (!cursor.ok() || macs > cursor.remaining() / kMacBytes) {
    return WrongBlock("cipher runs past its chunk");
  }
  out->macs = cursor.Bytes(macs * kMacBytes);
  if (cursor.remaining() != 0)
    return WrongBlock("cipher does not fill its chunk");
  if (type == kParallel) {
    if (chunk_bytes % kChunkUnit != 0 || chunk_bytes < kSmallestChunk) {
      return WrongBlock(fmt::format(
          "chunk size is no multiple of 64 from 1024: {}", chunk_bytes));
    }
    const uint64_t chunks =
        data_bytes / chunk_bytes + (data_bytes % chunk_bytes == 0 ? 0 : 1);
    if (macs != 1 && macs != chunks) {
      return WrongBlock(fmt::format(
          "wrong number of MACs: expected {}, found {}", chunks, macs));
    }
    if (macs == 1) chunk_bytes = data_bytes;
  }
  out->cipher = type == kParallel ? Cipher::kParallel : Cipher::kSequential;
  out->chunk_bytes = chunk_bytes;
  std::ranges::copy(nonce, out->nonce.begin());
  return Status();
}

}  // namespace

Result<CryptBlock> ParseCryptBlock(std::span<const std::byte> body,
                                   uint64_t data_bytes,
                                   const ParseLimits& limits) {
  CryptBlock out;
  ByteCursor cursor(body);
  const uint16_t count = cursor.U16();
  for (int i = 0; i < count; ++i) {
    ByteCursor chunk(cursor.Bytes(cursor.U64()));
    const uint16_t type = chunk.U16();
    const auto fields = chunk.Bytes(chunk.remaining());
    if (!cursor.ok() || !chunk.ok())
      return WrongBlock("chunk runs past the block");
    switch (type) {
      case kDerivation:
        HAULWAY_TRY(ParseDerivation(fields, limits, &out));
        break;
      case kParallel:
      case kSequential:
        HAULWAY_TRY(ParseCipher(type, fields, data_bytes, &out));
        break;
      default:
        return WrongBlock(fmt::format("unknown chunk of type {}", type));
    }
  }
  if (!cursor.ok() || cursor.remaining() != 0) {
    return WrongBlock("chunks do not fill the block");
  }
  if (out.cipher == Cipher::kNone && data_bytes != 0) {
    // The reference has this fault for scalar meta tensors.
    return WrongBlock("tensor with data is not encrypted in an encrypted file");
  }
  return out;
}

std::vector<std::byte> EncodeCryptBlock(const CryptBlock& block) {
  std::vector<std::byte> bytes;
  ByteWriter out(&bytes);
  const size_t length_at = out.Reserve64();
  const int chunks = (block.derivation.has_value() ? 1 : 0) +
                     (block.cipher != Cipher::kNone ? 1 : 0);
  out.U16(static_cast<uint16_t>(chunks));
  if (block.derivation.has_value()) {
    const size_t chunk_at = out.Reserve64();
    out.U16(kDerivation);
    out.U16(kMethodPwhash);
    out.U64(block.derivation->operations);
    out.U64(block.derivation->memory_bytes);
    out.U32(kArgon2id13);
    out.U16(kSaltBytes);
    out.Bytes(block.derivation->salt);
    out.FillLength(chunk_at);
  }
  if (block.cipher != Cipher::kNone) {
    const bool parallel = block.cipher == Cipher::kParallel;
    const size_t chunk_at = out.Reserve64();
    out.U16(parallel ? kParallel : kSequential);
    if (parallel) out.U64(block.chunk_bytes);
    out.Bytes(block.nonce);
    if (parallel) out.U64(block.macs.size() / kMacBytes);
    out.Bytes(block.macs);
    out.FillLength(chunk_at);
  }
  out.FillLength(length_at);
  return bytes;
}

Nonce UnitNonce(const Nonce& nonce, uint64_t i) {
  Nonce out = nonce;
  unsigned carry = 0;
  for (std::byte& byte : out) {
    const unsigned sum =
        static_cast<unsigned>(byte) + static_cast<unsigned>(i & 0xFF) + carry;
    byte = static_cast<std::byte>(sum & 0xFF);
    carry = sum >> 8;
    i >>= 8;
  }
  return out;
}

}  // namespace haulway::tensorizer
