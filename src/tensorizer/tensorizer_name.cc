#include "tensorizer/tensorizer_name.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <system_error>

#include "base/text.h"

namespace haulway::tensorizer {

namespace {

Status WrongName(std::string_view what, std::string_view name) {
  return Status(Code::kCorrupt, fmt::format("name {} {}", Quote(name), what));
}

void AppendUtf8(std::string* out, uint32_t code) {
  const auto add = [&](uint32_t byte) { *out += static_cast<char>(byte); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
  }
  add(0x80 | (code & 0x3F));
}

// A PathParser parses a JSON array of strings and non-negative integers.
class PathParser {
 public:
  explicit PathParser(std::string_view text) : text_(text) {}

  // Returns nullopt for any other text.
  std::optional<Path> Parse(uint32_t max_steps) {
    Path path;
    if (!Take('[')) return std::nullopt;
    do {
      Spaces();
      PathStep step;
      const bool read = Peek() == '"' ? Key(&step.key) : Position(&step);
      if (!read || path.size() >= max_steps) return std::nullopt;
      path.push_back(std::move(step));
      Spaces();
    } while (Take(','));
    if (!Take(']') || at_ != text_.size()) return std::nullopt;
    return path;
  }

 private:
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(char c) {
    if (Peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }
  void Spaces() {
    while (Peek() == ' ' || Peek() == '\t') ++at_;
  }

  bool Position(PathStep* step) {
    step->is_position = true;
    const size_t begin = at_;
    while (Peek() >= '0' && Peek() <= '9') ++at_;
    const std::string_view digits = text_.substr(begin, at_ - begin);
    if (digits.empty() || (digits.size() > 1 && digits[0] == '0')) return false;
    int64_t number = 0;
    const auto [stop, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), number);
    step->position = static_cast<uint64_t>(number);
    return error == std::errc();
  }

  bool Key(std::string* key) {
    ++at_;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return IsUtf8(*key);
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        *key += c;
      } else if (!Escaped(key)) {
        return false;
      }
    }
    return false;
  }

  bool Escaped(std::string* key) {
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kMeaning = "\"\\/\b\f\n\r\t";
    const char c = Peek();
    ++at_;
    if (const size_t i = kLetters.find(c); i != kLetters.npos && c != '\0') {
      *key += kMeaning[i];
      return true;
    }
    uint32_t code = 0;
    if (c != 'u' || !Hex(&code)) return false;
    if (code >= 0xD800 && code < 0xDC00) {
      uint32_t low = 0;
      if (!Take('\\') || !Take('u') || !Hex(&low)) return false;
      if (low < 0xDC00 || low >= 0xE000) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      return false;
    }
    AppendUtf8(key, code);
    return true;
  }

  bool Hex(uint32_t* code) {
    if (text_.size() - at_ < 4) return false;
    const char* begin = text_.data() + at_;
    at_ += 4;
    const auto [stop, error] = std::from_chars(begin, begin + 4, *code, 16);
    return error == std::errc() && stop == begin + 4;
  }

  const std::string_view text_;
  size_t at_ = 0;
};

// Returns the code point at the start of well-formed UTF-8 of `length` bytes.
uint32_t CodePoint(std::string_view text, size_t length) {
  const auto byte = [&](size_t i) -> uint32_t {
    return static_cast<unsigned char>(text[i]);
  };
  if (length == 1) return byte(0);
  uint32_t code = byte(0) & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) code = code << 6 | (byte(i) & 0x3F);
  return code;
}

void AppendJson(std::string* out, std::string_view key) {
  constexpr std::string_view kLetters = "\"\\bfnrt";
  constexpr std::string_view kMeaning = "\"\\\b\f\n\r\t";
  *out += '"';
  while (!key.empty()) {
    const size_t length = Utf8SequenceLength(key);
    const uint32_t code = CodePoint(key, length);
    key.remove_prefix(length);
    const size_t i =
        code < 0x80 ? kMeaning.find(static_cast<char>(code)) : kMeaning.npos;
    if (i != kMeaning.npos) {
      *out += '\\';
      *out += kLetters[i];
    } else if (code >= 0x20 && code < 0x7F) {
      *out += static_cast<char>(code);
    } else if (code < 0x10000) {
      // DEL is the only ASCII control character that is not escaped.
      if (code == 0x7F) {
        *out += '\x7F';
      } else {
        *out += fmt::format("\\u{:04x}", code);
      }
    } else {
      *out += fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (code >> 10),
                          0xDC00 + (code & 0x3FF));
    }
  }
  *out += '"';
}

}  // namespace

Result<Path> ParseName(std::string_view name, uint32_t max_steps) {
  if (name.empty()) return Status(Code::kCorrupt, "name is empty");
  if (!IsStructured(name)) {
    if (!IsUtf8(name)) return WrongName("is not UTF-8", name);
    return Path{{.key = std::string(name)}};
  }
  auto path = PathParser(name.substr(1)).Parse(max_steps);
  if (!path.has_value()) {
    return WrongName("is not a list of strings and positions", name);
  }
  if (path->size() == 1 && !(*path)[0].is_position && (*path)[0].key.empty()) {
    return Status(Code::kCorrupt, "name is empty");
  }
  return std::move(*path);
}

Result<std::string> EncodeName(const Path& path) {
  const auto wrong = [](std::string_view what) {
    return Status(Code::kInvalidArgument,
                  fmt::format("name of a tensor {}", what));
  };
  if (path.empty()) return wrong("has no part");
  for (const PathStep& step : path) {
    if (!IsUtf8(step.key)) return wrong("is not UTF-8");
  }
  std::string name;
  if (path.size() == 1 && !path[0].is_position) {
    name = path[0].key;
    if (name.empty()) return wrong("is empty");
    if (IsStructured(name)) return wrong("starts with byte 0x1E");
  } else {
    name = {kStructuredMark, '['};
    for (const PathStep& step : path) {
      if (name.size() > 2) name += ',';
      if (step.is_position) {
        name += fmt::format("{}", step.position);
      } else {
        AppendJson(&name, step.key);
      }
    }
    name += ']';
  }
  if (name.size() > kMaxNameBytes) {
    return Status(Code::kLimit,
                  fmt::format("name of a tensor has {} bytes: expected at "
                              "most {}",
                              name.size(), kMaxNameBytes));
  }
  return name;
}

}  // namespace haulway::tensorizer
