#include "haulway/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "filter.h"
#include "output.h"
#include "progress.h"
#include "write_stats.h"

namespace haulway::cli {
namespace {

// More would fill the screen; --json has all of them.
constexpr size_t kNotesShown = 20;

std::string Hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  }
  return text;
}

// "bf16", "BF16" and "bfloat16" are one.
std::optional<DType> DTypeOf(std::string name) {
  if (const auto dtype = DTypeFromTorchName(name)) return dtype;
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return DTypeFromName(name);
}

// Each --rename in turn; null if there is none.
Result<RenameFunction> RenamingOf(const Options& options) {
  std::vector<RenameFunction> renames;
  for (const std::string& pair : options.rename) {
    const size_t at = pair.find('=');
    HAULWAY_ASSIGN(RenameFunction rename,
                   MakeRenaming(pair.substr(0, at), pair.substr(at + 1)));
    renames.push_back(std::move(rename));
  }
  if (renames.empty()) return RenameFunction();
  return RenameFunction([renames = std::move(renames)](std::string_view name) {
    std::string changed(name);
    for (const RenameFunction& rename : renames) changed = rename(changed);
    return changed;
  });
}

Result<ConvertOptions> OptionsOf(const Options& options) {
  ConvertOptions convert;
  if (!options.format.empty()) {
    HAULWAY_ASSIGN(convert.to, FormatToWriteByName(options.format));
  }
  if (!options.dtype.empty()) {
    convert.dtype = DTypeOf(options.dtype);
    if (!convert.dtype.has_value()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("no dtype '{}'", options.dtype));
    }
  }
  HAULWAY_ASSIGN(convert.rename, RenamingOf(options));
  if (!options.include.empty() || !options.exclude.empty()) {
    convert.select = [&options](std::string_view name) {
      return Selected(name, options.include, options.exclude);
    };
  }
  convert.shard_bytes = options.shard_bytes;
  convert.ties = *TiesFromName(options.ties);
  convert.compact = options.compact;
  convert.proof = !options.proof.empty();
  if (options.no_sync) convert.durability = Durability::kNone;
  convert.save.write.threads = options.threads;
  convert.save.write.cancel = &interrupted;
  convert.save.write.progress = Progress(options.out, options.no_progress);
  if (options.memory_budget != 0) {
    convert.save.write.memory_budget = options.memory_budget;
  }
  return convert;
}

void AddProof(const ConvertReport& report, Json* json) {
  json->Key("proof").Begin('[');
  for (const TensorProof& proof : report.proof) {
    json->Begin('{').Key("name").Text(proof.name);
    json->Key("sha256").Text(Hex(proof.sha256)).End('}');
  }
  json->End(']');
}

Status WriteProof(const Options& options, const ConvertReport& report,
                  ByteSink& sink) {
  Json json;
  json.Begin('{').Key("file").Text(options.files.front());
  json.Key("out").Text(options.out);
  AddProof(report, &json);
  const std::string text = json.End('}').text() + "\n";
  HAULWAY_TRY(sink.WriteAt(0, std::as_bytes(std::span(text))));
  return sink.Commit(text.size());
}

void PrintJson(const Options& options, const ConvertReport& report) {
  Json json;
  json.Begin('{').Key("file").Text(options.files.front());
  json.Key("out").Text(options.out);
  json.Key("tensors").Number(report.tensors);
  json.Key("files").Begin('[');
  for (const std::string& file : report.files) json.Text(file);
  json.End(']');
  AddProof(report, &json);
  json.Key("ties").Begin('[');
  for (const TieNote& tie : report.ties) {
    json.Begin('{').Key("name").Text(tie.name).Key("with").Text(tie.with);
    json.Key("done").Text(tie.dropped ? "dropped" : "copied").End('}');
  }
  json.End(']').Key("left_out").Begin('[');
  for (const LeftOut& left : report.left_out) {
    json.Begin('{').Key("name").Text(left.name);
    json.Key("why").Text(left.why).End('}');
  }
  json.End(']');
  WriteStats stats = report.write;
  stats.bytes = report.bytes;  // The index is a file too.
  AddStats(stats, &json);
  json.End('}').Print();
}

void PrintNotes(const std::vector<std::string>& notes) {
  const size_t shown = std::min(notes.size(), kNotesShown);
  for (size_t i = 0; i < shown; ++i) fmt::print("{}\n", notes[i]);
  if (shown < notes.size()) {
    fmt::print("and {} more; --json lists them\n", notes.size() - shown);
  }
}

void PrintText(const Options& options, const ConvertReport& report) {
  fmt::print(
      "{}: {} tensors, {} in {:.3f} s{}{}\n", Escape(options.out),
      report.tensors, Size(report.bytes, options.bytes), report.write.seconds,
      report.files.size() == 1 ? ""
                               : fmt::format(", {} files", report.files.size()),
      report.proof.empty()
          ? ""
          : fmt::format("; {} digests agree", report.proof.size()));
  std::vector<std::string> notes;
  for (const TieNote& tie : report.ties) {
    notes.push_back(fmt::format("{} {}: it shares memory with {}",
                                tie.dropped ? "dropped" : "copied",
                                Escape(tie.name), Escape(tie.with)));
  }
  for (const LeftOut& left : report.left_out) {
    notes.push_back(
        fmt::format("left out {}: {}", Escape(left.name), Escape(left.why)));
  }
  PrintNotes(notes);
}

}  // namespace

std::optional<uint64_t> ParseSize(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit(end);
  if (end == text.c_str() || !(number >= 0)) return std::nullopt;
  if (unit.ends_with('B')) unit.pop_back();
  double factor = 1;
  constexpr std::string_view kUnits = "kMGT";
  const bool is_binary = unit.ends_with('i');
  if (is_binary) unit.pop_back();
  if (unit == "K") unit = "k";
  if (unit.size() > 1 || (is_binary && unit.empty())) return std::nullopt;
  if (!unit.empty()) {
    const size_t power = kUnits.find(unit[0]);
    if (power == kUnits.npos) return std::nullopt;
    for (size_t i = 0; i <= power; ++i) factor *= is_binary ? 1024 : 1000;
  }
  const double bytes = number * factor;
  if (bytes >= 1e18) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

int ConvertFile(const Options& options) {
  const std::string& file = options.files.front();
  const auto run = [&]() -> Status {
    HAULWAY_ASSIGN(const ConvertOptions convert, OptionsOf(options));
    // Not mapped: what was read of a mapping stays in memory.
    std::shared_ptr<const ByteSource> source;
    if (file == "-") {
      HAULWAY_ASSIGN(source, OpenInput(file));
    } else {
      HAULWAY_ASSIGN(source, OpenFileSource(file));
    }
    HAULWAY_ASSIGN(const auto checkpoint,
                   Checkpoint::Open(std::move(source), options.open));
    std::unique_ptr<ByteSink> proof;  // If it cannot be made, nothing is.
    if (!options.proof.empty()) {
      HAULWAY_ASSIGN(proof, OpenFileSink(options.proof));
      HAULWAY_TRY(proof->Begin(std::nullopt).status());
    }
    HAULWAY_ASSIGN(const ConvertReport report,
                   Convert(checkpoint, options.out, convert));
    if (proof != nullptr) HAULWAY_TRY(WriteProof(options, report, *proof));
    options.json ? PrintJson(options, report) : PrintText(options, report);
    return Status();
  };
  const Status status = run();
  return status.ok() ? kDone : Fail(options, status);
}

}  // namespace haulway::cli
