// The required signer of a model, and what may differ from what was signed: the
// options of every call that opens one. Signing and verifying are in signing.h.
//
// A signature is one file, a Sigstore bundle as OpenSSF model-signing writes
// it: docs/signing.md.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/fields.h"

namespace haulway {

// Which files of a signed model are compared with the signature.
enum class SignatureScope : uint8_t {
  kAuto,  // As usual for the call.
  kAll,   // All files of the model, also those that are not tensors.
  kRead,  // The files that are read; of the others, their names.
};
inline constexpr std::string_view kSignatureScopeWords[] = {"auto", "all",
                                                            "read"};
constexpr std::span<const std::string_view> WordsOf(SignatureScope) {
  return kSignatureScopeWords;
}

// A verifier is one of: a public key; certificates; an identity and its issuer
// with a trusted root. PEM and JSON are paths, or the text itself if it begins
// with "-----BEGIN" or "{".
struct SignatureOptions {
  std::string signature;
  std::string public_key;
  std::vector<std::string> certificate_chain;
  std::string identity;
  std::string issuer;
  std::string trusted_root;
  std::string at;
  bool ignore_unsigned_files = false;
  std::vector<std::string> ignore_paths;
  bool ignore_git_paths = true;
  bool allow_symlinks = false;
  SignatureScope signature_scope = SignatureScope::kAuto;
  bool require_signature = false;

  bool has_verifier() const {
    return !public_key.empty() || !certificate_chain.empty() ||
           !identity.empty() || !issuer.empty() || !trusted_root.empty();
  }
  // Returns whether anything asks for a signature.
  bool wanted() const {
    return require_signature || !signature.empty() || has_verifier();
  }
};

inline constexpr FieldTable kSignatureOptionFields{

    Field("signature", &SignatureOptions::signature,
          "signature of the model, a path or URL; by default model.sig in the "
          "model's folder, or FILE.sig beside a file; see docs/signing.md",
          {.spelling = Spelling::kPath, .value_name = "FILE"}),
    Field("public_key", &SignatureOptions::public_key,
          "PEM file with the public key of the signer",
          {.spelling = Spelling::kPath, .value_name = "PEM"}),
    Field("certificate_chain", &SignatureOptions::certificate_chain,
          "PEM file with certificates of the authorities that may vouch for "
          "the signer",
          {.spelling = Spelling::kPath, .value_name = "PEM"}),
    Field("identity", &SignatureOptions::identity,
          "identity of the signer, such as an email address, in a certificate "
          "of Sigstore",
          {.value_name = "NAME"}),
    Field("issuer", &SignatureOptions::issuer,
          "URL of the service that vouched for the identity",
          {.value_name = "URL"}),
    Field("trusted_root", &SignatureOptions::trusted_root,
          "JSON file with the keys and certificates of a Sigstore instance",
          {.spelling = Spelling::kPath, .value_name = "JSON"}),
    Field("at", &SignatureOptions::at,
          "check the certificates at this time too: now, or a time such as "
          "2026-11-28T12:00:00Z",
          {.value_name = "TIME"}),
    Field("ignore_unsigned_files", &SignatureOptions::ignore_unsigned_files,
          "accept files in the model that the signature does not list"),
    Field("ignore_paths", &SignatureOptions::ignore_paths,
          "path in the model to leave out, with all below it",
          {.spelling = Spelling::kPath, .value_name = "PATH"}),
    Field("ignore_git_paths", &SignatureOptions::ignore_git_paths,
          "leave out .git, .gitattributes, .github and .gitignore at the root "
          "of the model",
          {.flag = "--no-ignore-git-paths",
           .off_meaning = "compare .git, .gitattributes, .github and "
                          ".gitignore at the root of the model too"}),
    Field("allow_symlinks", &SignatureOptions::allow_symlinks,
          "follow symbolic links to files"),
    Field("signature_scope", &SignatureOptions::signature_scope,
          "which files are compared with the signature: all, or those that "
          "are read; auto: all for whole loads"),
    Field("require_signature", &SignatureOptions::require_signature,
          "refuse models without a signature that verifies", {.flag = "-"}),
};
constexpr const auto& FieldsOf(const SignatureOptions&) {
  return kSignatureOptionFields;
}

}  // namespace haulway
