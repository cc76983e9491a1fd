// Reads JSON that others wrote, strictly: UTF-8, no key twice in an object, no
// text after the root, limited nesting and sizes.

#pragma once

#include <simdjson.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "haulway/status.h"

namespace haulway::signing {

using JsonValue = simdjson::ondemand::value;

// Nesting of objects and arrays.
inline constexpr int kMostJsonDepth = 64;
inline constexpr size_t kMostJsonKeys = 100'000;  // In one object.

// Called with each key of an object, and its value, which it must read
// completely: with the functions below, or SkipJson(). `depth` is that of the
// value.
using JsonField =
    std::function<Status(std::string_view key, JsonValue& value, int depth)>;
using JsonItem = std::function<Status(JsonValue& value, int depth)>;

// Parses `text`, whose root must be an object, and calls `field` for each key.
// `what` names the text in messages: "bundle". Fails with kCorrupt for text
// that is no such JSON, with kLimit beyond the limits above, and as `field`
// does.
Status ReadJson(std::string_view text, std::string_view what,
                const JsonField& field);

// Read one value. Each fails with kCorrupt if the value is of another type;
// `what` names the value in messages.
Status ReadJsonObject(JsonValue& value, std::string_view what, int depth,
                      const JsonField& field);
Status ReadJsonArray(JsonValue& value, std::string_view what, int depth,
                     const JsonItem& item);
Result<std::string> ReadJsonText(JsonValue& value, std::string_view what);
Result<bool> ReadJsonFlag(JsonValue& value, std::string_view what);
// Takes a whole number, also one that is written as a fraction (1000.0) or, as
// protobuf does with large ones, as a string.
Result<uint64_t> ReadJsonNumber(JsonValue& value, std::string_view what);
// Takes a string of Base64.
Result<std::string> ReadJsonBase64(JsonValue& value, std::string_view what);
// Reads a value of any type, and checks it.
Status SkipJson(JsonValue& value, std::string_view what, int depth);

// Returns the error for a key that `what` may not have.
Status UnknownJsonKey(std::string_view what, std::string_view key);

// Decodes Base64 (RFC 4648), of the standard or the URL-safe alphabet, with or
// without padding. Fails with kCorrupt for anything else.
Result<std::string> DecodeBase64(std::string_view text, std::string_view what);

// Decodes hexadecimal digits of either case. Fails with kCorrupt unless they
// are `bytes` bytes.
Result<std::string> DecodeHex(std::string_view text, size_t bytes,
                              std::string_view what);

}  // namespace haulway::signing
