#include "torch/scan_report.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace haulway::torch {

void AppendScan(const PickleResult& result, ScannedPickle scanned,
                ScanReport* report) {
  scanned.bytes = result.consumed;
  scanned.protocol = result.protocol;
  scanned.opcodes = result.opcodes;
  scanned.globals.reserve(result.mentions.size());
  for (const GlobalMention& mention : result.mentions) {
    scanned.globals.push_back({std::string(mention.global->module),
                               std::string(mention.global->name),
                               mention.global->allowed, mention.byte});
  }
  for (Finding finding : result.findings) {
    finding.message += fmt::format("; in {}", scanned.member);
    report->findings.push_back(std::move(finding));
    report->safe = false;
  }
  report->pickles.push_back(std::move(scanned));
}

}  // namespace haulway::torch
