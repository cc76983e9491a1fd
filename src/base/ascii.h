// ASCII letters, digits and blanks, independent of the locale: for names,
// headers and URLs.

#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace haulway {

constexpr char LowerCase(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
inline std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = LowerCase(c);
  return lower;
}

constexpr bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
// Letters, digits and the underscore.
constexpr bool IsWord(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         (c >= '0' && c <= '9');
}
// A byte of a word in which any character outside of ASCII may stand.
constexpr bool IsWordByte(char c) {
  return IsWord(c) || static_cast<unsigned char>(c) >= 0x80;
}

// Returns `text` without leading and trailing blanks.
constexpr std::string_view Trim(std::string_view text,
                                std::string_view blanks = " \t\r\n") {
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

// Parses all of `text` as a decimal number. Returns nullopt if `text` is not a
// number or the number is too large.
template <class Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

constexpr std::optional<unsigned> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

// Returns the byte that %XX at the start of `text` encodes, or nullopt.
constexpr std::optional<char> PercentCode(std::string_view text) {
  if (text.size() < 3 || text[0] != '%') return std::nullopt;
  const auto high = HexDigit(text[1]);
  const auto low = HexDigit(text[2]);
  if (!high.has_value() || !low.has_value()) return std::nullopt;
  return static_cast<char>(*high * 16 + *low);
}

// Decodes %XX. A percent sign without two hexadecimal digits stays as it is.
inline std::string PercentDecode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto code = PercentCode(text.substr(i));
    decoded += code.value_or(text[i]);
    if (code.has_value()) i += 2;
  }
  return decoded;
}

// Encodes everything but letters, digits and -._~ as %XX (RFC 3986,
// unreserved).
inline std::string UriEncode(std::string_view text, bool keep_slashes) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  encoded.reserve(text.size());
  for (const char c : text) {
    const char lower = LowerCase(c);
    const bool is_plain = (lower >= 'a' && lower <= 'z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '.' ||
                          c == '_' || c == '~' || (c == '/' && keep_slashes);
    if (is_plain) {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return encoded;
}

}  // namespace haulway
