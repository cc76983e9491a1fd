#include "arithmetic/json_fields.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "base/json_text.h"
#include "base/text.h"
#include "haulway/options.h"

namespace haulway::arithmetic {

namespace dom = simdjson::dom;

namespace {

constexpr uint64_t kMostBytes = 64 * kMiB;
constexpr size_t kMostDepth = 128;

}  // namespace

Result<std::string> ReadFileText(const ByteSource& file) {
  if (file.size() > kMostBytes) {
    return Status(Code::kLimit,
                  fmt::format("it has {} bytes: expected at most {}",
                              file.size(), kMostBytes))
        .Of(file.name());
  }
  std::string text(file.size(), '\0');
  HAULWAY_TRY(file.ReadAt(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<std::string> ReadBeside(const ByteSource& source,
                               std::string_view name) {
  auto file = source.OpenNeighbour(name);
  if (!file.ok()) {
    switch (file.status().code()) {
      case Code::kNotFound:
      case Code::kUnsupported:
      case Code::kInvalidArgument:
      case Code::kPermissionDenied:
        return std::string();
      default:
        return std::move(file).status().Of(name);
    }
  }
  return ReadFileText(**file);
}

Result<dom::object> JsonObject::Parse(std::string text) {
  ReplaceNumbers(&text);
  if (parser_.allocate(text.size(), kMostDepth)) {
    return Status(Code::kLimit, "no memory for the JSON");
  }
  dom::element root;
  dom::object object;
  const auto error = parser_.parse(text).get(root);
  if (error) {
    return Status(Code::kCorrupt, fmt::format("it is no JSON: {}",
                                              simdjson::error_message(error)));
  }
  if (root.get_object().get(object)) {
    return Status(Code::kCorrupt, "it is no JSON object");
  }
  return object;
}

Status WrongType(std::string_view key, std::string_view expected) {
  return Status(Code::kCorrupt,
                fmt::format("{} is not what it should be: expected {}",
                            Quote(key), expected));
}

Result<std::optional<dom::object>> ObjectAt(dom::object from,
                                            std::string_view key) {
  dom::element found;
  if (from[key].get(found) || found.is_null()) {
    return std::optional<dom::object>();
  }
  dom::object object;
  if (found.get_object().get(object)) return WrongType(key, "an object");
  return std::optional(object);
}

Status ReadText(dom::object from, std::string_view key, std::string* text) {
  dom::element found;
  if (from[key].get(found) || found.is_null()) return Status();
  std::string_view value;
  if (found.get_string().get(value)) return WrongType(key, "a string");
  *text = value;
  return Status();
}

Status ReadNumber(dom::object from, std::string_view key, uint64_t most,
                  uint64_t* number) {
  dom::element found;
  if (from[key].get(found) || found.is_null()) return Status();
  int64_t value = 0;
  if (found.get_int64().get(value)) return WrongType(key, "a number");
  if (value == -1) return Status();
  if (value < 1 || static_cast<uint64_t>(value) > most) {
    return WrongType(key, fmt::format("a number from 1 to {}", most));
  }
  *number = static_cast<uint64_t>(value);
  return Status();
}

Status ReadFlag(dom::object from, std::string_view key, bool* flag) {
  dom::element found;
  if (from[key].get(found) || found.is_null()) return Status();
  if (found.get_bool().get(*flag)) return WrongType(key, "true or false");
  return Status();
}

}  // namespace haulway::arithmetic
