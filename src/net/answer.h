// What an answer's head says, and whether it is an answer to what was asked:
// pure functions, since every byte of it is the server's.

#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "haulway/source.h"
#include "haulway/status.h"
#include "net/http_client.h"

namespace haulway::net {

// "bytes a-b/T", "bytes a-b/*" or "bytes */T" (RFC 9110 14.4).
struct ContentRange {
  std::optional<uint64_t> first;  // Without it the range was not satisfiable.
  uint64_t last = 0;
  std::optional<uint64_t> total;
};
std::optional<ContentRange> ParseContentRange(std::string_view text);

// Parses Retry-After: seconds, or a date; nullopt if the text is neither. Never
// negative.
std::optional<std::chrono::milliseconds> ParseRetryAfter(
    std::string_view text, std::chrono::system_clock::time_point now);

// What is to be done with a body.
struct BodyPlan {
  uint64_t skip = 0;              // Bytes that are before what was asked for.
  uint64_t bytes = 0;             // That follow, and are wanted.
  bool exact = false;             // The body has no byte behind them.
  std::optional<uint64_t> total;  // Size of the object.
  // The answer is the whole object, of this length if it says so.
  bool whole = false;
  std::optional<uint64_t> length;
};

// Checks a 200 or 206 to a request for `range`, or for the whole object if it
// has none. Fails with kCorrupt for another range or object than was asked for,
// and kUnsupported for a coding, and a whole object where only a far part of it
// was asked for.
Result<BodyPlan> PlanBody(const HttpResponse& response,
                          const std::optional<ByteRange>& range,
                          const Validator& expect);

// What an answer is recognised by.
Validator ValidatorOf(const HttpResponse& response);

}  // namespace haulway::net
