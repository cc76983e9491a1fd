#include <fmt/format.h>

#include <map>

#include "command.h"
#include "haulway/pickle.h"
#include "haulway/verify.h"
#include "output.h"

namespace haulway::cli {
namespace {

void PrintJson(const std::string& file, const ScanReport& report) {
  Json json;
  json.Begin('{').Key("file").Text(file);
  json.Key("safe").Raw(report.safe ? "true" : "false");
  json.Key("pickles").Begin('[');
  for (const ScannedPickle& pickle : report.pickles) {
    json.Begin('{').Key("member").Text(pickle.member);
    json.Key("offset").Number(pickle.offset).Key("bytes").Number(pickle.bytes);
    json.Key("protocol").Raw(std::to_string(pickle.protocol));
    json.Key("globals").Begin('[');
    for (const ScannedGlobal& global : pickle.globals) {
      json.Begin('{').Key("module").Text(global.module);
      json.Key("name").Text(global.name);
      json.Key("allowed").Raw(global.allowed ? "true" : "false");
      json.Key("byte").Number(global.byte).End('}');
    }
    json.End(']').Key("opcodes").Begin('{');
    for (size_t i = 0; i < pickle.opcodes.size(); ++i) {
      if (pickle.opcodes[i] == 0) continue;
      json.Key(PickleOpcodeName(static_cast<uint8_t>(i)));
      json.Number(pickle.opcodes[i]);
    }
    json.End('}').End('}');
  }
  json.End(']').Findings(report.findings).End('}').Print();
}

void PrintPickle(const Options& options, const ScannedPickle& pickle) {
  fmt::print("  {}: protocol {}, {} at byte {}\n", Escape(pickle.member),
             pickle.protocol, Size(pickle.bytes, options.bytes), pickle.offset);
  struct Mentions {
    uint64_t count = 0;
    uint64_t first = 0;
    bool allowed = true;
  };
  std::map<std::string, Mentions> names;
  Table table("<<>>");
  table.Add({"    verdict", "global", "times", "first byte"});
  const auto add = [&table](const std::string& name, const Mentions& m) {
    table.Add({m.allowed ? "    allowed" : "    NOT ALLOWED", name,
               std::to_string(m.count), std::to_string(m.first)});
  };
  for (const ScannedGlobal& global : pickle.globals) {
    const std::string name = Escape(global.module + "." + global.name);
    if (options.verbose) {
      add(name, {1, global.byte, global.allowed});
      continue;
    }
    Mentions& mentions = names[name];
    if (mentions.count++ == 0) mentions.first = global.byte;
    mentions.allowed = mentions.allowed && global.allowed;
  }
  for (const auto& [name, mentions] : names) add(name, mentions);
  if (!pickle.globals.empty()) table.Print();
  if (!options.verbose) return;
  for (size_t i = 0; i < pickle.opcodes.size(); ++i) {
    if (pickle.opcodes[i] == 0) continue;
    fmt::print("    {:>10} {}\n", pickle.opcodes[i],
               PickleOpcodeName(static_cast<uint8_t>(i)));
  }
}

int ScanOne(const Options& options, const std::string& file, bool) {
  Result<std::shared_ptr<const ByteSource>> source = OpenInput(file);
  if (!source.ok()) return Fail(options, source.status());
  const auto result = Scan(*source, options.open);
  if (!result.ok()) return Fail(options, result.status());
  const ScanReport& report = result.value();
  if (options.json) {
    PrintJson(file, report);
  } else {
    fmt::print("{} {}\n", report.safe ? "SAFE  " : "UNSAFE", Escape(file));
    for (const ScannedPickle& pickle : report.pickles) {
      PrintPickle(options, pickle);
    }
    PrintFindings(report.findings);
  }
  return report.safe && report.findings.empty() ? kDone : kFound;
}

}  // namespace

int ScanFiles(const Options& options) { return ForEachFile(options, ScanOne); }

}  // namespace haulway::cli
