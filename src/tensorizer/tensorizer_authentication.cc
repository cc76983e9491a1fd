#include "tensorizer/tensorizer_authentication.h"

#include <sodium.h>

#include <algorithm>
#include <string_view>

#include "base/cursor.h"
#include "tensorizer/byte_writer.h"
#include "tensorizer/secretbox.h"
#include "tensorizer/tensorizer_crypt.h"

namespace haulway::tensorizer {

namespace {

constexpr std::string_view kAuthenticationMagic = "HW-AUTH1";
constexpr size_t kIndexTagBytes = 32;
constexpr size_t kLengthBytes = 8;
// Random part of a nonce; the mark follows.
constexpr size_t kMarkedBytes = 16;
// Sizes of an encoded crypt block: without and with a key derivation.
constexpr uint64_t kNoDerivationBytes = 8 + 2;
constexpr uint64_t kDerivationBytes = 8 + 2 + 8 + 42;

static_assert(kIndexTagBytes <= crypto_generichash_BYTES_MAX);
static_assert(kHeaderTagBytes >= crypto_generichash_BYTES_MIN);

// A Tag is a keyed BLAKE2b of a purpose and of bytes.
class Tag {
 public:
  Tag(const Secret& key, std::string_view what, size_t tag_bytes) {
    StartSodium();
    crypto_generichash_init(&state_, Raw(key.bytes().data()),
                            key.bytes().size(), tag_bytes);
    Number(what.size());
    Bytes(std::as_bytes(std::span(what.data(), what.size())));
  }
  ~Tag() { sodium_memzero(&state_, sizeof(state_)); }
  Tag(const Tag&) = delete;
  Tag& operator=(const Tag&) = delete;

  // Adds bytes with their length first, so that bytes cannot move from one part
  // to the next unnoticed.
  Tag& Part(std::span<const std::byte> bytes) {
    Number(bytes.size());
    return Bytes(bytes);
  }
  Tag& Number(uint64_t value) {
    std::array<std::byte, 8> bytes;
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(value & 0xFF);
      value >>= 8;
    }
    return Bytes(bytes);
  }
  void Finish(std::span<std::byte> tag) {
    crypto_generichash_final(
        &state_, reinterpret_cast<unsigned char*>(tag.data()), tag.size());
  }

 private:
  Tag& Bytes(std::span<const std::byte> bytes) {
    crypto_generichash_update(&state_, Raw(bytes.data()), bytes.size());
    return *this;
  }

  crypto_generichash_state state_;
};

bool Equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() &&
         sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

using IndexTag = std::array<std::byte, kIndexTagBytes>;

IndexTag TagIndex(const Secret& metadata_key, std::span<const std::byte> start,
                  std::span<const std::byte> head,
                  std::span<const std::byte> header_tags) {
  IndexTag tag;
  Tag(metadata_key, "index", tag.size())
      .Part(start)
      .Part(head)
      .Part(header_tags)
      .Finish(tag);
  return tag;
}

using Mark = std::array<std::byte, kNonceBytes - kMarkedBytes>;

Mark MarkOf(const Secret& metadata_key, const Nonce& nonce) {
  std::array<std::byte, crypto_generichash_BYTES_MIN> tag;
  Tag(metadata_key, "nonce", tag.size())
      .Part(std::span(nonce).first(kMarkedBytes))
      .Finish(tag);
  Mark mark;
  std::copy_n(tag.begin(), mark.size(), mark.begin());
  return mark;
}

}  // namespace

Secret MetadataKey(const Secret& file_key) {
  std::array<std::byte, kKeyBytes> key;
  Tag(file_key, "haulway tensorizer metadata key", key.size()).Finish(key);
  Secret secret(key);
  sodium_memzero(key.data(), key.size());
  return secret;
}

HeaderTag TagHeader(const Secret& metadata_key, uint64_t row,
                    std::span<const std::byte> header) {
  HeaderTag tag;
  Tag(metadata_key, "header", tag.size()).Number(row).Part(header).Finish(tag);
  return tag;
}

Nonce MarkedNonce(const Secret& metadata_key) {
  Nonce nonce;
  randombytes_buf(nonce.data(), kMarkedBytes);
  // Adding a unit's number changes a nonce from its first byte on, and does not
  // reach the mark.
  std::ranges::copy(MarkOf(metadata_key, nonce), nonce.begin() + kMarkedBytes);
  return nonce;
}

bool IsMarked(const Secret& metadata_key, const Nonce& nonce) {
  return Equal(MarkOf(metadata_key, nonce),
               std::span(nonce).subspan(kMarkedBytes));
}

uint64_t AuthenticationBytes(bool has_derivation, uint64_t tensors) {
  return kAuthenticationMagic.size() + kLengthBytes +
         (has_derivation ? kDerivationBytes : kNoDerivationBytes) +
         kIndexTagBytes + tensors * kHeaderTagBytes;
}

uint64_t LongestAuthentication(uint64_t tensors) {
  return AuthenticationBytes(/*has_derivation=*/true, tensors);
}

std::vector<std::byte> EncodeAuthentication(
    const Secret& metadata_key, const std::optional<KeyDerivation>& derivation,
    std::span<const std::byte> head, std::span<const HeaderTag> header_tags) {
  std::vector<std::byte> bytes;
  ByteWriter out(&bytes);
  out.Text(kAuthenticationMagic);
  const size_t length_at = out.Reserve64();
  CryptBlock block;
  block.derivation = derivation;
  out.Bytes(EncodeCryptBlock(block));
  const size_t tag_at = out.size();
  out.Zeros(kIndexTagBytes);
  for (const HeaderTag& tag : header_tags) out.Bytes(tag);
  out.FillLength(length_at);
  const auto all = std::span<const std::byte>(bytes);
  const IndexTag tag = TagIndex(metadata_key, all.first(tag_at), head,
                                all.subspan(tag_at + kIndexTagBytes));
  std::ranges::copy(tag, bytes.begin() + static_cast<ptrdiff_t>(tag_at));
  return bytes;
}

Result<std::optional<AuthenticationRecord>> ParseAuthentication(
    std::span<const std::byte> bytes, uint64_t tensors,
    const ParseLimits& limits) {
  ByteCursor cursor(bytes);
  if (cursor.Text(kAuthenticationMagic.size()) != kAuthenticationMagic) {
    return std::optional<AuthenticationRecord>();
  }
  const auto wrong = [](Code code, std::string_view what) {
    return Status(code, what).In("authentication record");
  };
  const uint64_t length = cursor.U64();
  ByteCursor body(cursor.Bytes(length));
  if (!cursor.ok()) {
    // A length above the maximum is corrupt. A smaller one means that the file
    // was truncated.
    return wrong(length > LongestAuthentication(tensors) ? Code::kCorrupt
                                                         : Code::kTruncated,
                 "record ends past the file");
  }
  AuthenticationRecord record;
  const uint64_t block_bytes = body.U64();
  const auto block = body.Bytes(block_bytes);
  const size_t tag_at =
      kAuthenticationMagic.size() + kLengthBytes + body.position();
  record.index_tag = body.Bytes(kIndexTagBytes);
  record.header_tags = body.Bytes(body.remaining());
  if (!body.ok() || record.header_tags.size() != tensors * kHeaderTagBytes) {
    return wrong(Code::kCorrupt, "tags are not as many as the tensors");
  }
  HAULWAY_ASSIGN(const CryptBlock parsed,
                 ParseCryptBlock(block, /*data_bytes=*/0, limits));
  if (parsed.cipher != Cipher::kNone) {
    return wrong(Code::kCorrupt, "record has a cipher, but no data");
  }
  record.derivation = parsed.derivation;
  record.start = bytes.subspan(0, tag_at);
  return std::optional<AuthenticationRecord>(record);
}

Status CheckIndexTag(const Secret& metadata_key,
                     const AuthenticationRecord& record,
                     std::span<const std::byte> head) {
  if (Equal(TagIndex(metadata_key, record.start, head, record.header_tags),
            record.index_tag)) {
    return Status();
  }
  return Status(Code::kAuth,
                "metadata is not authentic: the key is wrong, or names, "
                "types, shapes or order were changed");
}

Status CheckHeaderTag(const Secret& metadata_key,
                      const AuthenticationRecord& record, uint64_t row,
                      std::span<const std::byte> header) {
  if (Equal(
          TagHeader(metadata_key, row, header),
          record.header_tags.subspan(row * kHeaderTagBytes, kHeaderTagBytes))) {
    return Status();
  }
  return Status(Code::kAuth,
                "header is not authentic: it was changed, or is of another "
                "tensor");
}

}  // namespace haulway::tensorizer
