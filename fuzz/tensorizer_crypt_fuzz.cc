// Property: any bytes parsed as a crypt block result in facts or a typed error.
// Facts are encoded to a block that parses to the same facts. Small data can be
// encrypted and decrypted with them, and is refused if one byte of it changes.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/cursor.h"
#include "haulway/options.h"
#include "tensorizer/tensorizer_crypt.h"
#include "tensorizer/tensorizer_crypt_block.h"

namespace {

using namespace haulway;
using namespace haulway::tensorizer;

void Require(bool holds) {
  if (!holds) abort();
}

void CheckCipher(const CryptBlock& block, uint64_t data_bytes) {
  static const Secret key("0123456789abcdef0123456789ABCDEF");
  std::vector<std::byte> data(data_bytes);
  std::vector<std::byte> macs(block.macs.size());
  CryptBlock own = block;
  EncryptUnits(own, key, 0, data, data, macs);
  own.macs = macs;
  data[data.size() / 2] ^= std::byte{1};
  Require(DecryptUnits(own, key, 0, data, data).code() == Code::kAuth);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ByteCursor cursor(std::as_bytes(std::span(data, size)));
  const uint64_t data_bytes = cursor.U64();
  const auto body = cursor.Bytes(cursor.remaining());
  if (!cursor.ok()) return 0;
  const ParseLimits limits;
  const auto block = ParseCryptBlock(body, data_bytes, limits);
  if (!block.ok()) {
    Require(!block.status().message().empty());
    return 0;
  }
  if (block->derivation.has_value()) {
    Require(block->derivation->operations <= limits.max_kdf_operations);
    Require(block->derivation->memory_bytes <= limits.max_kdf_memory_bytes);
  }
  Require(block->cipher != Cipher::kNone || data_bytes == 0);
  Require(block->macs.size() <= body.size());
  // With a single MAC the chunk size is not stored; it is the size of the data.
  if (block->cipher != Cipher::kParallel || block->macs.size() > kMacBytes) {
    const auto encoded = EncodeCryptBlock(*block);
    const auto again =
        ParseCryptBlock(std::span(encoded).subspan(8), data_bytes, limits);
    Require(again.ok() && again->derivation == block->derivation &&
            again->nonce == block->nonce && again->cipher == block->cipher &&
            again->chunk_bytes == block->chunk_bytes &&
            std::ranges::equal(again->macs, block->macs));
  }
  if (data_bytes == 0 || data_bytes > 8192 || block->macs.empty()) return 0;
  CheckCipher(*block, data_bytes);
  return 0;
}
