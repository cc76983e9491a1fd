// Reads keys from files and the environment. They are never on the command
// line, which every user of the machine can read.

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string>

#include "command.h"

namespace haulway::cli {
namespace {

// Limit for a file with a secret: the file may be a device that never ends.
constexpr size_t kLongestSecret = 64 << 10;

int Digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

void Trim(std::string* text) {
  while (!text->empty() && (text->back() == '\n' || text->back() == '\r')) {
    text->pop_back();
  }
}

// Returns a key from 32 raw bytes or 64 hexadecimal digits.
Result<Secret> KeyOf(std::string text, const std::string& place) {
  if (text.size() == kKeyBytes) return Secret(std::string_view(text));
  Trim(&text);
  std::string bytes;
  for (size_t i = 0; text.size() == 2 * kKeyBytes && i < text.size(); i += 2) {
    const int high = Digit(text[i]);
    const int low = Digit(text[i + 1]);
    if (high < 0 || low < 0) break;
    bytes += static_cast<char>(high * 16 + low);
  }
  if (bytes.size() == kKeyBytes) return Secret(std::string_view(bytes));
  return Status(Code::kInvalidArgument,
                "key is neither 32 bytes nor 64 hexadecimal digits")
      .In(place);
}

Result<std::string> Content(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kLongestSecret + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.good() && !file.eof()) {
    return Status::FromErrno(errno != 0 ? errno : EIO, "cannot read the key")
        .In(path);
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kLongestSecret) {
    return Status(Code::kInvalidArgument,
                  fmt::format("file is too long for a key or passphrase: "
                              "expected at most {} bytes",
                              kLongestSecret))
        .In(path);
  }
  return text;
}

}  // namespace

Status ReadKey(const KeyOptions& options, EncryptionKey* key) {
  if (!options.keyfile.empty()) {
    HAULWAY_ASSIGN(std::string text, Content(options.keyfile));
    HAULWAY_ASSIGN(key->key, KeyOf(std::move(text), options.keyfile));
  } else if (!options.passphrase_file.empty()) {
    HAULWAY_ASSIGN(std::string text, Content(options.passphrase_file));
    Trim(&text);
    if (text.empty()) {
      return Status(Code::kInvalidArgument, "passphrase is empty")
          .In(options.passphrase_file);
    }
    key->passphrase = Secret(std::string_view(text));
  } else if (!options.key_env.empty()) {
    const char* text = std::getenv(options.key_env.c_str());
    if (text == nullptr) {
      return Status(Code::kInvalidArgument,
                    fmt::format("no environment variable {}", options.key_env));
    }
    HAULWAY_ASSIGN(key->key, KeyOf(text, options.key_env));
  }
  return Status();
}

}  // namespace haulway::cli
