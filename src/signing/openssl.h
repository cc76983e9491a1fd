// Owners of libcrypto's objects.

#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <memory>
#include <string>
#include <string_view>

#include "haulway/status.h"

namespace haulway::signing {

template <auto kFree>
struct FreeWith {
  template <class Object>
  void operator()(Object* object) const {
    kFree(object);
  }
};
template <class Object, auto kFree>
using Owned = std::unique_ptr<Object, FreeWith<kFree>>;

using OwnedBio = Owned<BIO, ::BIO_free>;
using OwnedKey = Owned<EVP_PKEY, ::EVP_PKEY_free>;
using OwnedCertificate = Owned<X509, ::X509_free>;

struct FreeCertificates {
  void operator()(STACK_OF(X509) * stack) const {
    sk_X509_pop_free(stack, ::X509_free);
  }
};
using OwnedCertificates = std::unique_ptr<STACK_OF(X509), FreeCertificates>;

inline OwnedBio ReadingBio(std::string_view bytes) {
  return OwnedBio(
      ::BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())));
}

inline const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// Returns libcrypto's reason for its last failure, and forgets all.
std::string WhyFailed();

// Returns the digest of a text, as 32 bytes.
std::string Sha256Of(std::string_view text);

}  // namespace haulway::signing
