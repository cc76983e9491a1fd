#include "sarif.h"

#include <fmt/format.h>

#include <string_view>

#include "output.h"

namespace haulway::cli {
namespace {

// SARIF 2.1.0 section 3.49: a result refers to a rule by its id.
struct Rule {
  const char* id;
  const char* level;
  const char* about;
};
constexpr Rule kRules[] = {
    {"unsafe", "error", "The file would run code in a program that reads it"},
    {"unknown", "warning", "The file is not proven to run no code"},
};

bool IsUnreserved(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
         (c >= 'a' && c <= 'z') || c == '-' || c == '.' || c == '_' ||
         c == '~' || c == '/';
}

// RFC 3986: returns a URL unchanged, and a path as a relative or a file:
// reference.
std::string UriOf(std::string_view file) {
  const bool is_url = file.find("://") != file.npos;
  std::string uri = file.starts_with('/') ? "file://" : "";
  for (const char c : file) {
    if (IsUnreserved(c) || (is_url && std::string_view(":?=&#").find(c) !=
                                          std::string_view::npos)) {
      uri += c;
    } else {
      uri += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return uri;
}

}  // namespace

void SarifLog::Add(const ScanReport& report) {
  if (report.safe()) return;
  const std::string rule =
      report.verdict == Verdict::kUnsafe ? "unsafe" : "unknown";
  const Finding reason = {Code::kUnsafe, report.reason, report.byte};
  rows_.push_back({rule, report.file, reason});
  for (const Finding& finding : report.findings) {
    if (finding.message == report.reason) continue;
    rows_.push_back({rule, report.file, finding});
  }
}

void SarifLog::AddFailure(const Status& status) {
  failures_.emplace_back(status.message());
}

std::string SarifLog::Text() const {
  Json json;
  json.Begin('{').Key("$schema").Text(
      "https://json.schemastore.org/sarif-2.1.0.json");
  json.Key("version").Text("2.1.0");
  json.Key("runs").Begin('[').Begin('{');
  json.Key("tool").Begin('{').Key("driver").Begin('{');
  json.Key("name").Text("haulway").Key("version").Text(HAULWAY_VERSION);
  json.Key("rules").Begin('[');
  for (const Rule& rule : kRules) {
    json.Begin('{').Key("id").Text(rule.id);
    json.Key("shortDescription").Begin('{').Key("text").Text(rule.about);
    json.End('}').Key("defaultConfiguration").Begin('{');
    json.Key("level").Text(rule.level).End('}').End('}');
  }
  json.End(']').End('}').End('}');
  json.Key("columnKind").Text("utf16CodeUnits");
  json.Key("invocations").Begin('[').Begin('{');
  json.Key("executionSuccessful").Value(failures_.empty());
  json.Key("toolExecutionNotifications").Begin('[');
  for (const std::string& failure : failures_) {
    json.Begin('{').Key("level").Text("error").Key("message").Begin('{');
    json.Key("text").Text(failure).End('}').End('}');
  }
  json.End(']').End('}').End(']');
  json.Key("results").Begin('[');
  for (const Row& row : rows_) {
    json.Begin('{').Key("ruleId").Text(row.rule);
    json.Key("level").Text(row.rule == "unsafe" ? "error" : "warning");
    json.Key("message").Begin('{').Key("text").Text(row.finding.message);
    json.End('}').Key("locations").Begin('[').Begin('{');
    json.Key("physicalLocation").Begin('{').Key("artifactLocation").Begin('{');
    json.Key("uri").Text(UriOf(row.file)).End('}');
    if (row.finding.byte) {
      json.Key("region").Begin('{').Key("byteOffset");
      json.Number(*row.finding.byte).End('}');
    }
    json.End('}').End('}').End(']').End('}');
  }
  json.End(']').End('}').End(']').End('}');
  return json.text() + "\n";
}

}  // namespace haulway::cli
