// The results of scanning as SARIF 2.1.0, for services that scan code.

#pragma once

#include <string>
#include <vector>

#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::cli {

// A SarifLog collects what is found, and makes one run of all of it.
class SarifLog {
 public:
  // A result for each finding of a report that is not SAFE.
  void Add(const ScanReport& report);
  // A file that could not be scanned: a notification, and no success.
  void AddFailure(const Status& status);

  // The log, one JSON object in UTF-8.
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
