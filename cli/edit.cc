// Design: all options become one FileEdit, and the files that tensors are taken
// from are opened. Tensors that options name, directly or by a pattern, are
// looked up in the file first, so that a missing one is refused before anything
// is written. Edit() finds the minimal write and describes it in steps, which a
// dry run prints instead of executing.
//
// Alternative not taken: a verb per kind of change would write the file as many
// times.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command.h"
#include "field_options.h"
#include "haulway/convert.h"
#include "haulway/dtype.h"
#include "haulway/nearest.h"
#include "haulway/select.h"
#include "output.h"
#include "progress.h"
#include "values.h"

namespace haulway::cli {
namespace {

struct EditVerbOptions : Options {
  std::vector<std::string> merge, rename, drop, set, unset, set_dtype, replace;
  std::string dtype;
  bool untie = false;
  EditOptions edit;
};

std::string_view NameOf(const Entry& entry) { return entry.name; }

// Splits KEY=VALUE where KEY is the name of a tensor, which may contain '='.
Result<std::pair<std::string, std::string>> SplitName(const Checkpoint& file,
                                                      const std::string& text) {
  for (size_t at = text.find('='); at != text.npos;
       at = text.find('=', at + 1)) {
    const std::string name = text.substr(0, at);
    if (std::ranges::find(file.entries(), name, &Entry::name) !=
        file.entries().end()) {
      return std::pair(name, text.substr(at + 1));
    }
  }
  return Status(
             Code::kNotFound,
             fmt::format("no tensor '{}'{}", SplitPair(text).first,
                         HintOf(SplitPair(text).first, file.entries(), NameOf)))
      .Of(file.source().name());
}

// Returns the tensors that `glob` names or matches.
Result<std::vector<const Entry*>> Matches(const Checkpoint& file,
                                          const std::string& glob) {
  NameOptions wanted;
  wanted.include = {glob};
  HAULWAY_ASSIGN(const NameFilter filter, NameFilter::Make(wanted));
  std::vector<const Entry*> entries;
  for (const Entry& entry : file.entries()) {
    if (entry.name == glob || filter.Matches(entry.name)) {
      entries.push_back(&entry);
    }
  }
  if (!entries.empty()) return entries;
  return Status(Code::kNotFound,
                fmt::format("no tensor '{}'{}", glob,
                            HintOf(glob, file.entries(), NameOf)))
      .Of(file.source().name());
}

Result<DType> DTypeNamed(const std::string& text) {
  const std::optional<DType> dtype = ParseDType(text);
  if (dtype.has_value()) return *dtype;
  return Status(Code::kInvalidArgument, fmt::format("no dtype '{}'", text));
}

// Adds the casts of GLOB=DTYPE. A glob casts only the floating-point tensors
// that it matches; a tensor that is named must be one.
Status AddCasts(const Checkpoint& file, const std::string& text,
                DTypeByName* dtype_of) {
  const size_t at = text.rfind('=');
  const std::string glob = text.substr(0, at);
  HAULWAY_ASSIGN(const DType dtype, DTypeNamed(text.substr(at + 1)));
  HAULWAY_ASSIGN(const auto entries, Matches(file, glob));
  bool any = false;
  for (const Entry* const entry : entries) {
    const TensorInfo& info = file.index().tensors[entry->tensor];
    if (entry->name != glob && !TakesCast(info.dtype)) continue;
    dtype_of->insert_or_assign(std::string(entry->name), dtype);
    any = true;
  }
  if (any) return Status();
  return Status(Code::kNotFound,
                fmt::format("no floating-point tensor '{}'", glob))
      .Of(file.source().name());
}

// Opens another file, without the key, which belongs to the edited file.
Result<std::shared_ptr<const Checkpoint>> OpenOther(
    const std::string& name, const EditVerbOptions& options) {
  HAULWAY_ASSIGN(auto source, OpenInput(name));
  OpenOptions open = options.open;
  open.key = {};
  return OpenCheckpoint(std::move(source), open);
}

Result<FileEdit> EditOf(const EditVerbOptions& options) {
  FileEdit edit;
  const std::string& name = options.files.front();
  const bool is_url = name.find("://") != name.npos;  // Edit() refuses URLs.
  HAULWAY_ASSIGN(auto source, is_url ? OpenInput(name) : OpenFileSource(name));
  OpenOptions open = options.open;
  open.alone = true;
  HAULWAY_ASSIGN(const auto file, OpenCheckpoint(std::move(source), open));
  for (const std::string& text : options.rename) {
    HAULWAY_ASSIGN(auto pair, SplitName(*file, text));
    edit.rename.push_back(std::move(pair));
  }
  for (const std::string& glob : options.drop) {
    HAULWAY_ASSIGN(const auto entries, Matches(*file, glob));
    for (const Entry* const entry : entries) {
      edit.drop.emplace_back(entry->name);
    }
  }
  for (const std::string& text : options.set_dtype) {
    HAULWAY_TRY(AddCasts(*file, text, &edit.dtype_of));
  }
  for (const std::string& text : options.replace) {
    HAULWAY_ASSIGN(auto pair, SplitName(*file, text));
    HAULWAY_ASSIGN(auto from, OpenOther(pair.second, options));
    edit.replace.push_back({std::move(pair.first), std::move(from)});
  }
  for (const std::string& name : options.merge) {
    HAULWAY_ASSIGN(auto from, OpenOther(name, options));
    edit.merge.push_back(std::move(from));
  }
  for (const std::string& text : options.set)
    edit.set.push_back(SplitPair(text));
  edit.unset = options.unset;
  edit.untie = options.untie;
  if (options.dtype.empty()) return edit;
  edit.dtype = ParseDType(options.dtype);
  return edit;
}

void PrintJson(const EditVerbOptions& options, const EditReport& report) {
  Json json;
  json.Begin('{').Key("file").Text(ShownName(options.files.front()));
  json.Key("dry_run").Raw(options.edit.dry_run ? "true" : "false");
  json.Fields(report).End('}').Print();
}

void PrintText(const EditVerbOptions& options, const EditReport& report) {
  const std::string& target =
      options.edit.output.empty() ? options.files.front() : options.edit.output;
  if (options.edit.dry_run) {
    for (const std::string& step : report.steps) {
      fmt::print("{}\n", Escape(step));
    }
  }
  const std::string written = Size(report.written_bytes, options.bytes);
  const std::string copied =
      report.copied_bytes == 0
          ? ""
          : fmt::format(", {} of it copied by the kernel",
                        Size(report.copied_bytes, options.bytes));
  fmt::print("{}: {}; {}{} {}{}\n", Escape(ShownName(target)),
             Counted(report.tensors, "tensor"),
             report.in_place ? "in place, " : "a new file, ", written,
             options.edit.dry_run ? "to write" : "written", copied);
}

int EditFile(const EditVerbOptions& options) {
  const auto run = [&]() -> Status {
    HAULWAY_ASSIGN(const FileEdit edit, EditOf(options));
    EditOptions how = options.edit;
    how.open = options.open;
    how.write.cancel = &interrupted;
    how.write.progress = Progress(options.files.front(), options.no_progress);
    HAULWAY_ASSIGN(const EditReport report,
                   Edit(options.files.front(), edit, how));
    options.json ? PrintJson(options, report) : PrintText(options, report);
    return Status();
  };
  const Status status = run();
  return status.ok() ? kDone : Fail(options, status);
}

Runner AddEdit(CLI::App& app) {
  const auto options = MakeOptions<EditVerbOptions>(app);
  AddBytes(app, *options);
  const auto add_list = [&](const char* name, std::vector<std::string>* list,
                            const char* about) {
    return AddList(app, name, *list, about);
  };
  add_list("--rename", &options->rename, "OLD=NEW: rename a tensor; repeatable")
      ->check(CheckPair);
  add_list("--drop", &options->drop,
           "Remove this tensor, or all that match a glob; repeatable");
  add_list("--replace", &options->replace,
           "TENSOR=FILE: replace a tensor by the one with its name in FILE, or "
           "by the only one; repeatable")
      ->check(CheckPair);
  add_list("--append,--merge", &options->merge,
           "Add all tensors of this checkpoint; repeatable");
  add_list("--set", &options->set,
           "KEY=VALUE: set a metadata entry; repeatable")
      ->check(CheckPair);
  add_list("--unset", &options->unset,
           "KEY: remove a metadata entry; repeatable");
  AddDType(app, &options->dtype);
  add_list("--set-dtype", &options->set_dtype,
           "TENSOR=DTYPE: cast this tensor, or the floating-point tensors that "
           "match a glob, to another dtype; repeatable")
      ->check(CheckPair);
  app.add_flag("--untie", options->untie,
               "Write each of the tensors that share memory in full");
  CLI::Option* const out =
      app.add_option("-o,--out", options->edit.output,
                     "Write a new file and leave the old one unchanged")
          ->check(CheckFileToWrite);
  AddRaw(app, *options);
  AddFields(app, &options->edit);
  app.get_option("--in-place")->excludes(out);
  AddProgress(app, *options);
  AddKey(app, *options);
  AddAllow(app, *options);
  AddFile(app, *options, "A local file");
  return {options, [options] { return EditFile(*options); }};
}

}  // namespace

extern const Verb kEdit = {
    "edit", "Change names, metadata or tensors of a file",
    "haulway edit model.safetensors --set step=1200 --unset draft\n"
    "haulway edit model.pt --drop 'optimizer.*' --rename a.weight=b.weight\n"
    "haulway edit model.tensors --append lora.safetensors --dry-run",
    AddEdit,
    /*cancels=*/true};

}  // namespace haulway::cli
