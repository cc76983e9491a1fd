#include "base/text.h"

#include <openssl/evp.h>

#include <cstdint>

namespace haulway {

namespace {

constexpr size_t kQuotedBytes = 64;
constexpr char kHexDigits[] = "0123456789abcdef";

void AppendHex(std::string* out, unsigned char byte) {
  *out += "\\x";
  *out += kHexDigits[byte >> 4];
  *out += kHexDigits[byte & 15];
}

// Returns whether `sequence` is C0, DEL, or C1 (U+0080 to U+009F, encoded C2 80
// to C2 9F): characters that a terminal may interpret.
bool IsControl(std::string_view sequence) {
  const auto first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return first < 0x20 || first == 0x7F;
  return sequence.size() == 2 && first == 0xC2 &&
         static_cast<unsigned char>(sequence[1]) < 0xA0;
}

void AppendEscaped(std::string* out, std::string_view text, char also) {
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    const std::string_view sequence = text.substr(0, length == 0 ? 1 : length);
    text.remove_prefix(sequence.size());
    if (length == 0 || IsControl(sequence)) {
      for (const char c : sequence) {
        AppendHex(out, static_cast<unsigned char>(c));
      }
      continue;
    }
    if (sequence[0] == '\\' || (also != 0 && sequence[0] == also)) {
      *out += '\\';
    }
    *out += sequence;
  }
}

}  // namespace

size_t Utf8SequenceLength(std::string_view text, bool surrogates) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) -> uint32_t {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const auto follows = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint32_t first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (!follows(1) || !follows(2)) return 0;
    const uint32_t code =
        (first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    if (code < 0x800) return 0;
    return code >= 0xD800 && code <= 0xDFFF && !surrogates ? 0 : 3;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (!follows(1) || !follows(2) || !follows(3)) return 0;
    const uint32_t code = (first & 0x07) << 18 | (byte(1) & 0x3F) << 12 |
                          (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    return code >= 0x10000 && code <= 0x10FFFF ? 4 : 0;
  }
  return 0;
}

bool IsUtf8(std::string_view text, bool surrogates) {
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text, surrogates);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string Quote(std::string_view text) {
  const bool cut = text.size() > kQuotedBytes;
  std::string_view shown = text.substr(0, kQuotedBytes);
  std::string out = "'";
  AppendEscaped(&out, shown, '\'');
  out += cut ? "'..." : "'";
  return out;
}

std::string Escape(std::string_view text, char also) {
  std::string out;
  out.reserve(text.size());
  AppendEscaped(&out, text, also);
  return out;
}

std::string Base64(std::string_view bytes) {
  std::string out;
  constexpr size_t kAtATime = size_t{3} << 20;  // EVP takes an int.
  for (size_t at = 0; at < bytes.size(); at += kAtATime) {
    const std::string_view piece = bytes.substr(at, kAtATime);
    const size_t before = out.size();
    out.resize(before + 4 * ((piece.size() + 2) / 3) + 1);
    const int size =
        ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data() + before),
                          reinterpret_cast<const unsigned char*>(piece.data()),
                          static_cast<int>(piece.size()));
    out.resize(before + static_cast<size_t>(size));
  }
  return out;
}

std::string QuotePath(std::string_view path) {
  return "'" + Escape(path, '\'') + "'";
}

std::string Hex(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    const auto value = std::to_integer<unsigned>(byte);
    text += kHexDigits[value >> 4];
    text += kHexDigits[value & 15];
  }
  return text;
}

}  // namespace haulway
