#include "pickle/pickle_text.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/ascii.h"
#include "base/text.h"

namespace haulway::pickle {

namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::optional<uint32_t> ParseHex(std::string_view text) {
  uint32_t value = 0;
  for (const char c : text) {
    const auto digit = HexDigit(c);
    if (!digit.has_value()) return std::nullopt;
    value = value << 4 | *digit;
  }
  return value;
}

void AppendUtf8(std::string* out, uint32_t code) {
  const auto add = [&](uint32_t byte) { *out += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6);
    add(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  }
}

// Returns the two's complement of a magnitude that is too large for int64_t.
Value BigInteger(const std::vector<uint32_t>& limbs, bool negative,
                 TreeArena& arena) {
  std::string bytes;
  uint32_t carry = 1;
  for (const uint32_t limb : limbs) {
    for (int shift = 0; shift < 32; shift += 8) {
      uint32_t byte = limb >> shift & 0xFF;
      if (negative) {
        byte = (~byte & 0xFF) + carry;
        carry = byte >> 8;
      }
      bytes += static_cast<char>(byte);
    }
  }
  bytes += static_cast<char>(negative ? 0xFF : 0);
  return DecodeInteger(arena.Copy(bytes));
}

}  // namespace

std::optional<Value> ParseDecimal(std::string_view text, TreeArena& arena) {
  int64_t small = 0;
  const char* end = text.data() + text.size();
  const bool negative = text.starts_with('-');
  std::string_view digits = text.substr(negative ? 1 : 0);
  if (digits.empty() || digits.size() > kMaxDecimalDigits) return std::nullopt;
  if (digits.size() > 1 && digits[0] == '0') return std::nullopt;
  const auto [stop, error] = std::from_chars(text.data(), end, small);
  if (error == std::errc() && stop == end) return Value::Int(small);

  std::vector<uint32_t> limbs;
  for (const char c : digits) {
    if (!IsDigit(c)) return std::nullopt;
  }
  while (!digits.empty()) {
    const size_t count = (digits.size() - 1) % 9 + 1;
    uint64_t carry = 0;
    uint32_t scale = 1;
    for (const char c : digits.substr(0, count)) {
      carry = carry * 10 + static_cast<uint64_t>(c - '0');
      scale *= 10;
    }
    for (uint32_t& limb : limbs) {
      carry += static_cast<uint64_t>(limb) * scale;
      limb = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    if (carry != 0) limbs.push_back(static_cast<uint32_t>(carry));
    digits.remove_prefix(count);
  }
  return BigInteger(limbs, negative, arena);
}

Value DecodeInteger(std::string_view bytes) {
  const auto sign_of = [](char c) { return (c & 0x80) != 0; };
  while (bytes.size() > 1) {
    const char last = bytes.back();
    if ((last != 0 && last != '\xFF') ||
        sign_of(last) != sign_of(bytes[bytes.size() - 2])) {
      break;
    }
    bytes.remove_suffix(1);
  }
  if (bytes.size() > 8) return Value::Text(Kind::kBigInt, bytes);
  uint64_t value = 0;
  if (!bytes.empty() && sign_of(bytes.back())) value = ~uint64_t{0};
  for (size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return Value::Int(static_cast<int64_t>(value));
}

std::optional<double> ParseFloat(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  if (text.find('(') != text.npos) return std::nullopt;  // Reject nan(payload).
  return value;
}

std::optional<std::string_view> UnquoteString(std::string_view text,
                                              TreeArena& arena) {
  if (text.size() < 2 || (text[0] != '\'' && text[0] != '"') ||
      text.back() != text[0]) {
    return std::nullopt;
  }
  text = text.substr(1, text.size() - 2);
  if (text.find('\\') == text.npos) return text;

  constexpr std::string_view kNames = "\\'\"abfnrtv";
  constexpr std::string_view kBytes = "\\'\"\a\b\f\n\r\t\v";
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    if (++i == text.size()) return std::nullopt;
    if (const size_t known = kNames.find(text[i]); known != kNames.npos) {
      out += kBytes[known];
    } else if (text[i] == 'x') {
      if (text.size() - i < 3) return std::nullopt;
      const auto byte = ParseHex(text.substr(i + 1, 2));
      if (!byte) return std::nullopt;
      out += static_cast<char>(*byte);
      i += 2;
    } else if (text[i] >= '0' && text[i] <= '7') {
      unsigned byte = 0;
      const size_t first = i;
      while (i < text.size() && i < first + 3 && text[i] >= '0' &&
             text[i] <= '7') {
        byte = byte * 8 + static_cast<unsigned>(text[i++] - '0');
      }
      --i;
      out += static_cast<char>(byte);
    } else {
      out += '\\';
      out += text[i];
    }
  }
  return arena.Copy(out);
}

std::optional<std::string_view> DecodeRawUnicodeEscape(std::string_view text,
                                                       TreeArena& arena) {
  if (IsAscii(text) && text.find('\\') == text.npos) return text;
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '\\' && i + 1 < text.size();
    if (!escape) {
      AppendUtf8(&out, static_cast<unsigned char>(text[i]));
      continue;
    }
    const char next = text[++i];
    if (next != 'u' && next != 'U') {
      out += '\\';
      AppendUtf8(&out, static_cast<unsigned char>(next));
      continue;
    }
    const size_t digits = next == 'u' ? 4 : 8;
    if (text.size() - i - 1 < digits) return std::nullopt;
    const auto code = ParseHex(text.substr(i + 1, digits));
    if (!code || *code > 0x10FFFF) return std::nullopt;
    AppendUtf8(&out, *code);
    i += digits;
  }
  return arena.Copy(out);
}

std::optional<std::string_view> EncodeLatin1(std::string_view text,
                                             TreeArena& arena) {
  if (IsAscii(text)) return text;
  auto* out = static_cast<char*>(arena.Allocate(text.size()));
  size_t size = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      out[size++] = text[i];
      continue;
    }
    // U+0080 to U+00FF are C2 or C3 and one more byte.
    if ((byte != 0xC2 && byte != 0xC3) || i + 1 == text.size()) {
      return std::nullopt;
    }
    const auto low = static_cast<unsigned char>(text[++i]);
    out[size++] = static_cast<char>((byte & 3) << 6 | (low & 0x3F));
  }
  return std::string_view(out, size);
}

bool IsAscii(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  const char* data = text.data();
  size_t left = text.size();
  uint64_t word = 0;
  for (; left >= 8; left -= 8, data += 8) {
    std::memcpy(&word, data, 8);
    if ((word & kHighBits) != 0) return false;
  }
  for (; left > 0; --left, ++data) {
    if ((*data & 0x80) != 0) return false;
  }
  return true;
}

bool IsPickleText(std::string_view text) {
  return IsAscii(text) || IsUtf8(text, /*surrogates=*/true);
}

}  // namespace haulway::pickle
