// Design: one verb with an action. Each action is a row of a table with the
// arguments that it expects and the function that runs it; the functions only
// pass options on and print reports. A second table says which options an
// action takes, and what they mean to it: others are refused, and not in its
// help. Options that an action cannot do without are checked when the command
// line is read. Exit codes are those of the verbs for one checkpoint.

#include "haulway/delta.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command.h"
#include "field_options.h"
#include "haulway/delta_apply.h"
#include "haulway/delta_fold.h"
#include "haulway/version_publisher.h"
#include "output.h"

namespace haulway::cli {
namespace {

struct DeltaVerbOptions : Options {
  std::string action;
  std::vector<std::string> names;
  WriteVersionOptions write;
  std::string from, to;
  int64_t keep = 0;
  bool dry_run = false;

  const std::string& url() const { return names.front(); }
};

void PrintVersions(const DeltaVerbOptions& options,
                   const std::vector<WeightVersion>& versions) {
  Table table("<<<<<>>.");
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

int CodeOf(const VersionsReport& report) {
  if (report.ok) return kDone;
  return report.findings.empty() ? kFailed : kFound;
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
    return CodeOf(*report);
  }
  fmt::print("{} {}: {} version{}, {} checked\n", OkOrFailed(report->ok),
             Escape(ShownName(options.url())), report->versions,
             report->versions == 1 ? "" : "s",
             Size(report->checked_bytes, options.bytes));
  for (const VersionFinding& finding : report->findings) {
    fmt::print("  version {}: {}\n", Escape(finding.version),
               Escape(finding.message));
  }
  if (!report->unchecked.empty()) {
    const size_t more = report->unchecked.size() - 1;
    fmt::print(
        "  version {}{}: not checked without the checkpoint before the first "
        "version; name it with --base\n",
        Escape(report->unchecked.front()),
        more == 0 ? "" : fmt::format(" and {} more", more));
  }
  return CodeOf(*report);
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

int Apply(const DeltaVerbOptions& options) {
  ApplyVersionsOptions apply;
  apply.to = options.to;
  apply.start = options.from;
  apply.source = Sources();
  apply.source.io = IoMode::kPread;
  apply.source.remote = Remote();
  apply.threads = options.threads;
  apply.durability = options.write.durability;
  apply.cancel = &interrupted;
  const auto report = ApplyVersions(options.names[0], options.names[1], apply);
  if (!report.ok()) return Fail(options, report.status());
  if (options.json) {
    Json().Value(*report).Print();
  } else {
    fmt::print(
        "version {}: {} version{} applied, {} tensors changed, {} "
        "written{}\n",
        Escape(report->to), report->versions, report->versions == 1 ? "" : "s",
        report->tensors, Size(report->written_bytes, options.bytes),
        report->resumed ? "; an interrupted update was ended" : "");
  }
  return kDone;
}

int Prune(const DeltaVerbOptions& options) {
  const PruneOptions prune{.keep = static_cast<uint64_t>(options.keep),
                           .dry_run = options.dry_run,
                           .remote = Remote()};
  const auto report = PruneVersions(options.url(), prune);
  if (!report.ok()) return Fail(options, report.status());
  if (options.json) {
    Json().Value(*report).Print();
    return kDone;
  }
  for (const std::string& id : report->removed) {
    fmt::print("{} {}\n", prune.dry_run ? "would remove" : "removed",
               Escape(id));
  }
  for (const std::string& id : report->kept) {
    fmt::print("kept {}\n", Escape(id));
  }
  return kDone;
}

int PrintJoined(const DeltaVerbOptions& options,
                const Result<WeightVersion>& version) {
  if (!version.ok()) return Fail(options, version.status());
  if (options.json) {
    Json().Value(*version).Print();
  } else {
    fmt::print("version {}, {}: {} tensors, {}\n", Escape(version->id),
               version->base.empty()
                   ? "a full one"
                   : fmt::format("on {}", Escape(version->base)),
               version->tensors, Size(version->bytes, options.bytes));
  }
  return kDone;
}

JoinVersionsOptions Joining(const DeltaVerbOptions& options) {
  JoinVersionsOptions join;
  join.source = Sources();
  join.source.io = IoMode::kPread;
  join.source.remote = Remote();
  join.shard_bytes = options.write.shard_bytes;
  join.threads = options.threads;
  join.durability = options.write.durability;
  join.cancel = &interrupted;
  return join;
}

int Fold(const DeltaVerbOptions& options) {
  return PrintJoined(
      options, FoldVersions(options.names[0], options.names[1], options.from,
                            options.to, Joining(options)));
}

int Compact(const DeltaVerbOptions& options) {
  return PrintJoined(options,
                     CompactVersion(options.names[0], options.names[1],
                                    options.write.version, Joining(options)));
}

// What the verb can do, with its arguments.
struct DeltaAction {
  std::string_view name;
  size_t names;
  std::string_view arguments;
  std::string_view about;
  int (*run)(const DeltaVerbOptions& options);
};
constexpr DeltaAction kActions[] = {
    {"ls", 1, "URL", "list the versions", List},
    {"verify", 1, "URL",
     "check all versions, with the checksums of every tensor", Verify},
    {"apply", 2, "TARGET URL",
     "bring a folder of safetensors files to a version, in place", Apply},
    {"fold", 2, "URL OUT", "join the deltas after one version up to another",
     Fold},
    {"compact", 2, "URL OUT", "write a version as a full one", Compact},
    {"write", 3, "OLD NEW OUT",
     "write the version that turns one checkpoint into another", Write},
    {"prune", 1, "URL", "remove old versions", Prune}};

// An option, the actions that take it, and what it means to them.
struct OwnOption {
  std::string_view name;
  std::string_view actions;     // With ", " between them.
  std::string_view about = {};  // Empty: as everywhere.
};
constexpr OwnOption kOwnOptions[] = {
    {"--bytes", "ls, verify, apply, fold, compact, write"},
    {"--base", "verify, apply, compact, write"},
    {"--threads", "verify, apply, fold, compact, write"},
    {"--to", "apply",
     "version to reach, by number or name; default: the newest complete one; 0 "
     "is the base"},
    {"--to", "fold", "version that the new delta makes"},
    {"--from", "apply", "version that TARGET holds, if it states none"},
    {"--from", "fold", "version on which the new delta builds"},
    {"--version", "write", "number or name of the version"},
    {"--version", "compact",
     "number or name of the version; default: the newest complete one"},
    {"--base-version", "write", "number or name of the version that OLD is"},
    {"--encoding", "write", "xor or overwrite; default: xor"},
    {"--checksum", "write", "xxh3-128, blake3 or adler32; default: xxh3-128"},
    {"--shard", "compact, write",
     "most bytes in one shard; by default there is one shard"},
    {"--no-sync", "apply, fold, compact, write",
     "do not wait until the files are on the disk"},
    {"--keep", "prune",
     "how many versions to keep, besides those that they need"},
    {"--dry-run", "prune", "remove nothing"},
    {"--lenient", "write"},
    {"--alone", "write"},
    {"--part", "write"},
    {"--weights", "write"},
    {"--replicas", "write"},
    {"--split-layers", "write"},
    {"--allow", "write"},
};

const DeltaAction& ActionOf(std::string_view name) {
  return *std::ranges::find(kActions, name, &DeltaAction::name);
}

bool IsOf(const OwnOption& option, std::string_view action) {
  std::string_view rest = option.actions;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(", "), rest.size());
    if (rest.substr(0, end) == action) return true;
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return false;
}

// Returns the option in `app` or its groups; null if it is none of theirs.
CLI::Option* FindOption(CLI::App& app, std::string_view name) {
  if (auto* found = app.get_option_no_throw(std::string(name))) return found;
  for (CLI::App* group : app.get_subcommands(nullptr)) {
    if (auto* found = FindOption(*group, name)) return found;
  }
  return nullptr;
}

// Describes the options for all actions.
void DescribeOwnOptions(CLI::App& app) {
  std::map<std::string_view, std::string> about;
  for (const OwnOption& row : kOwnOptions) {
    CLI::Option& option = *FindOption(app, row.name);
    std::string& text = about[row.name];
    if (row.about.empty()) {
      text = fmt::format("{} ({})", option.get_description(), row.actions);
    } else {
      text += fmt::format("{}For {}: {}", text.empty() ? "" : ". ", row.actions,
                          row.about);
    }
    option.description(text);
  }
}

// Leaves only the options of one action in the help.
void ShowOnly(CLI::App& app, const DeltaAction& action) {
  for (const OwnOption& row : kOwnOptions) {
    FindOption(app, row.name)->group("");
  }
  for (const OwnOption& row : kOwnOptions) {
    if (!IsOf(row, action.name)) continue;
    CLI::Option& option = *FindOption(app, row.name);
    option.group("Options");
    std::string text(row.about);
    if (text.empty()) {
      text = option.get_description();
      text.resize(text.rfind(" ("));
    }
    text[0] = static_cast<char>(std::toupper(text[0]));
    option.description(text);
  }
  app.get_option("ACTION")->description(std::string(action.name));
  std::string examples;
  std::string_view rest = app.get_footer();
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    if (line.starts_with(fmt::format("haulway delta {} ", action.name))) {
      examples += fmt::format("{}{}", examples.empty() ? "" : "\n", line);
    }
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  }
  app.footer(std::move(examples));
  app.description(fmt::format("haulway delta {} {}: {}", action.name,
                              action.arguments, action.about));
}

int RunDelta(const DeltaVerbOptions& options) {
  return ActionOf(options.action).run(options);
}

// Refuses options and a number of arguments that the action does not take, and
// asks for options that it needs.
void CheckWords(CLI::App& app, const DeltaVerbOptions& options) {
  const DeltaAction& action = ActionOf(options.action);
  const auto refuse = [&](const std::string& why) {
    throw CLI::ValidationError(options.action, why);
  };
  for (const OwnOption& row : kOwnOptions) {
    const bool is_taken =
        std::ranges::any_of(kOwnOptions, [&](const OwnOption& other) {
          return other.name == row.name && IsOf(other, action.name);
        });
    if (!is_taken && FindOption(app, row.name)->count() > 0) {
      refuse(fmt::format("no option '{}'", row.name));
    }
  }
  if (options.names.size() != action.names) {
    refuse(fmt::format("expected {} after it, found {}", action.arguments,
                       options.names.size()));
  }
  if (action.name == "fold" && (options.from.empty() || options.to.empty())) {
    refuse("expected --from and --to");
  }
  if (action.name == "prune" && options.keep < 1) {
    refuse("expected --keep, at least 1");
  }
  if (action.name == "write" &&
      (options.write.version.empty() || options.write.base_version.empty())) {
    refuse("expected --version and --base-version");
  }
}

void AddOwnOptions(CLI::App& app, DeltaVerbOptions& options) {
  app.add_option("--to", options.to)->type_name("V");
  app.add_option("--from", options.from)->type_name("V");
  WriteVersionOptions& write = options.write;
  app.add_option("--version", write.version)->type_name("V");
  app.add_option("--base-version", write.base_version)->type_name("V");
  OneOf(app.add_option("--encoding", write.encoding), {"xor", "overwrite"});
  OneOf(app.add_option("--checksum", write.checksum),
        {"xxh3-128", "blake3", "adler32"});
  AddSize(app, "--shard", &write.shard_bytes, "");
  app.add_flag_callback("--no-sync",
                        [&write] { write.durability = Durability::kNone; });
  app.add_option("--keep", options.keep)->type_name("N");
  app.add_flag("--dry-run", options.dry_run);
}

Runner AddDelta(CLI::App& app) {
  const auto options = MakeOptions<DeltaVerbOptions>(app);
  AddBytes(app, *options);
  AddRemote(app);
  std::string actions;
  std::vector<std::string> names;
  for (const DeltaAction& action : kActions) {
    actions += fmt::format("{}{} {}: {}", actions.empty() ? "" : "; ",
                           action.name, action.arguments, action.about);
    names.emplace_back(action.name);
  }
  OneOf(app.add_option_function<std::string>(
            "ACTION",
            [options, &app](const std::string& name) {
              options->action = name;
              ShowOnly(app, ActionOf(name));
            },
            actions),
        names)
      ->required();
  app.add_option(
         "FILE", options->names,
         "URL: folder of the versions, a path or an s3:// name; TARGET: "
         "folder of the weights to change; OLD, NEW: checkpoints; OUT: "
         "folder of the version")
      ->required();
  AddFields(app, &Sources(), {"variant"});
  AddThreads(app, *options);
  AddLenient(app, *options);
  AddAllow(app, *options);
  AddOwnOptions(app, *options);
  DescribeOwnOptions(app);
  app.parse_complete_callback([options, &app] { CheckWords(app, *options); });
  return {options, [options] { return RunDelta(*options); }};
}

}  // namespace

extern const Verb kDelta = {
    "delta", "List, check, apply, join, write or remove versions of weights",
    "haulway delta ls s3://bucket/run/\n"
    "haulway delta verify run --base model\n"
    "haulway delta apply local run --base model\n"
    "haulway delta fold run one --from 1 --to 8\n"
    "haulway delta compact run whole --base model\n"
    "haulway delta write model new run/weight_v000001 "
    "--version 1 --base-version 0\n"
    "haulway delta prune s3://bucket/run/ --keep 3",
    AddDelta, true};

}  // namespace haulway::cli
