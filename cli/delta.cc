#include "haulway/delta.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command.h"
#include "field_options.h"
#include "output.h"

namespace haulway::cli {
namespace {

struct DeltaVerbOptions : Options {
  std::string action;
  std::vector<std::string> names;
  WriteVersionOptions write;

  const std::string& url() const { return names.front(); }
};

void PrintVersions(const DeltaVerbOptions& options,
                   const std::vector<WeightVersion>& versions) {
  Table table("<<<<<>><");
  table.Add({"version", "kind", "base", "encoding", "checksum", "tensors",
             "bytes", "state"});
  for (const WeightVersion& version : versions) {
    std::string state = "complete";
    if (!version.complete) {
      state = fmt::format("lacks {}", Escape(version.missing.front()));
      if (version.missing.size() > 1) {
        state += fmt::format(" and {} more", version.missing.size() - 1);
      }
    }
    table.Add({Escape(version.id), version.kind, Escape(version.base),
               version.encoding, version.checksum,
               std::to_string(version.tensors),
               Size(version.bytes, options.bytes), state});
  }
  table.Print();
}

int List(const DeltaVerbOptions& options) {
  const auto versions = ListVersions(options.url(), Remote());
  if (!versions.ok()) return Fail(options, versions.status());
  if (options.json) {
    Json().Begin('{').Key("versions").Value(*versions).End('}').Print();
  } else if (versions->empty()) {
    fmt::print("no versions of weights\n");
  } else {
    PrintVersions(options, *versions);
  }
  return versions->empty() ? kNoMatch : kDone;
}

int Verify(const DeltaVerbOptions& options) {
  VerifyVersionsOptions verify;
  verify.source = Sources();
  verify.source.io = IoMode::kPread;
  verify.source.remote = Remote();
  verify.threads = options.threads;
  verify.cancel = &interrupted;
  const auto report = VerifyVersions(options.url(), verify);
  if (!report.ok()) return Fail(options, report.status());
  if (options.json) {
    Json().Value(*report).Print();
    return report->ok ? kDone : kFound;
  }
  fmt::print("{} {}: {} version{}, {} checked\n",
             report->ok ? "OK    " : "FAILED", Escape(ShownName(options.url())),
             report->versions, report->versions == 1 ? "" : "s",
             Size(report->checked_bytes, options.bytes));
  for (const VersionFinding& finding : report->findings) {
    fmt::print("  version {}: {}: {}\n", Escape(finding.version),
               CodeName(finding.code), Escape(finding.message));
  }
  return report->ok ? kDone : kFound;
}

Result<WeightVersion> WriteNamed(const DeltaVerbOptions& options) {
  const auto open = [&](const std::string& name)
      -> Result<std::shared_ptr<const Checkpoint>> {
    HAULWAY_ASSIGN(auto source, OpenModel(options, name));
    return OpenCheckpoint(std::move(source), options.open);
  };
  HAULWAY_ASSIGN(const auto before, open(options.names[0]));
  HAULWAY_ASSIGN(const auto after, open(options.names[1]));
  WriteVersionOptions write = options.write;
  write.threads = options.threads;
  write.remote = Remote();
  write.cancel = &interrupted;
  return WriteVersion(*before, *after, options.names[2], write);
}

int Write(const DeltaVerbOptions& options) {
  const auto version = WriteNamed(options);
  if (!version.ok()) return Fail(options, version.status());
  if (options.json) {
    Json().Value(*version).Print();
  } else {
    fmt::print("version {}, on {}: {} tensors changed, {}\n",
               Escape(version->id), Escape(version->base), version->tensors,
               Size(version->bytes, options.bytes));
  }
  return kDone;
}

// What the verb can do, with the number of its arguments.
struct DeltaAction {
  std::string_view name;
  size_t names;
  int (*run)(const DeltaVerbOptions& options);
};
constexpr DeltaAction kActions[] = {
    {"ls", 1, List}, {"verify", 1, Verify}, {"write", 3, Write}};

int RunDelta(const DeltaVerbOptions& options) {
  const auto* action =
      std::ranges::find(kActions, options.action, &DeltaAction::name);
  return action->run(options);
}

// Refuses a number of arguments that the action does not take.
void CheckNames(const DeltaVerbOptions& options) {
  for (const DeltaAction& action : kActions) {
    if (action.name != options.action) continue;
    if (options.names.size() == action.names) break;
    throw CLI::ValidationError(
        options.action,
        fmt::format(
            "expected {} after it, found {}",
            action.names == 1 ? "the folder of the versions" : "OLD NEW OUT",
            options.names.size()));
  }
  if (options.action != "write") return;
  if (options.write.version.empty() || options.write.base_version.empty()) {
    throw CLI::ValidationError("write",
                               "expected --version and --base-version");
  }
}

void AddWriting(CLI::App& app, WriteVersionOptions& write) {
  app.add_option("--version", write.version,
                 "For write: the version's number or name")
      ->type_name("V");
  app.add_option("--base-version", write.base_version,
                 "For write: the number or name of the version that OLD is")
      ->type_name("V");
  app.add_option("--encoding", write.encoding,
                 "For write: xor or overwrite; default: xor")
      ->check(CLI::IsMember({"xor", "overwrite"}));
  app.add_option("--checksum", write.checksum,
                 "For write: xxh3-128, blake3 or adler32; default: xxh3-128")
      ->check(CLI::IsMember({"xxh3-128", "blake3", "adler32"}));
  AddSize(app, "--shard", &write.shard_bytes,
          "For write: most bytes of changes in one shard; by default there is "
          "one shard");
  app.add_flag_callback(
      "--no-sync", [&write] { write.durability = Durability::kNone; },
      "For write: do not wait until the files are on the disk");
}

Runner AddDelta(CLI::App& app) {
  const auto options = MakeOptions<DeltaVerbOptions>(app);
  AddBytes(app, *options);
  AddRemote(app);
  app.add_option("ACTION", options->action,
                 "ls URL: list the versions; verify URL: check all of them, "
                 "with the checksums of every tensor; write OLD NEW OUT: write "
                 "the version that turns one checkpoint into another")
      ->required()
      ->check(CLI::IsMember({"ls", "verify", "write"}));
  app.add_option("FILE", options->names,
                 "URL: folder of the versions, a path or an s3:// name; OLD, "
                 "NEW: checkpoints; OUT: folder of the version")
      ->required();
  AddFields(app, &Sources());
  AddThreads(app, *options);
  AddWriting(app, options->write);
  app.parse_complete_callback([options] { CheckNames(*options); });
  return {options, [options] { return RunDelta(*options); }};
}

}  // namespace

extern const Verb kDelta = {"delta", "List, check or write versions of weights",
                            "haulway delta ls s3://bucket/run/\n"
                            "haulway delta verify run --base model\n"
                            "haulway delta write model new run/weight_v000001 "
                            "--version 1 --base-version 0",
                            AddDelta, true};

}  // namespace haulway::cli
