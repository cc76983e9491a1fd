// Formats scan results as SARIF 2.1.0, for code scanning services.

#pragma once

#include <string>
#include <vector>

#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::cli {

// A SarifLog collects results, and formats them as one run.
class SarifLog {
 public:
  // Adds a result for each finding of a report that is not SAFE.
  void Add(const ScanReport& report);
  // Adds a file that could not be scanned: a notification; the run is then not
  // successful.
  void AddFailure(const Status& status);

  // Returns the log, one JSON object in UTF-8.
  std::string Text() const;

 private:
  struct Row {
    std::string rule;
    std::string file;
    Finding finding;
  };
  std::vector<Row> rows_;
  std::vector<std::string> failures_;
};

}  // namespace haulway::cli
