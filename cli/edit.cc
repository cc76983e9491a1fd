#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command.h"
#include "haulway/load.h"
#include "haulway/tensorizer.h"
#include "haulway/tensorizer_edit.h"
#include "output.h"

namespace haulway::cli {
namespace {

struct EditOptions : Options {
  std::vector<std::string> append, rename, set, unset;
  bool move = false, no_sync = false;
};

// The parts of KEY=VALUE. Requires: there is a '='.
std::pair<std::string, std::string> Split(const std::string& text) {
  const size_t at = text.find('=');
  return {text.substr(0, at), text.substr(at + 1)};
}

// The path for a name: its last step for a tensor of nested containers, so
// many as there are dots if they are as many as it had, else one key.
std::vector<TensorizerStep> PathOf(const std::vector<TensorizerStep>& old,
                                   const std::string& name) {
  const auto step = [&](size_t i, std::string text) {
    TensorizerStep out;
    const char* const end = text.data() + text.size();
    if (i < old.size() && old[i].is_position &&
        std::from_chars(text.data(), end, out.position).ptr == end) {
      out.is_position = true;
    } else {
      out.key = std::move(text);
    }
    return out;
  };
  const size_t dots = static_cast<size_t>(std::ranges::count(name, '.'));
  if (old.size() <= 1 || dots + 1 != old.size()) {
    std::vector<TensorizerStep> path = old;
    if (path.empty()) path.emplace_back();
    path.back() = step(path.size() - 1, name);
    return path;
  }
  std::vector<TensorizerStep> path;
  size_t begin = 0;
  for (size_t i = 0; i <= dots; ++i) {
    const size_t end = std::min(name.find('.', begin), name.size());
    path.push_back(step(i, name.substr(begin, end - begin)));
    begin = end + 1;
  }
  return path;
}

// The tensors of another file, of any format, in memory.
struct Other {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::vector<std::vector<std::byte>> dense;
};

Status AddTensors(const std::string& file, const EditOptions& options,
                  Other* other, std::vector<TensorizerInput>* inputs) {
  HAULWAY_ASSIGN(auto source, OpenInput(file));
  // The key is that of the file that is edited.
  OpenOptions open = options.open;
  open.key = {};
  HAULWAY_ASSIGN(other->checkpoint, Checkpoint::Open(std::move(source), open));
  const Checkpoint& from = *other->checkpoint;
  std::vector<TensorizerTensor> paths;
  if (from.index().format == Format::kTensorizer && !from.index().flat) {
    HAULWAY_ASSIGN(paths, TensorizerTensors(from.reader()));
  }
  for (const Entry& entry : from.entries()) {
    const TensorInfo& tensor = from.index().tensors[entry.tensor];
    TensorizerInput& input = inputs->emplace_back();
    if (!paths.empty()) {
      input.path = paths[entry.tensor].path;
      input.type = paths[entry.tensor].type;
    } else {
      input.path = {{false, 0, std::string(entry.name)}};
    }
    input.dtype = tensor.dtype;
    input.shape.assign(tensor.shape.begin(), tensor.shape.end());
    input.meta = tensor.kind == TensorKind::kMeta;
    if (tensor.conjugate || tensor.negative) {
      return Status(Code::kUnsupported,
                    "tensor is stored conjugated or negated")
          .In(entry.name)
          .Of(file);
    }
    if (input.meta) continue;
    std::vector<std::byte>& bytes = other->dense.emplace_back(tensor.nbytes);
    HAULWAY_TRY(from.Read(tensor, bytes));
    input.bytes = bytes.data();
  }
  return Status();
}

// What OLD=NEW asks of the tensors of a file. Names may hold a '='.
Status AddRename(const Checkpoint& checkpoint,
                 std::span<const TensorizerTensor> paths,
                 const std::string& rename, TensorizerEdit* edit) {
  for (size_t at = rename.find('='); at != rename.npos;
       at = rename.find('=', at + 1)) {
    const auto entry = std::ranges::find(checkpoint.entries(),
                                         rename.substr(0, at), &Entry::name);
    if (entry == checkpoint.entries().end()) continue;
    edit->rename.push_back(
        {std::string(entry->name),
         PathOf(paths[entry->tensor].path, rename.substr(at + 1))});
    return Status();
  }
  return Status(Code::kNotFound,
                fmt::format("no tensor '{}'", Split(rename).first));
}

Status AddRenames(const std::string& file, const EditOptions& options,
                  TensorizerEdit* edit) {
  HAULWAY_ASSIGN(auto source, OpenFileSource(file));
  HAULWAY_ASSIGN(const auto checkpoint,
                 Checkpoint::Open(std::move(source), options.open));
  HAULWAY_ASSIGN(const auto paths, TensorizerTensors(checkpoint->reader()));
  for (const std::string& rename : options.rename) {
    Status status = AddRename(*checkpoint, paths, rename, edit);
    if (!status.ok()) return std::move(status).Of(file);
  }
  return Status();
}

void Print(const EditOptions& options, const TensorizerEdit& edit,
           const TensorizerEditStats& stats) {
  const std::string& file = options.files.front();
  if (!options.json) {
    fmt::print("{}: {} tensors; {} appended, {} renamed, {} written\n",
               Escape(file), stats.tensors, edit.append.size(),
               edit.rename.size(), Size(stats.written_bytes, options.bytes));
    return;
  }
  Json json;
  json.Begin('{').Key("file").Text(file);
  json.Key("tensors").Number(stats.tensors);
  json.Key("appended").Number(edit.append.size());
  json.Key("renamed").Number(edit.rename.size());
  json.Key("written_bytes").Number(stats.written_bytes);
  json.Key("inserted_bytes").Number(stats.inserted_bytes);
  json.Key("moved").Raw(stats.moved ? "true" : "false");
  json.End('}').Print();
}

Status Edit(const EditOptions& options) {
  const std::string& file = options.files.front();
  TensorizerEdit edit;
  std::vector<Other> others(options.append.size());
  for (size_t i = 0; i < options.append.size(); ++i) {
    HAULWAY_TRY(
        AddTensors(options.append[i], options, &others[i], &edit.append));
  }
  if (!options.rename.empty()) HAULWAY_TRY(AddRenames(file, options, &edit));
  for (const std::string& set : options.set) edit.set.push_back(Split(set));
  edit.unset = options.unset;
  TensorizerEditOptions edit_options;
  edit_options.key = options.open.key;
  edit_options.limits = options.open.limits;
  edit_options.threads = options.threads;
  if (options.no_sync) edit_options.durability = Durability::kNone;
  if (options.move) edit_options.room = SegmentRoom::kMove;
  HAULWAY_ASSIGN(const TensorizerEditStats stats,
                 EditTensorizer(file, edit, edit_options));
  Print(options, edit, stats);
  return Status();
}

int EditFile(const EditOptions& options) {
  const Status status = Edit(options);
  return status.ok() ? kDone : Fail(options, status);
}

std::string CheckPair(const std::string& text) {
  const size_t at = text.find('=');
  if (at != text.npos && at != 0) return {};
  return "expected two parts with a '=' between them: " + text;
}

Runner Add(CLI::App& app) {
  const auto options = MakeOptions<EditOptions>(app);
  const auto add_list = [&](const char* name, std::vector<std::string>* list,
                            const char* about) {
    return app.add_option(name, *list, about)->expected(1)->take_all();
  };
  add_list("--append", &options->append,
           "A checkpoint whose tensors to append; repeatable");
  add_list("--rename", &options->rename, "OLD=NEW; repeatable")
      ->check(CheckPair);
  add_list("--set", &options->set, "KEY=VALUE of metadata; repeatable")
      ->check(CheckPair);
  add_list("--unset", &options->unset, "KEY of metadata; repeatable");
  app.add_flag("--move", options->move,
               "Insert no blocks; what others have open stays in place");
  app.add_flag("--no-sync", options->no_sync,
               "Do not wait until the disk has it");
  AddThreads(app, *options);
  AddKey(app, *options);
  AddFile(app, *options);
  return {options, [options] { return EditFile(*options); }};
}

}  // namespace

extern const Verb kEdit = {
    "edit", "Change a tensorizer file in segments in place",
    "haulway edit model.tensors --append lora.safetensors\n"
    "haulway edit model.tensors --rename wte.weight=embed.weight\n"
    "haulway edit model.tensors --set step=1200 --unset draft",
    Add};

}  // namespace haulway::cli
