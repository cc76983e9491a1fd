#include "net/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/ascii.h"
#include "base/text.h"
#include "haulway/options.h"
#include "net/libcurl.h"

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

Status Changed(std::string_view what, std::string_view was,
               std::string_view is) {
  return Status(Code::kCorrupt,
                fmt::format("the object changed while it was read: expected {} "
                            "{}, found {}",
                            what, was, is));
}

Status CheckValidator(const HttpResponse& response, const Validator& expect,
                      std::optional<uint64_t> total) {
  const Validator found = ValidatorOf(response);
  if (!expect.etag.empty() && !found.etag.empty()) {
    if (expect.etag != found.etag) {
      return Changed("ETag", Quote(expect.etag), Quote(found.etag));
    }
  } else if (!expect.last_modified.empty() && !found.last_modified.empty() &&
             expect.last_modified != found.last_modified) {
    return Changed("Last-Modified", Quote(expect.last_modified),
                   Quote(found.last_modified));
  }
  if (expect.total.has_value() && total.has_value() &&
      *expect.total != *total) {
    return Changed("size", std::to_string(*expect.total),
                   std::to_string(*total));
  }
  return Status();
}

Result<BodyPlan> PlanPart(const HttpResponse& response, const ByteRange& range,
                          const Validator& expect) {
  const std::string_view type = response.Header("content-type");
  if (EqualsIgnoringCase(type.substr(0, 10), "multipart/")) {
    return Status(Code::kCorrupt,
                  "the answer has several parts: expected the one range that "
                  "was asked for");
  }
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
  const auto length = ParseNumber<uint64_t>(response.Header("content-length"));
  if (length.has_value() && *length != plan.bytes) {
    return Status(Code::kCorrupt,
                  fmt::format("the answer contradicts itself: expected "
                              "Content-Length {}, found {}",
                              plan.bytes, *length));
  }
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
  HAULWAY_TRY(CheckCoding(response));
  if (response.status == 206 && range.has_value()) {
    return PlanPart(response, *range, expect);
  }
  if (response.status == 206) {
    return Status(Code::kCorrupt,
                  "the answer is a part (206): expected the whole object");
  }
  BodyPlan plan;
  plan.whole = true;
  plan.length = ParseNumber<uint64_t>(response.Header("content-length"));
  plan.total = plan.length;
  HAULWAY_TRY(CheckValidator(response, expect, plan.length));
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
