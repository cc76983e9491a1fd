#include "s3/xml.h"

#include <charconv>
#include <cstddef>
#include <cstdint>

namespace haulway::s3 {

namespace {

// Returns the content of the first element `name` from `at` on, and moves `at`
// behind it.
std::optional<std::string_view> Next(std::string_view xml,
                                     std::string_view name, size_t* at) {
  while (true) {
    const size_t open = xml.find('<', *at);
    if (open == xml.npos) return std::nullopt;
    *at = open + 1;
    if (!xml.substr(*at).starts_with(name)) continue;
    const size_t after = *at + name.size();
    if (after >= xml.size() || (xml[after] != '>' && xml[after] != ' ' &&
                                xml[after] != '/' && xml[after] != '\n')) {
      continue;
    }
    const size_t end = xml.find('>', after);
    if (end == xml.npos) return std::nullopt;
    *at = end + 1;
    if (xml[end - 1] == '/') return std::string_view();
    std::string closing = "</";
    closing += name;
    closing += '>';
    const size_t close = xml.find(closing, *at);
    if (close == xml.npos) return std::nullopt;
    const std::string_view content = xml.substr(*at, close - *at);
    *at = close + closing.size();
    return content;
  }
}

void AppendUtf8(uint32_t code, std::string* out) {
  if (code < 0x80) {
    *out += static_cast<char>(code);
  } else if (code < 0x800) {
    *out += static_cast<char>(0xC0 | (code >> 6));
    *out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    *out += static_cast<char>(0xE0 | (code >> 12));
    *out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    *out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x110000) {
    *out += static_cast<char>(0xF0 | (code >> 18));
    *out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    *out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    *out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

// "&#1114111;", with up to two leading zeros.
constexpr size_t kLongestEntity = 12;

std::string Decode(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = text.front() == '&'
                           ? text.substr(0, kLongestEntity).find(';')
                           : text.npos;
    if (end == text.npos) {
      out += text.front();
      text.remove_prefix(1);
      continue;
    }
    const std::string_view name = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
    if (name == "amp") {
      out += '&';
    } else if (name == "lt") {
      out += '<';
    } else if (name == "gt") {
      out += '>';
    } else if (name == "quot") {
      out += '"';
    } else if (name == "apos") {
      out += '\'';
    } else if (name.starts_with('#')) {
      const bool is_hex = name.size() > 1 && name[1] == 'x';
      const std::string_view digits = name.substr(is_hex ? 2 : 1);
      uint32_t code = 0;
      std::from_chars(digits.data(), digits.data() + digits.size(), code,
                      is_hex ? 16 : 10);
      AppendUtf8(code, &out);
    }
  }
  return out;
}

}  // namespace

std::optional<std::string_view> XmlElement(std::string_view xml,
                                           std::string_view name) {
  size_t at = 0;
  return Next(xml, name, &at);
}

std::vector<std::string_view> XmlElements(std::string_view xml,
                                          std::string_view name) {
  std::vector<std::string_view> found;
  size_t at = 0;
  while (const auto one = Next(xml, name, &at)) found.push_back(*one);
  return found;
}

std::string XmlText(std::string_view xml, std::string_view name) {
  const auto found = XmlElement(xml, name);
  return found.has_value() ? Decode(*found) : std::string();
}

std::string XmlEscape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace haulway::s3
