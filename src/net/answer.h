// Interprets the head of an HTTP response and checks that the response matches
// the request. Pure functions: every byte of the head is untrusted.

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
  std::optional<uint64_t> first;  // nullopt if the range was not satisfiable.
  uint64_t last = 0;
  std::optional<uint64_t> total;
};
std::optional<ContentRange> ParseContentRange(std::string_view text);

// Parses Retry-After: seconds, or a date. Returns nullopt if the text is
// neither. Never negative.
std::optional<std::chrono::milliseconds> ParseRetryAfter(
    std::string_view text, std::chrono::system_clock::time_point now);

// What to do with a response body.
struct BodyPlan {
  uint64_t skip = 0;              // Bytes before the requested range.
  uint64_t bytes = 0;             // Wanted bytes after `skip`.
  bool exact = false;             // Whether the body ends with them.
  std::optional<uint64_t> total;  // Size of the object.
  // Whether the body is the whole object, and its length if the response states
  // it.
  bool whole = false;
  std::optional<uint64_t> length;
  // The body ends with the connection, so nothing shows that all of it came.
  bool open_ended = false;
};

// Checks a 200 or 206 response to a request for `range`, or for the whole
// object if `range` is nullopt: it is a part, or the whole, of the object that
// `expect` identifies, or an error. Fails with kCorrupt for a range or object
// other than the requested one, for a response that does not show that its
// object is the expected one, and for one whose status and headers contradict
// each other; and with kUnsupported for a content coding or for a whole object
// if only a distant part of it was requested.
Result<BodyPlan> PlanBody(const HttpResponse& response,
                          const std::optional<ByteRange>& range,
                          const Validator& expect);

// Returns the values that identify the object's version.
Validator ValidatorOf(const HttpResponse& response);

}  // namespace haulway::net
