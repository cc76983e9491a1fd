// Property: heads of HTTP answers and URLs, all of whose bytes a server
// controls, cause no crash, and an accepted answer matches the request.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "net/answer.h"
#include "net/url.h"

namespace {

void Expect(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace haulway;
  using namespace haulway::net;
  if (size < 4) return 0;
  HttpResponse response;
  response.status = (data[0] & 1) != 0 ? 206 : 200;
  const ByteRange range{data[1], uint64_t{data[2]} + 1};
  Validator expect;
  if ((data[0] & 2) != 0) expect.total = data[3];
  if ((data[0] & 4) != 0) expect.etag = "\"a\"";
  std::string_view text(reinterpret_cast<const char*>(data) + 4, size - 4);
  constexpr std::string_view kNames[] = {"content-range", "content-length",
                                         "content-encoding", "etag",
                                         "retry-after"};
  const std::string_view all = text;
  for (const std::string_view name : kNames) {
    const size_t end = text.find('\n');
    response.headers.push_back(
        {std::string(name), std::string(text.substr(0, end))});
    if (end == text.npos) break;
    text.remove_prefix(end + 1);
  }
  const auto plan = PlanBody(response, range, expect);
  if (plan.ok()) {
    Expect(plan->bytes <= range.length);
    Expect(plan->whole || plan->bytes > 0);
    Expect(!plan->whole || plan->skip <= range.offset);
    if (expect.total.has_value() && plan->total.has_value()) {
      Expect(*plan->total == *expect.total);
    }
  }
  const auto wait = ParseRetryAfter(response.Header("retry-after"),
                                    std::chrono::system_clock::time_point());
  Expect(!wait.has_value() || wait->count() >= 0);
  const auto base = ParseUrl("https://u:p@h:8443/a/b?q=1");
  const auto url = ParseUrl(all);
  if (url.ok()) {
    // A URL that is printed parses to the same URL.
    const auto again = ParseUrl(url->Text());
    Expect(again.ok() && again->Text() == url->Text());
    Expect(url->scheme == "http" || url->scheme == "https");
    (void)ExpiryOf(*url);
  }
  const auto target = ResolveUrl(*base, all);
  Expect(!target.ok() || target->scheme == "http" || target->scheme == "https");
  return 0;
}
