#include "net/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/ascii.h"
#include "base/text.h"
#include "haulway/options.h"
#include "net/libcurl.h"

// Design: an answer is a part, or the whole, or an error. A status and headers
// that disagree are an error, not a guess which of them is right, because a
// part that is taken for the whole is noticed by nobody. What identified the
// object in the first answer must be in every later one: a server that ignores
// If-Match would otherwise pass unnoticed. A weak ETag is compared without its
// mark, since servers drop it once an object is a second old, and then the date
// counts too.

namespace haulway::net {

namespace {

// If a server sends the whole object, at most this many bytes are read and
// discarded to reach the wanted part: about what a few round trips transfer.
constexpr uint64_t kMostSkipped = 16 * kMiB;

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](char x, char y) { return LowerCase(x) == LowerCase(y); });
}

Status CheckCoding(const HttpResponse& response) {
  const std::string_view coding = Trim(response.Header("content-encoding"));
  // Some object stores keep the coding "aws-chunked" of an upload, but send
  // plain bytes.
  if (coding.empty() || EqualsIgnoringCase(coding, "identity") ||
      EqualsIgnoringCase(coding, "aws-chunked")) {
    return Status();
  }
  return Status(Code::kUnsupported,
                fmt::format("the response has the content coding {}, which was "
                            "not requested: expected none",
                            Quote(coding)));
}

Status Contradicts(std::string_view what, std::string_view found) {
  return Status(
      Code::kCorrupt,
      fmt::format("the answer contradicts itself: expected {}, found {}", what,
                  found));
}

// Checks that no header on which the other checks rest has two values.
Status CheckHeaders(const HttpResponse& response) {
  for (const HttpHeader& header : response.headers) {
    const bool counts = header.name == "content-encoding" ||
                        header.name == "content-length" ||
                        header.name == "content-range" ||
                        header.name == "etag" || header.name == "last-modified";
    const std::string_view first = response.Header(header.name);
    if (counts && header.value != first) {
      return Contradicts(
          fmt::format("one {}", header.name),
          fmt::format("{} and {}", Quote(first), Quote(header.value)));
    }
  }
  return Status();
}

Result<std::optional<uint64_t>> LengthOf(const HttpResponse& response) {
  const std::string_view text = Trim(response.Header("content-length"));
  const auto length = ParseNumber<uint64_t>(text);
  if (!length.has_value() && !text.empty()) {
    return Status(Code::kCorrupt,
                  fmt::format("the answer has Content-Length {}: expected a "
                              "number",
                              Quote(text)));
  }
  return length;
}

// Returns the ETag without the mark of a weak one.
std::string_view TagOf(const Validator& validator) {
  std::string_view tag = validator.etag;
  if (tag.starts_with("W/")) tag.remove_prefix(2);
  return tag;
}

// Compares what identified the object in the first response with the same in
// this one.
Status CheckSame(std::string_view what, std::string_view was,
                 std::string_view is) {
  if (was == is) return Status();
  if (is.empty()) {
    return Status(Code::kCorrupt,
                  fmt::format("the answer does not show that the object is the "
                              "same as before: expected {} {}, found none",
                              what, Quote(was)));
  }
  return Status(Code::kCorrupt,
                fmt::format("the object changed while it was read: expected {} "
                            "{}, found {}",
                            what, Quote(was), Quote(is)));
}

Status CheckValidator(const HttpResponse& response, const Validator& expect,
                      std::optional<uint64_t> total) {
  const Validator found = ValidatorOf(response);
  const bool has_tag = !expect.etag.empty();
  const bool has_date = !expect.last_modified.empty();
  if (has_tag && TagOf(expect) != TagOf(found)) {
    HAULWAY_TRY(CheckSame("ETag", expect.etag, found.etag));
  }
  // A weak ETag may stay although the bytes change.
  if (has_date && !(expect.strong() && found.strong())) {
    HAULWAY_TRY(
        CheckSame("Last-Modified", expect.last_modified, found.last_modified));
  }
  if (!expect.total.has_value()) return Status();
  // If an object has neither, its size is all that identifies it.
  if (!total.has_value() && (has_tag || has_date)) return Status();
  return CheckSame("size", std::to_string(*expect.total),
                   total.has_value() ? std::to_string(*total) : "");
}

Result<BodyPlan> PlanPart(const HttpResponse& response, const ByteRange& range,
                          const Validator& expect) {
  const uint64_t last = range.offset + range.length - 1;
  const std::string_view text = response.Header("content-range");
  const auto found = ParseContentRange(text);
  if (!found.has_value() || !found->first.has_value()) {
    return Status(Code::kCorrupt,
                  fmt::format("the answer has Content-Range {}: expected bytes "
                              "{}-{}",
                              Quote(text), range.offset, last));
  }
  HAULWAY_TRY(CheckValidator(response, expect, found->total));
  // A server may send fewer bytes than requested, but no others.
  if (*found->first != range.offset || found->last > last) {
    return Status(Code::kCorrupt,
                  fmt::format("the answer is another range: expected bytes "
                              "{}-{}, found {}-{}",
                              range.offset, last, *found->first, found->last));
  }
  BodyPlan plan;
  plan.bytes = found->last - *found->first + 1;
  plan.exact = true;
  plan.total = found->total;
  HAULWAY_ASSIGN(const auto length, LengthOf(response));
  if (length.has_value() && *length != plan.bytes) {
    return Contradicts(fmt::format("Content-Length {}", plan.bytes),
                       std::to_string(*length));
  }
  return plan;
}

// Plans for a response with the whole object, whatever was requested.
Result<BodyPlan> PlanWhole(const HttpResponse& response,
                           const Validator& expect) {
  BodyPlan plan;
  plan.whole = true;
  HAULWAY_ASSIGN(plan.length, LengthOf(response));
  if (const auto text = response.Header("content-range"); !text.empty()) {
    const auto found = ParseContentRange(text);
    const bool is_whole =
        found.has_value() && found->first == 0 &&
        found->total == found->last + 1 &&
        plan.length.value_or(found->last + 1) == found->last + 1;
    if (!is_whole) {
      return Contradicts(
          fmt::format("the whole object, as status {} says", response.status),
          fmt::format("Content-Range {}", Quote(text)));
    }
    plan.length = found->total;
  }
  plan.total = plan.length;
  plan.open_ended = !plan.length.has_value() && !response.is_multiplexed &&
                    response.Header("transfer-encoding").empty();
  HAULWAY_TRY(CheckValidator(response, expect, plan.length));
  return plan;
}

}  // namespace

std::optional<ContentRange> ParseContentRange(std::string_view text) {
  text = Trim(text);
  if (text.size() < 6 || !EqualsIgnoringCase(text.substr(0, 5), "bytes") ||
      text[5] != ' ') {
    return std::nullopt;
  }
  text = Trim(text.substr(6));
  const size_t slash = text.find('/');
  if (slash == text.npos) return std::nullopt;
  const std::string_view part = text.substr(0, slash);
  const std::string_view total = text.substr(slash + 1);
  ContentRange range;
  if (total != "*") {
    range.total = ParseNumber<uint64_t>(total);
    if (!range.total.has_value()) return std::nullopt;
  }
  if (part == "*") {
    if (!range.total.has_value()) return std::nullopt;
    return range;
  }
  const size_t dash = part.find('-');
  if (dash == part.npos) return std::nullopt;
  range.first = ParseNumber<uint64_t>(part.substr(0, dash));
  const auto last = ParseNumber<uint64_t>(part.substr(dash + 1));
  if (!range.first.has_value() || !last.has_value()) return std::nullopt;
  range.last = *last;
  // `last` must leave room to compute the length.
  if (*range.first > range.last || range.last == UINT64_MAX) {
    return std::nullopt;
  }
  if (range.total.has_value() && range.last >= *range.total) {
    return std::nullopt;
  }
  return range;
}

std::optional<std::chrono::milliseconds> ParseRetryAfter(
    std::string_view text, std::chrono::system_clock::time_point now) {
  using std::chrono::seconds;
  // Limits the wait to a year.
  constexpr seconds kMost{365 * 24 * 3600};
  text = Trim(text);
  if (text.empty()) return std::nullopt;
  if (std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; })) {
    const auto number = ParseNumber<uint64_t>(text);
    const auto most = static_cast<uint64_t>(kMost.count());
    return seconds(std::min(number.value_or(most), most));
  }
  const auto when = ParseHttpDate(text);
  if (!when.has_value()) return std::nullopt;
  // In seconds: a time_point ends in 2262.
  const auto since_epoch =
      std::chrono::duration_cast<seconds>(now.time_since_epoch());
  return std::clamp(seconds(*when) - since_epoch, seconds(0), kMost);
}

Validator ValidatorOf(const HttpResponse& response) {
  Validator validator;
  validator.etag = Trim(response.Header("etag"));
  validator.last_modified = Trim(response.Header("last-modified"));
  return validator;
}

Result<BodyPlan> PlanBody(const HttpResponse& response,
                          const std::optional<ByteRange>& range,
                          const Validator& expect) {
  HAULWAY_TRY(CheckHeaders(response));
  HAULWAY_TRY(CheckCoding(response));
  const std::string_view type = response.Header("content-type");
  if (EqualsIgnoringCase(type.substr(0, 10), "multipart/")) {
    return Status(Code::kCorrupt,
                  "the answer has several parts: expected the one range that "
                  "was asked for");
  }
  if (response.status == 206 && range.has_value()) {
    return PlanPart(response, *range, expect);
  }
  if (response.status == 206) {
    return Status(Code::kCorrupt,
                  "the answer is a part (206): expected the whole object");
  }
  HAULWAY_ASSIGN(BodyPlan plan, PlanWhole(response, expect));
  if (!range.has_value()) return plan;
  if (range->offset > kMostSkipped) {
    return Status(Code::kUnsupported,
                  fmt::format("the server does not serve ranges: expected the "
                              "{} bytes from byte {}, found the whole object",
                              range->length, range->offset));
  }
  plan.skip = range->offset;
  plan.bytes = range->length;
  if (plan.length.has_value()) {
    const uint64_t length = *plan.length;
    plan.skip = std::min(plan.skip, length);
    plan.bytes = std::min(plan.bytes, length - plan.skip);
  }
  return plan;
}

}  // namespace haulway::net
