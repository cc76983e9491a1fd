// Design: simdjson's parser on demand, because a tree of 64 MiB of JSON takes
// gigabytes. It reads what it is asked for; so every value is read, also those
// that nobody needs, or faults behind them would go unseen. It does not know
// keys that occur twice: each object keeps a set of its own, which limits the
// number of keys. Alternatives not taken: DOM of simdjson, for its memory; a
// parser of our own.

#include "signing/json_reader.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <system_error>
#include <utility>

#include "base/ascii.h"
#include "base/text.h"

namespace haulway::signing {

namespace {

using simdjson::ondemand::json_type;

Status NotJson(std::string_view what, simdjson::error_code error) {
  if (error == simdjson::MEMALLOC) {
    return Status(Code::kLimit, fmt::format("no memory to parse the {}", what));
  }
  return Status(Code::kCorrupt,
                fmt::format("the {} is not valid JSON: {}", what,
                            simdjson::error_message(error)));
}

Status Expected(std::string_view what, std::string_view expected) {
  return Status(Code::kCorrupt, fmt::format("{}: expected {}", what, expected));
}

Status CheckDepth(std::string_view what, int depth) {
  if (depth <= kMostJsonDepth) return Status();
  return Status(Code::kLimit,
                fmt::format("{} is nested more deeply than {} levels", what,
                            kMostJsonDepth));
}

// Calls `field` for each key of an object of the parser.
template <class Object>
Status ReadFields(Object& object, std::string_view what, int depth,
                  const JsonField& field) {
  std::set<std::string, std::less<>> keys;
  for (auto entry : object) {
    simdjson::ondemand::field one;
    if (auto error = std::move(entry).get(one)) return NotJson(what, error);
    std::string_view key;
    if (auto error = one.unescaped_key().get(key)) return NotJson(what, error);
    const auto [at, is_new] = keys.emplace(key);
    if (!is_new) {
      return Status(Code::kCorrupt,
                    fmt::format("{} has the key {} twice", what, Quote(key)));
    }
    if (keys.size() > kMostJsonKeys) {
      return Status(Code::kLimit, fmt::format("{} has more than {} keys", what,
                                              kMostJsonKeys));
    }
    HAULWAY_TRY(field(*at, one.value(), depth + 1));
  }
  return Status();
}

// A number of any kind, as text.
Status CheckNumber(JsonValue& value, std::string_view what) {
  double ignored = 0;
  if (auto error = value.get_double().get(ignored)) return NotJson(what, error);
  return Status();
}

constexpr std::array<int8_t, 256> MakeDigits() {
  std::array<int8_t, 256> digits{};
  digits.fill(-1);
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kAlphabet.size(); ++i) {
    digits[static_cast<uint8_t>(kAlphabet[i])] = static_cast<int8_t>(i);
  }
  digits['-'] = 62;
  digits['_'] = 63;
  return digits;
}
constexpr std::array<int8_t, 256> kDigits = MakeDigits();

}  // namespace

Status ReadJson(std::string_view text, std::string_view what,
                const JsonField& field) {
  simdjson::ondemand::parser parser;
  const simdjson::padded_string padded(text);
  simdjson::ondemand::document document;
  if (auto error = parser.iterate(padded).get(document)) {
    return NotJson(what, error);
  }
  simdjson::ondemand::object root;
  if (auto error = document.get_object().get(root)) {
    if (error == simdjson::INCORRECT_TYPE) {
      return Expected(fmt::format("the {}", what), "an object");
    }
    return NotJson(what, error);
  }
  HAULWAY_TRY(ReadFields(root, fmt::format("the {}", what), 0, field));
  const char* rest = nullptr;
  if (!document.current_location().get(rest)) {
    return Status(Code::kCorrupt,
                  fmt::format("the {} goes on after its object", what));
  }
  return Status();
}

Status ReadJsonObject(JsonValue& value, std::string_view what, int depth,
                      const JsonField& field) {
  HAULWAY_TRY(CheckDepth(what, depth));
  simdjson::ondemand::object object;
  if (value.get_object().get(object)) return Expected(what, "an object");
  return ReadFields(object, what, depth, field);
}

Status ReadJsonArray(JsonValue& value, std::string_view what, int depth,
                     const JsonItem& item) {
  HAULWAY_TRY(CheckDepth(what, depth));
  simdjson::ondemand::array array;
  if (value.get_array().get(array)) return Expected(what, "a list");
  for (auto entry : array) {
    JsonValue one;
    if (auto error = std::move(entry).get(one)) return NotJson(what, error);
    HAULWAY_TRY(item(one, depth + 1));
  }
  return Status();
}

Result<std::string> ReadJsonText(JsonValue& value, std::string_view what) {
  std::string_view text;
  if (value.get_string().get(text)) return Expected(what, "a string");
  return std::string(text);
}

Result<bool> ReadJsonFlag(JsonValue& value, std::string_view what) {
  bool flag = false;
  if (value.get_bool().get(flag)) return Expected(what, "true or false");
  return flag;
}

Result<uint64_t> ReadJsonNumber(JsonValue& value, std::string_view what) {
  json_type type;
  if (value.type().get(type)) return Expected(what, "a number");
  if (type == json_type::string) {
    HAULWAY_ASSIGN(const std::string text, ReadJsonText(value, what));
    uint64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (text.empty() || error != std::errc() || rest != end) {
      return Expected(what, "a number of 0 or more");
    }
    return number;
  }
  double number = 0;
  constexpr double kMostExact = 9007199254740992.0;  // 2^53.
  if (type != json_type::number || value.get_double().get(number) ||
      number < 0 || number > kMostExact || number != std::floor(number)) {
    return Expected(what, "a whole number of 0 or more");
  }
  return static_cast<uint64_t>(number);
}

Result<std::string> ReadJsonBase64(JsonValue& value, std::string_view what) {
  std::string_view text;
  if (value.get_string().get(text)) return Expected(what, "a string");
  return DecodeBase64(text, what);
}

Status SkipJson(JsonValue& value, std::string_view what, int depth) {
  HAULWAY_TRY(CheckDepth(what, depth));
  json_type type;
  if (auto error = value.type().get(type)) return NotJson(what, error);
  switch (type) {
    case json_type::object:
      return ReadJsonObject(
          value, what, depth,
          [&](std::string_view, JsonValue& inner, int inner_depth) {
            return SkipJson(inner, what, inner_depth);
          });
    case json_type::array:
      return ReadJsonArray(value, what, depth,
                           [&](JsonValue& inner, int inner_depth) {
                             return SkipJson(inner, what, inner_depth);
                           });
    case json_type::string:
      return ReadJsonText(value, what).status();
    case json_type::number:
      return CheckNumber(value, what);
    case json_type::boolean:
      return ReadJsonFlag(value, what).status();
    case json_type::null: {
      bool is_null = false;
      if (value.is_null().get(is_null) || !is_null) {
        return Expected(what, "null");
      }
      return Status();
    }
  }
  return Expected(what, "a value");
}

Status UnknownJsonKey(std::string_view what, std::string_view key) {
  return Status(Code::kCorrupt,
                fmt::format("{} has the unknown key {}", what, Quote(key)));
}

Result<std::string> DecodeBase64(std::string_view text, std::string_view what) {
  const auto wrong = [&] {
    return Status(Code::kCorrupt, fmt::format("{} is not Base64", what));
  };
  size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  const size_t tail = text.size() % 4;
  if (tail == 1 || (padding != 0 && padding != 4 - tail)) return wrong();
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const int digit = kDigits[static_cast<uint8_t>(c)];
    if (digit < 0) return wrong();
    bits = bits << 6 | static_cast<uint32_t>(digit);
    held += 6;
    if (held >= 8) {
      held -= 8;
      bytes += static_cast<char>(bits >> held & 0xFF);
    }
  }
  // What is left of the last digit is zero.
  if ((bits & ((1U << held) - 1)) != 0) return wrong();
  return bytes;
}

Result<std::string> DecodeHex(std::string_view text, size_t bytes,
                              std::string_view what) {
  std::string out;
  bool is_right = text.size() == 2 * bytes;
  for (size_t i = 0; is_right && i < text.size(); i += 2) {
    const auto high = HexDigit(text[i]), low = HexDigit(text[i + 1]);
    is_right = high.has_value() && low.has_value();
    if (is_right) out += static_cast<char>(*high * 16 + *low);
  }
  if (is_right) return out;
  return Status(Code::kCorrupt,
                fmt::format("{}: expected {} hexadecimal digits, found {}",
                            what, 2 * bytes, Quote(text)));
}

}  // namespace haulway::signing
