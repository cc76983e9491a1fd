#include "base/sha256.h"

#include <openssl/evp.h>

#include <cassert>

namespace haulway {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }

  // None of these can fail for a digest that is always built in, short of no
  // memory at all.
  void Begin() {
    [[maybe_unused]] const int ok =
        EVP_DigestInit_ex(context, EVP_sha256(), nullptr);
    assert(ok == 1);
  }
};

Sha256::Sha256() : state_(std::make_unique<State>()) { state_->Begin(); }
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::Update(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  [[maybe_unused]] const int ok =
      EVP_DigestUpdate(state_->context, bytes.data(), bytes.size());
  assert(ok == 1);
}

Sha256Value Sha256::Finish() {
  Sha256Value value{};
  [[maybe_unused]] const int ok = EVP_DigestFinal_ex(
      state_->context, reinterpret_cast<unsigned char*>(value.data()), nullptr);
  assert(ok == 1);
  state_->Begin();
  return value;
}

}  // namespace haulway
