// Property: scanning any bytes under any name results in a verdict with a
// reason, and a result other than SAFE has a finding.

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "haulway/source.h"
#include "haulway/verify.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::string_view kNames[] = {"memory",  "x.txt", "x.json", "x.yaml",
                                         "x.jinja", "x.pth", "x.pt",   "x"};
  if (size == 0) return 0;
  const std::string_view name = kNames[data[0] % std::size(kNames)];
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  const auto report =
      haulway::Scan(haulway::MakeMemorySource(bytes, std::string(name)), {});
  if (!report.ok() || report->reason.empty()) abort();
  if (report->safe() != report->findings.empty()) abort();
  return 0;
}
