// Reads the JSON files beside a checkpoint: their text, and the fields of their
// objects. A field that is not there, or null, leaves what it would set.

#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

// Returns the text of a file. Fails as reading does, and with kLimit for one of
// more than 64 MiB.
Result<std::string> ReadFileText(const ByteSource& file);
// Returns the text of a file beside `source`; empty if it is not there, or
// cannot be reached from such a source.
Result<std::string> ReadBeside(const ByteSource& source, std::string_view name);

// A JsonObject owns the memory of a parsed object.
class JsonObject {
 public:
  // Fails with kCorrupt for what is no JSON object.
  Result<simdjson::dom::object> Parse(std::string text);

 private:
  simdjson::dom::parser parser_;
};

// Each fails with kCorrupt for a value of another type.
Status WrongType(std::string_view key, std::string_view expected);
Result<std::optional<simdjson::dom::object>> ObjectAt(
    simdjson::dom::object from, std::string_view key);
Status ReadText(simdjson::dom::object from, std::string_view key,
                std::string* text);
// Reads a positive number; -1 counts as none.
Status ReadNumber(simdjson::dom::object from, std::string_view key,
                  uint64_t most, uint64_t* number);
Status ReadFlag(simdjson::dom::object from, std::string_view key, bool* flag);

}  // namespace haulway::arithmetic
