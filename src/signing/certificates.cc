#include "signing/certificates.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <charconv>
#include <chrono>
#include <ctime>
#include <utility>

#include "base/text.h"
#include "signing/bundle.h"

namespace haulway::signing {

namespace {

std::string NameText(const X509_NAME* name) {
  const OwnedBio bio(::BIO_new(::BIO_s_mem()));
  if (bio == nullptr ||
      ::X509_NAME_print_ex(bio.get(), name, 0, XN_FLAG_RFC2253) < 0) {
    return "";
  }
  char* text = nullptr;
  const long size = ::BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<size_t>(size));
}

}  // namespace

Result<OwnedCertificates> ParsePemCertificates(
    std::span<const std::string> texts) {
  OwnedCertificates all(sk_X509_new_null());
  for (const std::string& text : texts) {
    const OwnedBio bio = ReadingBio(text);
    const int before = sk_X509_num(all.get());
    while (X509* const one =
               ::PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
      sk_X509_push(all.get(), one);
    }
    ::ERR_clear_error();
    if (sk_X509_num(all.get()) == before) {
      return Status(Code::kInvalidArgument,
                    "it has no certificate: expected PEM, -----BEGIN "
                    "CERTIFICATE-----");
    }
  }
  return all;
}

Result<OwnedCertificate> ParseCertificate(std::string_view der) {
  const unsigned char* at = Bytes(der);
  OwnedCertificate certificate(
      ::d2i_X509(nullptr, &at, static_cast<long>(der.size())));
  ::ERR_clear_error();
  if (certificate == nullptr || at != Bytes(der) + der.size()) {
    return Status(Code::kCorrupt, "a certificate in the bundle is malformed");
  }
  return certificate;
}

Result<int64_t> SecondsOf(const ASN1_TIME* time) {
  std::tm parts{};
  if (time == nullptr || ::ASN1_TIME_to_tm(time, &parts) != 1) {
    ::ERR_clear_error();
    return Status(Code::kCorrupt, "a time in a certificate is malformed");
  }
  return static_cast<int64_t>(::timegm(&parts));
}

Result<int64_t> BeginOf(const X509* certificate) {
  return SecondsOf(::X509_get0_notBefore(certificate));
}

Result<int64_t> EndOf(const X509* certificate) {
  return SecondsOf(::X509_get0_notAfter(certificate));
}

Result<OwnedCertificates> CheckPath(X509* leaf, STACK_OF(X509) * others,
                                    STACK_OF(X509) * trusted, int64_t time) {
  const Owned<X509_STORE, ::X509_STORE_free> store(::X509_STORE_new());
  const Owned<X509_STORE_CTX, ::X509_STORE_CTX_free> context(
      ::X509_STORE_CTX_new());
  if (store == nullptr || context == nullptr) {
    return Status(Code::kLimit, "no memory to check certificates");
  }
  for (int i = 0; i < sk_X509_num(trusted); ++i) {
    ::X509_STORE_add_cert(store.get(), sk_X509_value(trusted, i));
  }
  if (::X509_STORE_CTX_init(context.get(), store.get(), leaf, others) != 1) {
    return Status(Code::kInternal,
                  fmt::format("cannot check certificates: {}", WhyFailed()));
  }
  ::X509_STORE_CTX_set_time(context.get(), 0, static_cast<time_t>(time));
  const bool holds = ::X509_verify_cert(context.get()) == 1;
  const int error = ::X509_STORE_CTX_get_error(context.get());
  ::ERR_clear_error();
  if (!holds) {
    X509* const at = ::X509_STORE_CTX_get_current_cert(context.get());
    return Status(
        Code::kSignature,
        fmt::format("the signer's certificate does not lead to a trusted one: "
                    "{}, at {}, of {}",
                    ::X509_verify_cert_error_string(error), TimeText(time),
                    Quote(at == nullptr ? "" : SubjectOf(at))));
  }
  return OwnedCertificates(::X509_STORE_CTX_get1_chain(context.get()));
}

bool MaySign(X509* certificate) {
  return (::X509_get_extension_flags(certificate) & EXFLAG_KUSAGE) != 0 &&
         (::X509_get_key_usage(certificate) & KU_DIGITAL_SIGNATURE) != 0;
}

bool MaySignCode(X509* certificate) {
  return (::X509_get_extension_flags(certificate) & EXFLAG_XKUSAGE) != 0 &&
         (::X509_get_extended_key_usage(certificate) & XKU_CODE_SIGN) != 0;
}

std::string SubjectOf(const X509* certificate) {
  return NameText(::X509_get_subject_name(certificate));
}

std::string IssuerOf(const X509* certificate) {
  return NameText(::X509_get_issuer_name(certificate));
}

std::string TimeText(int64_t seconds) {
  const auto time = static_cast<time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
                     parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

Result<int64_t> ParseTime(std::string_view text) {
  if (text == "now") {
    return static_cast<int64_t>(
        std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()));
  }
  // Fractions of a second, as in trusted roots, do not matter.
  std::string whole(text);
  if (const size_t dot = whole.find('.'); dot != whole.npos) {
    const size_t rest = whole.find_first_not_of("0123456789", dot + 1);
    whole.erase(dot, rest == whole.npos ? whole.npos : rest - dot);
  }
  std::tm parts{};
  const char* const end =
      ::strptime(whole.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr ||
      (std::string_view(end) != "Z" && std::string_view(end) != "+00:00")) {
    return Status(Code::kInvalidArgument,
                  fmt::format("the time is {}: expected now, or a time such "
                              "as 2026-11-28T12:00:00Z",
                              Quote(text)));
  }
  return static_cast<int64_t>(::timegm(&parts));
}

}  // namespace haulway::signing
