#include "tensorizer/secretbox.h"

#include <openssl/evp.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <memory>

namespace haulway::tensorizer {

namespace {

static_assert(crypto_secretbox_KEYBYTES == kKeyBytes);
static_assert(crypto_secretbox_NONCEBYTES == kNonceBytes);
static_assert(crypto_secretbox_MACBYTES == kMacBytes);
static_assert(crypto_onetimeauth_BYTES == kMacBytes);

constexpr size_t kBlockBytes = 64;  // Block size of the key stream.
constexpr size_t kMacKeyBytes = crypto_onetimeauth_KEYBYTES;

using Mac = std::array<unsigned char, kMacBytes>;

// Returns false if this OpenSSL has no Poly1305.
bool MacByOpenSsl(std::span<const unsigned char, kMacKeyBytes> key,
                  std::span<const std::byte> bytes, Mac* mac) {
  static EVP_MAC* const poly1305 = EVP_MAC_fetch(nullptr, "POLY1305", nullptr);
  if (poly1305 == nullptr) return false;
  const std::unique_ptr<EVP_MAC_CTX, void (*)(EVP_MAC_CTX*)> context(
      EVP_MAC_CTX_new(poly1305), &EVP_MAC_CTX_free);
  size_t length = 0;
  return context != nullptr &&
         EVP_MAC_init(context.get(), key.data(), key.size(), nullptr) == 1 &&
         EVP_MAC_update(context.get(), Raw(bytes.data()), bytes.size()) == 1 &&
         EVP_MAC_final(context.get(), mac->data(), &length, mac->size()) == 1 &&
         length == mac->size();
}

// A Box holds what a key and a nonce derive: the first block of the key stream,
// of which one half is the key of the MAC and the other encrypts the first
// bytes.
class Box {
 public:
  Box(std::span<const std::byte, kKeyBytes> key, const Nonce& nonce)
      : key_(Raw(key.data())), nonce_(Raw(nonce.data())) {
    crypto_stream_xsalsa20(first_.data(), first_.size(), nonce_, key_);
  }
  ~Box() { sodium_memzero(first_.data(), first_.size()); }
  Box(const Box&) = delete;
  Box& operator=(const Box&) = delete;

  Mac MacOf(std::span<const std::byte> sealed) const {
    Mac mac;
    const auto key = std::span(first_).first<kMacKeyBytes>();
    if (!MacByOpenSsl(key, sealed, &mac)) {
      crypto_onetimeauth(mac.data(), Raw(sealed.data()), sealed.size(),
                         key.data());
    }
    return mac;
  }

  void Crypt(std::span<const std::byte> in, std::span<std::byte> out) const {
    assert(in.size() == out.size());
    const size_t head = std::min(in.size(), kBlockBytes - kMacKeyBytes);
    for (size_t i = 0; i < head; ++i) {
      out[i] = in[i] ^ std::byte{first_[kMacKeyBytes + i]};
    }
    if (in.size() == head) return;
    crypto_stream_xsalsa20_xor_ic(Raw(out.data() + head), Raw(in.data() + head),
                                  in.size() - head, nonce_, 1, key_);
  }

 private:
  const unsigned char* const key_;
  const unsigned char* const nonce_;
  std::array<unsigned char, kBlockBytes> first_;
};

}  // namespace

void SealBox(std::span<const std::byte, kKeyBytes> key, const Nonce& nonce,
             std::span<const std::byte> plain, std::span<std::byte> out,
             std::span<std::byte, kMacBytes> mac) {
  const Box box(key, nonce);
  box.Crypt(plain, out);
  const Mac made = box.MacOf(out);
  std::ranges::copy(std::as_bytes(std::span(made)), mac.begin());
}

bool OpenBox(std::span<const std::byte, kKeyBytes> key, const Nonce& nonce,
             std::span<const std::byte> sealed, std::span<std::byte> out,
             std::span<const std::byte, kMacBytes> mac) {
  const Box box(key, nonce);
  const Mac found = box.MacOf(sealed);
  if (sodium_memcmp(found.data(), mac.data(), found.size()) != 0) return false;
  box.Crypt(sealed, out);
  return true;
}

}  // namespace haulway::tensorizer
