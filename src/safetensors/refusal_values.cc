#include "safetensors/refusal_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace haulway::safetensors {

namespace {

bool IsField(std::string_view key) {
  return std::ranges::find(kFields, key) != kFields.end();
}

// Returns the shortest decimal that equals `value`: without an exponent for up
// to sixteen digits before the point or five zeros after it.
std::string Decimal(double value) {
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(),
                                 std::abs(value), std::chars_format::scientific)
                       .ptr;
  const std::string_view text(buffer.data(), end - buffer.data());
  const size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 1) digits += text.substr(2, e - 2);
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  const int length = static_cast<int>(digits.size());
  const int point = exponent + 1;  // Number of digits before the point.
  std::string out = std::signbit(value) ? "-" : "";
  if (value == 0) return out + "0.0";
  if (length <= point && point <= 16) {
    return out + digits + std::string(point - length, '0') + ".0";
  }
  if (0 < point && point <= 16) {
    return out + digits.substr(0, point) + "." + digits.substr(point);
  }
  if (-5 < point && point <= 0) {
    return out + "0." + std::string(-point, '0') + digits;
  }
  out += digits[0];
  if (length > 1) out += "." + digits.substr(1);
  return out + fmt::format("e{:+}", exponent);
}

// Returns the text as a quoted string with escapes, as Rust's Debug format
// writes it.
std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\0':
        out += "\\0";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          out += fmt::format("\\u{{{:x}}}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

}  // namespace

std::string Found(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "null";
    case Node::Kind::kBool:
      return node.truth ? "boolean `true`" : "boolean `false`";
    case Node::Kind::kUnsigned:
      return fmt::format("integer `{}`", node.number);
    case Node::Kind::kSigned:
      return fmt::format("integer `{}`", node.negative);
    case Node::Kind::kFloat:
      return fmt::format("floating point `{}`", Decimal(node.real));
    case Node::Kind::kText:
      return "string " + Quoted(node.text);
    case Node::Kind::kList:
      return "sequence";
    case Node::Kind::kMap:
      return "map";
  }
  return "";
}

void Node::Add(Node item) {
  const bool is_odd = item.kind != Kind::kUnsigned;
  if (!is_odd && !has_odd && product.has_value()) {
    uint64_t more = 0;
    const bool overflows = __builtin_mul_overflow(*product, item.number, &more);
    product = overflows ? std::nullopt : std::optional(more);
  }
  if (count++ < kFields.size() || (is_odd && !has_odd)) {
    items.push_back(std::move(item));
  }
  has_odd = has_odd || is_odd;
}

void Node::Add(std::string key, Node value) {
  const bool is_kept = IsField(key) && known <= kFields.size();
  if (is_kept) ++known;
  if (count++ == 0 || is_kept) {
    fields.push_back({std::move(key), std::move(value)});
  }
}

std::string WrongType(const Node& node, std::string_view expected) {
  return fmt::format("invalid type: {}, expected {}", Found(node), expected);
}

void AppendUtf8(uint32_t code, std::string* out) {
  const auto push = [&](uint32_t byte) {
    out->push_back(static_cast<char>(byte));
  };
  if (code < 0x80) return push(code);
  if (code < 0x800) {
    push(0xc0 | code >> 6);
  } else if (code < 0x10000) {
    push(0xe0 | code >> 12);
    push(0x80 | (code >> 6 & 0x3f));
  } else {
    push(0xf0 | code >> 18);
    push(0x80 | (code >> 12 & 0x3f));
    push(0x80 | (code >> 6 & 0x3f));
  }
  push(0x80 | (code & 0x3f));
}

std::optional<std::string> Utf8Refusal(std::string_view text) {
  const auto byte = [&](size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : -1;
  };
  for (size_t at = 0; at < text.size();) {
    const int first = byte(at);
    if (first < 0x80) {
      ++at;
      continue;
    }
    int more = 0, low = 0x80, high = 0xbf;
    if (first >= 0xc2 && first <= 0xdf) {
      more = 1;
    } else if (first >= 0xe0 && first <= 0xef) {
      more = 2;
      if (first == 0xe0) low = 0xa0;
      if (first == 0xed) high = 0x9f;
    } else if (first >= 0xf0 && first <= 0xf4) {
      more = 3;
      if (first == 0xf0) low = 0x90;
      if (first == 0xf4) high = 0x8f;
    }
    const auto wrong = [&](int bytes) {
      return fmt::format("invalid utf-8 sequence of {} bytes from index {}",
                         bytes, at);
    };
    if (more == 0) return wrong(1);
    for (int i = 1; i <= more; ++i) {
      const int next = byte(at + i);
      if (next == -1) {
        return fmt::format("incomplete utf-8 byte sequence from index {}", at);
      }
      if (next < low || next > high) return wrong(i);
      low = 0x80;
      high = 0xbf;
    }
    at += more + 1;
  }
  return std::nullopt;
}

}  // namespace haulway::safetensors
