#include "signing/time_stamps.h"

#include <openssl/err.h>
#include <openssl/ts.h>

#include <string>
#include <utility>

#include "signing/certificates.h"
#include "signing/openssl.h"

// OpenSSL 3.4 gave these functions, which take what they are given, new names.
#if OPENSSL_VERSION_NUMBER < 0x30400000L
#define TS_VERIFY_CTX_set0_store TS_VERIFY_CTX_set_store
#define TS_VERIFY_CTX_set0_certs TS_VERIFY_CTX_set_certs
#define TS_VERIFY_CTX_set0_data TS_VERIFY_CTX_set_data
#endif

namespace haulway::signing {

namespace {

// Returns the time in a token, which is not checked.
std::optional<int64_t> TimeIn(TS_RESP* response) {
  TS_TST_INFO* const info = ::TS_RESP_get_tst_info(response);
  if (info == nullptr) return std::nullopt;
  const auto time = SecondsOf(::TS_TST_INFO_get_time(info));
  if (!time.ok()) return std::nullopt;
  return time.value();
}

// Returns whether the token's digest is one of SHA-2.
bool HasSha2(TS_RESP* response) {
  const ASN1_OBJECT* algorithm = nullptr;
  ::X509_ALGOR_get0(&algorithm, nullptr, nullptr,
                    ::TS_MSG_IMPRINT_get_algo(::TS_TST_INFO_get_msg_imprint(
                        ::TS_RESP_get_tst_info(response))));
  const int kind = ::OBJ_obj2nid(algorithm);
  return kind == NID_sha256 || kind == NID_sha384 || kind == NID_sha512;
}

bool Verifies(TS_RESP* response, std::string_view message,
              const Authority& authority, int64_t time) {
  X509_STORE* const store = ::X509_STORE_new();
  STACK_OF(X509)* const others = sk_X509_new_null();
  for (const std::string& der : authority.certificates) {
    auto certificate = ParseCertificate(der);
    if (!certificate.ok()) continue;
    if (&der == &authority.certificates.back()) {
      ::X509_STORE_add_cert(store, certificate.value().get());
    } else {
      sk_X509_push(others, certificate.value().release());
    }
  }
  ::X509_VERIFY_PARAM_set_time(::X509_STORE_get0_param(store),
                               static_cast<time_t>(time));
  const Owned<TS_VERIFY_CTX, ::TS_VERIFY_CTX_free> context(
      ::TS_VERIFY_CTX_new());
  ::TS_VERIFY_CTX_set_flags(context.get(),
                            TS_VFY_VERSION | TS_VFY_DATA | TS_VFY_SIGNATURE);
  ::TS_VERIFY_CTX_set0_store(context.get(), store);
  ::TS_VERIFY_CTX_set0_certs(context.get(), others);
  ::TS_VERIFY_CTX_set0_data(context.get(), ReadingBio(message).release());
  const bool holds = ::TS_RESP_verify_response(context.get(), response) == 1;
  ::ERR_clear_error();
  return holds;
}

}  // namespace

std::optional<int64_t> CheckTimeStamp(
    std::string_view token, std::string_view message,
    const std::vector<Authority>& authorities) {
  const unsigned char* at = Bytes(token);
  const Owned<TS_RESP, ::TS_RESP_free> response(
      ::d2i_TS_RESP(nullptr, &at, static_cast<long>(token.size())));
  ::ERR_clear_error();
  if (response == nullptr || at != Bytes(token) + token.size()) {
    return std::nullopt;
  }
  const auto time = TimeIn(response.get());
  if (!time.has_value() || !HasSha2(response.get())) return std::nullopt;
  for (const Authority& authority : authorities) {
    if (authority.validity.Has(*time) &&
        Verifies(response.get(), message, authority, *time)) {
      return time;
    }
  }
  return std::nullopt;
}

}  // namespace haulway::signing
