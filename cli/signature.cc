#include "signature.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "field_options.h"

namespace haulway::cli {

namespace {

// What the environment says of one field.
void TakeVariable(const char* text, std::string* value) {
  if (value->empty()) *value = text;
}
void TakeVariable(const char* text, std::vector<std::string>* value) {
  if (!value->empty()) return;
  // A list of paths, or the certificates themselves.
  std::string_view rest = text;
  if (rest.starts_with("-----BEGIN")) {
    value->emplace_back(rest);
    return;
  }
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (end > 0) value->emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}
std::string LowerCase(const char* text) {
  std::string word = text;
  for (char& c : word) c = static_cast<char>(std::tolower(c));
  return word;
}
bool IsYes(const char* text) {
  const std::string word = LowerCase(text);
  return word == "1" || word == "true" || word == "yes" || word == "on";
}
void TakeVariable(const char* text, bool* value) {
  if (IsYes(text)) *value = true;
}
// Requires a signature unless the word says clearly that none is required: a
// word that nobody knows must not switch a policy off.
void RequireSignature(const char* text, bool* value) {
  const std::string word = LowerCase(text);
  if (!word.empty() && word != "0" && word != "false" && word != "no" &&
      word != "off") {
    *value = true;
  }
}

// Refuses values that are empty, as those of variables that are not set: they
// would switch the check off.
void RefuseEmptyValues(CLI::App& app) {
  for (const char* name : {"--signature", "--public-key", "--certificate-chain",
                           "--identity", "--issuer", "--trusted-root"}) {
    app.get_option(name)->check([](const std::string& value) {
      return value.empty() ? std::string("expected a value, found ''")
                           : std::string();
    });
  }
}
void TakeVariable(const char* text, SignatureScope* value) {
  if (*value != SignatureScope::kAuto) return;
  // A word that nobody knows must not make the check smaller.
  *value = FromWord<SignatureScope>(text).value_or(SignatureScope::kAll);
}

std::string VariableOf(std::string_view field) {
  std::string name = "HAULWAY_LOAD_";
  for (const char c : field) {
    name += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return name;
}

// Which of the three kinds of verifiers a field belongs to; 0: none.
int KindOf(std::string_view field) {
  if (field == "public_key") return 1;
  if (field == "certificate_chain") return 2;
  if (field == "identity" || field == "issuer" || field == "trusted_root") {
    return 3;
  }
  return 0;
}

int KindOf(const SignatureOptions& options) {
  if (!options.public_key.empty()) return 1;
  if (!options.certificate_chain.empty()) return 2;
  return options.has_verifier() ? 3 : 0;
}

}  // namespace

void AddSignature(CLI::App& app) {
  AddFields(app, &Sources().signature);
  RefuseEmptyValues(app);
}

void AddSignature(CLI::App& app, SignatureOptions* options) {
  AddFields(app, options, {"signature_scope"});
  RefuseEmptyValues(app);
}

void TakeSignature() {
  SignatureOptions& asked = Sources().signature;
  MakeAbsolute(&asked.ignore_paths);
  const int given = KindOf(asked);
  ForEachField(asked, [&](const auto& field, auto& value) {
    const int kind = KindOf(field.name);
    // Another kind of verifier, nearer to the call, replaces those.
    if (kind != 0 && given != 0 && kind != given) return;
    const char* const text = std::getenv(VariableOf(field.name).c_str());
    if (text == nullptr) return;
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, bool>) {
      if (field.name == "require_signature") {
        return RequireSignature(text, &value);
      }
      if (field.name == "ignore_git_paths") {
        value = value && IsYes(text);
        return;
      }
    }
    TakeVariable(text, &value);
  });
}

void MakeAbsolute(std::vector<std::string>* paths) {
  for (std::string& path : *paths) {
    std::error_code error;
    const auto whole = std::filesystem::absolute(path, error);
    if (!error) path = whole.string();
  }
}

std::shared_ptr<SignedModel>& OpenedSigned() {
  static std::shared_ptr<SignedModel> model;
  return model;
}

Status CompareSigned(SignatureScope usual, int threads) {
  SignedModel* const model = OpenedSigned().get();
  if (model == nullptr) return Status();
  const SignatureScope asked = Sources().signature.signature_scope;
  const SignatureScope scope = asked == SignatureScope::kAuto ? usual : asked;
  if (usual == SignatureScope::kAuto) {
    model->KeepLast();
    if (scope != SignatureScope::kAll) return Status();
  }
  return model->Compare(scope, threads, &interrupted);
}

Result<IoMode> IoOfSigned(IoMode* io) {
  const IoMode asked = *io;
  if (!Sources().signature.wanted()) return IoMode::kMmap;
  if (asked == IoMode::kMmap) {
    return Status(Code::kInvalidArgument,
                  "a mapping of a signed file may change after it was "
                  "compared: expected another --io than mmap");
  }
  *io = IoMode::kAuto;
  const bool is_direct = asked == IoMode::kDirect || asked == IoMode::kUring;
  return is_direct ? asked : IoMode::kPread;
}

int FailSigned(const Options& options, const Status& status) {
  const int exit = Fail(options, status);
  return status.code() == Code::kInvalidArgument ? int{kUsage} : exit;
}

}  // namespace haulway::cli
