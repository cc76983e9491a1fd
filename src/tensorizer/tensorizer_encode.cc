#include "tensorizer/tensorizer_encode.h"

#include <algorithm>
#include <cstring>

#include "tensorizer/byte_writer.h"

namespace haulway::tensorizer {

namespace {

constexpr uint8_t kCrc32Bytes = 4;
constexpr uint8_t kSha256Bytes = 32;
constexpr uint64_t kHashHead = 2;  // Type and size of each hash.

void WriteDTypeAndDims(const TensorFields& tensor, ByteWriter* out) {
  out->U8(static_cast<uint8_t>(tensor.dtype.size()));
  out->Text(tensor.dtype);
  out->U8(static_cast<uint8_t>(tensor.dims.size()));
  for (const uint64_t dim : tensor.dims) {
    if (tensor.long_dims) {
      out->U64(dim);
    } else {
      out->U32(static_cast<uint32_t>(dim));
    }
  }
}

void WriteName(const TensorFields& tensor, ByteWriter* out) {
  out->U16(static_cast<uint16_t>(tensor.name.size()));
  out->Text(tensor.name);
}

}  // namespace

std::vector<std::byte> EncodePreamble(const Preamble& preamble) {
  std::vector<std::byte> bytes;
  ByteWriter out(&bytes);
  out.Text(kMagic);
  out.U32(preamble.version);
  out.U64(preamble.flags);
  out.Zeros(24);
  out.U64(preamble.data_bytes);
  out.U64(0);
  out.U64(preamble.count);
  out.U64(preamble.index_bytes);
  return bytes;
}

size_t IndexEntryBytes(const TensorFields& tensor, bool tagged) {
  return (tagged ? 4 : 0) + 2 + tensor.name.size() + 1 + 1 +
         tensor.dtype.size() + 1 +
         tensor.dims.size() * (tensor.long_dims ? 8 : 4) + 24;
}

void EncodeIndexEntry(const TensorFields& tensor, bool tagged,
                      uint64_t header_offset, uint64_t data_offset,
                      std::vector<std::byte>* bytes) {
  ByteWriter out(bytes);
  if (tagged) out.U32(tensor.long_dims ? 5 : 1);
  WriteName(tensor, &out);
  out.U8(static_cast<uint8_t>(tensor.type));
  WriteDTypeAndDims(tensor, &out);
  out.U64(header_offset);
  out.U64(data_offset);
  out.U64(tensor.data_bytes);
}

size_t HeaderBytes(const TensorFields& tensor, const HeaderFields& fields) {
  return 8 + 2 + 1 + 2 + tensor.name.size() + 1 + tensor.dtype.size() + 1 +
         tensor.dims.size() * (tensor.long_dims ? 8 : 4) + 2 + 1 +
         (fields.has_crc32 ? kHashHead + kCrc32Bytes : 0) + kHashHead +
         kSha256Bytes + fields.crypt_block.size() + fields.padding + 8;
}

EncodedHeader::EncodedHeader(const TensorFields& tensor,
                             const HeaderFields& fields) {
  ByteWriter out(&bytes_);
  out.U64(0);
  out.U16(fields.module_index);
  out.U8(static_cast<uint8_t>(tensor.type));
  WriteName(tensor, &out);
  WriteDTypeAndDims(tensor, &out);
  hash_block_at_ = out.size();
  const uint64_t crc32_bytes = fields.has_crc32 ? kHashHead + kCrc32Bytes : 0;
  out.U16(static_cast<uint16_t>(1 + crc32_bytes + kHashHead + kSha256Bytes));
  out.U8(fields.has_crc32 ? 2 : 1);
  if (fields.has_crc32) {
    out.U8(0);
    out.U8(kCrc32Bytes);
    crc32_at_ = out.size();
    out.Zeros(kCrc32Bytes);
  }
  out.U8(1);
  out.U8(kSha256Bytes);
  sha256_at_ = out.size();
  out.Zeros(kSha256Bytes);
  crypt_at_ = out.size();
  out.Bytes(fields.crypt_block);
  crypt_end_ = out.size();
  out.Zeros(fields.padding);
  out.U64(tensor.data_bytes);
  const uint64_t length = bytes_.size();
  std::memcpy(bytes_.data(), &length, sizeof(length));
}

std::vector<std::byte> EncodedHeader::Covered(HashRule rule) const {
  const size_t end =
      rule == HashRule::kWithoutHashes ? hash_block_at_ : crypt_at_;
  std::vector<std::byte> covered(bytes_.begin(),
                                 bytes_.begin() + static_cast<ptrdiff_t>(end));
  covered.insert(covered.end(),
                 bytes_.begin() + static_cast<ptrdiff_t>(crypt_end_),
                 bytes_.end());
  return covered;
}

void EncodedHeader::SetHashes(uint32_t crc32, const Sha256Value& sha256) {
  if (crc32_at_ != 0) {
    std::memcpy(bytes_.data() + crc32_at_, &crc32, sizeof(crc32));
  }
  std::ranges::copy(sha256,
                    bytes_.begin() + static_cast<ptrdiff_t>(sha256_at_));
}

void EncodedHeader::SetCryptBlock(std::span<const std::byte> block) {
  std::ranges::copy(block, bytes_.begin() + static_cast<ptrdiff_t>(crypt_at_));
}

}  // namespace haulway::tensorizer
