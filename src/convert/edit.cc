// Design: an edit is a description of the new file's content, as for a
// conversion, with other names, metadata or tensors. Its layout is compared
// with the existing file. If the difference lies in one sector, only that is
// written; otherwise the file is written anew, and the kernel copies the
// tensors.
//
// A header of several sectors is changed in place, with a journal, only on
// request: other readers do not know journals, and after a crash they would
// read half a header, which may even parse. Inserting blocks
// (FALLOC_FL_INSERT_RANGE) before a new header has the same gap between its two
// steps. A zip's new directory could be appended, but until the end record
// after it is written, readers find neither directory.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "base/no_memory.h"
#include "base/text.h"
#include "convert/description.h"
#include "convert/edit_steps.h"
#include "convert/edit_tensorizer.h"
#include "convert/header_journal.h"
#include "convert/leaves.h"
#include "convert/metadata.h"
#include "convert/model_files.h"
#include "convert/object_names.h"
#include "convert/patch.h"
#include "haulway/convert.h"
#include "haulway/folder.h"
#include "haulway/format.h"
#include "haulway/nearest.h"
#include "haulway/open.h"
#include "io/editable_file.h"
#include "io/file_system.h"
#include "safetensors/safetensors_header.h"

namespace haulway {

namespace {

class Editing {
 public:
  Editing(const std::string& path, const FileEdit& edit,
          const EditOptions& options)
      : path_(path),
        edit_(edit),
        options_(options),
        renamed_(edit.rename.begin(), edit.rename.end()),
        dropped_(edit.drop.begin(), edit.drop.end()) {}

  Result<EditReport> Run() {
    const auto is_null = [](const auto& from) { return from == nullptr; };
    if (std::ranges::any_of(edit_.merge, is_null) ||
        std::ranges::any_of(edit_.replace, is_null,
                            &FileEdit::Replacement::from)) {
      return Status(Code::kInvalidArgument, "checkpoint is null");
    }
    if (options_.in_place && !options_.output.empty()) {
      return Status(Code::kInvalidArgument,
                    "an edit in place has no other file to write");
    }
    if (!options_.dry_run) {
      HAULWAY_TRY(convert::UndoInterruptedEdit(path_, options_.durability));
    }
    if (!options_.dry_run && options_.output.empty()) {
      HAULWAY_ASSIGN(locked_, EditableFile::Open(path_, options_.durability));
    }
    // A PyTorch file's storages are written from the mapping.
    HAULWAY_ASSIGN(auto source, OpenMmapSource(path_));
    OpenOptions open = options_.open;
    open.alone = true;  // An edit changes one file.
    HAULWAY_ASSIGN(file_, Checkpoint::Open(std::move(source), open));
    HAULWAY_TRY(CheckNames());
    std::vector<std::string> steps = convert::StepsOf(*file_, edit_);
    HAULWAY_ASSIGN(EditReport report, Change());
    report.steps = std::move(steps);
    return report;
  }

 private:
  Result<EditReport> Change() {
    if (convert::TakesSegments(*file_, edit_) && options_.output.empty()) {
      locked_.reset();  // EditSegments() locks the file itself.
      return convert::EditSegments(std::move(file_), path_, edit_, options_);
    }
    if (!file_->index().parts.empty()) {
      return Status(Code::kUnsupported,
                    "a checkpoint of several files: edit them one by one");
    }
    const FormatEntry& format = EntryOf(file_->index().format);
    if (format.lay_out == nullptr) {
      return Status(
          Code::kUnsupported,
          fmt::format("files of the format {} are only read", format.name));
    }
    if (!options_.output.empty()) {
      HAULWAY_TRY(CheckEnding(options_.output, format.id));
    }
    if (format.id == Format::kTorch && ChangesOnlyNames()) {
      if (ChangesNothing()) return Unchanged();
      return EditObject(format);
    }
    if (format.id == Format::kTensorizer) {
      HAULWAY_ASSIGN(const auto made,
                     convert::LayOutEdited(*file_, edit_, options_));
      tensors_ = made.inputs.size();
      return WriteAnew(*made.layout);
    }
    HAULWAY_ASSIGN(TensorsToWrite all, Describe());
    return Write(std::move(all));
  }

  // The path of the new file, if one is written.
  const std::string& target() const {
    return options_.output.empty() ? path_ : options_.output;
  }

  Format format() const { return file_->index().format; }

  bool ChangesOnlyNames() const {
    return !edit_.dtype.has_value() && edit_.dtype_of.empty() &&
           edit_.replace.empty() && edit_.merge.empty() && !edit_.untie;
  }

  // Requires: ChangesOnlyNames().
  bool ChangesNothing() const {
    return options_.output.empty() && edit_.rename.empty() &&
           edit_.drop.empty() && edit_.set.empty() && edit_.unset.empty();
  }

  EditReport Unchanged() const {
    EditReport report;
    report.tensors = file_->entries().size();
    report.in_place = true;
    return report;
  }

  // Renames and drops tensors, and leaves the rest of the object unchanged.
  Result<EditReport> EditObject(const FormatEntry& format) {
    HAULWAY_TRY(RefuseMetadata(format));
    tensors_ = file_->entries().size() - dropped_.size();
    RepackOptions repack;
    repack.archive.threads = options_.write.threads;
    HAULWAY_ASSIGN(repack.archive.archive_name, ArchiveNameOf(target()));
    HAULWAY_ASSIGN(
        const Repacked made,
        convert::RepackWithNames(*file_, repack, {edit_.rename, edit_.drop}));
    return WriteAnew(*made.layout);
  }

  Status CheckNames() const {
    std::set<std::string_view> names;
    const auto named = convert::NameTensors(file_->index());
    HAULWAY_TRY(convert::Casts(edit_).Check(file_->index()));
    for (const convert::NamedTensor& tensor : named) names.insert(tensor.name);
    const auto check = [&](const std::string& name) -> Status {
      if (names.contains(name)) return Status();
      return Status(Code::kNotFound,
                    fmt::format("no tensor {}{}", Quote(name),
                                HintOf(name, names, std::identity())));
    };
    for (const auto& [from, to] : edit_.rename) HAULWAY_TRY(check(from));
    for (const std::string& name : edit_.drop) HAULWAY_TRY(check(name));
    for (const auto& one : edit_.replace) HAULWAY_TRY(check(one.name));
    return CheckContradictions();
  }

  // Fails if only one of two changes could be made.
  Status CheckContradictions() const {
    std::map<std::string_view, std::string_view> done;
    const auto note = [&](std::string_view name,
                          std::string_view what) -> Status {
      const auto [first, is_new] = done.emplace(name, what);
      if (is_new) return Status();
      return Status(Code::kInvalidArgument,
                    first->second == what
                        ? fmt::format("{} is {} twice", Quote(name), what)
                        : fmt::format("{} is {} and {}", Quote(name),
                                      first->second, what));
    };
    for (const std::string_view name : dropped_) {
      HAULWAY_TRY(note(name, "dropped"));
    }
    const auto dropped = done;
    for (const auto& [from, to] : edit_.rename) {
      HAULWAY_TRY(note(from, "renamed"));
    }
    done = dropped;  // A tensor may be renamed and replaced.
    for (const auto& one : edit_.replace) {
      HAULWAY_TRY(note(one.name, "replaced"));
    }
    done.clear();
    for (const std::string& key :
         std::set(edit_.unset.begin(), edit_.unset.end())) {
      HAULWAY_TRY(note(key, "unset"));
    }
    for (const auto& [key, value] : edit_.set) HAULWAY_TRY(note(key, "set"));
    return Status();
  }

  // Describes the new content of the file.
  Result<TensorsToWrite> Describe() {
    ConvertOptions options;
    options.dtype = edit_.dtype;
    options.dtype_of = edit_.dtype_of;
    options.ties = edit_.untie ? Ties::kCopy : Ties::kKeep;
    std::set<std::string_view> gone = dropped_;
    for (const auto& one : edit_.replace) gone.insert(one.name);
    options.select = [&](std::string_view name) {
      return !gone.contains(name);
    };
    options.rename = {{[&](std::string_view name) { return NewName(name); }}};
    source_ = convert::SourceOptionsFor(options_.write, /*verify=*/true);
    HAULWAY_ASSIGN(
        convert::Description made,
        convert::DescribeTensors(*file_, format(), options, source_));
    if (!made.left_out.empty()) {
      const LeftOut& left = made.left_out.front();
      return Status(Code::kUnsupported,
                    fmt::format("the file would lose {}: {}", Quote(left.name),
                                left.why));
    }
    HAULWAY_TRY(RefuseNested());
    TensorsToWrite all = std::move(made.what);
    if (!file_->index().flat) all.like = file_->index().root;
    HAULWAY_TRY(Replace(&all));
    HAULWAY_TRY(Merge(&all));
    HAULWAY_TRY(EditMetadata(&all));
    return all;
  }

  // Refuses to edit an object other than a dict of tensors, because it would be
  // written as one.
  Status RefuseNested() const {
    const CheckpointIndex& index = file_->index();
    if (index.flat || IsDictOfTensors(index)) return Status();
    if (format() == Format::kTorch) {
      return Status(Code::kUnsupported,
                    "the file holds an object other than a dict of tensors: "
                    "only its names can be edited");
    }
    if (edit_.rename.empty()) return Status();
    return Status(Code::kUnsupported,
                  fmt::format("the array of an {} file has no name",
                              EntryOf(format()).name));
  }

  // Returns whether the object is a dict, possibly with attributes, whose
  // values are all the tensors.
  static bool IsDictOfTensors(const CheckpointIndex& index) {
    const Value& root = index.root;
    if (!root.is(Kind::kDict) && !root.is(Kind::kOrderedDict)) return false;
    const auto items = root.mapping().items();
    return items.size() == index.entries.size() &&
           std::ranges::all_of(items, [](const MappingItem& item) {
             return item.value.is(Kind::kObject) &&
                    item.value.object().tensor != Object::kNoTensor;
           });
  }

  std::string NewName(std::string_view name) const {
    const auto found = renamed_.find(name);
    return std::string(found == renamed_.end() ? name : found->second);
  }

  // Adds tensors of another file as copies. `options` selects and renames them.
  Status Take(const Checkpoint& from, ConvertOptions options,
              TensorsToWrite* all) const {
    options.dtype = edit_.dtype;
    options.ties = Ties::kCopy;
    auto made = convert::DescribeTensors(from, format(), options, source_);
    if (!made.ok()) return std::move(made).status().Of(from.source().name());
    std::ranges::move(made->what.tensors, std::back_inserter(all->tensors));
    return Status();
  }

  Status Replace(TensorsToWrite* all) const {
    for (const auto& one : edit_.replace) {
      const auto row = convert::RowOf(one.from->index(), one.name);
      if (!row.ok()) return Status(row.status()).Of(one.from->source().name());
      const bool is_only = one.from->entries().size() == 1;
      ConvertOptions options;
      options.select = [&](std::string_view name) {
        return is_only || name == one.name;
      };
      options.rename = {{[&](std::string_view) { return NewName(one.name); }}};
      const auto cast = edit_.dtype_of.find(one.name);
      if (cast != edit_.dtype_of.end()) {
        options.dtype_of.emplace(
            is_only ? one.from->entries().front().name : one.name,
            cast->second);
      }
      HAULWAY_TRY(Take(*one.from, std::move(options), all));
    }
    return Status();
  }

  Status Merge(TensorsToWrite* all) const {
    for (const auto& other : edit_.merge) HAULWAY_TRY(Take(*other, {}, all));
    return Status();
  }

  Status RefuseMetadata(const FormatEntry& format) const {
    if (edit_.set.empty() && edit_.unset.empty()) return Status();
    return Status(
        Code::kUnsupported,
        fmt::format("the format {} has no room for metadata", format.name));
  }

  Status EditMetadata(TensorsToWrite* all) const {
    const FormatEntry& format = EntryOf(this->format());
    if (!format.can.values && !format.can.metadata) {
      return RefuseMetadata(format);
    }
    if (format.can.values) return EditValues(&all->values);
    if (!all->metadata.has_value() && edit_.set.empty()) return Status();
    std::vector<std::pair<std::string, std::string>> pairs;
    if (all->metadata.has_value()) pairs = *std::move(all->metadata);
    convert::EditPairs(edit_, &pairs);
    all->metadata = std::move(pairs);
    return Status();
  }

  Status EditValues(std::vector<Fact>* values) const {
    for (const std::string& key : edit_.unset) {
      std::erase_if(*values,
                    [&](const Fact& fact) { return fact.name == key; });
    }
    for (const auto& [key, text] : edit_.set) {
      const auto at = std::ranges::find(*values, key, &Fact::name);
      if (at == values->end()) {
        values->push_back({key, FactValue(text)});
        continue;
      }
      auto value = convert::ValueLike(at->value, text);
      if (!value.ok()) return std::move(value).status().In(Quote(key));
      at->value = *std::move(value);
    }
    return Status();
  }

  Result<EditReport> Write(TensorsToWrite all) {
    tensors_ = all.tensors.size();
    SaveOptions save = HowToSave();
    const std::optional<uint64_t> begin = DataBegin();
    const bool has_room = format() == Format::kSafetensors;
    // A header as long as the old one, before tensors that do not move.
    all.in_order = has_room && begin.has_value();
    if (all.in_order) save.alignment = *begin;
    HAULWAY_ASSIGN(auto layout, LayOut(all, format(), save));
    if (options_.output.empty()) {
      HAULWAY_ASSIGN(const auto patch,
                     convert::PatchOf(*layout, file_->source()));
      if (patch.has_value() && (patch->is_atomic() || options_.in_place)) {
        return WritePatch(*patch);
      }
    }
    if (has_room) {
      all.in_order = false;
      save.alignment = safetensors::kRoomyAlignment;
      HAULWAY_ASSIGN(layout, LayOut(std::move(all), format(), save));
    }
    return WriteAnew(*layout);
  }

  // Returns whether tensors of the new file are read from this file.
  bool IsRead(const std::string& path) const {
    const auto reads = [&](const std::shared_ptr<const Checkpoint>& from) {
      return convert::IsFileOf(*from, path);
    };
    return reads(file_) || std::ranges::any_of(edit_.merge, reads) ||
           std::ranges::any_of(
               edit_.replace, [&](const auto& one) { return reads(one.from); });
  }

  SaveOptions HowToSave() const {
    SaveOptions save;
    save.write = options_.write;
    save.key = options_.open.key;
    save.path = target();
    return save;
  }

  // Returns where the first tensor begins.
  std::optional<uint64_t> DataBegin() const {
    std::optional<uint64_t> begin;
    for (const StorageInfo& storage : file_->index().storages) {
      if (storage.stored_bytes == 0) continue;
      begin = std::min(begin.value_or(storage.offset), storage.offset);
    }
    return begin;
  }

  Result<EditReport> WritePatch(const convert::Patch& patch) {
    EditReport report;
    report.tensors = tensors_;
    report.in_place = true;
    report.written_bytes = patch.bytes.size();
    if (options_.dry_run || patch.bytes.empty()) return report;
    if (patch.is_atomic()) {
      HAULWAY_TRY(locked_->WriteAt(patch.offset, patch.bytes));
      HAULWAY_TRY(locked_->Flush());
      return report;
    }
    const convert::HeaderJournal journal(path_, options_.durability);
    HAULWAY_TRY(journal.Save({patch.offset, patch.before, patch.bytes}));
    Status status = locked_->WriteAt(patch.offset, patch.bytes);
    if (status.ok()) status = locked_->Flush();
    if (!status.ok()) {
      // If this fails too, the next edit restores the header.
      (void)journal.PutBack(locked_.get());
      return status;
    }
    HAULWAY_TRY(journal.Remove());
    return report;
  }

  Result<EditReport> WriteAnew(const Layout& layout) {
    if (options_.in_place) {
      return Status(Code::kUnsupported,
                    "the change cannot be made in place: tensors would move, "
                    "or the header needs more room than there is");
    }
    EditReport report;
    report.tensors = tensors_;
    report.written_bytes = layout.size();
    const bool is_copied = convert::IsCopied(layout);
    if (options_.dry_run) {
      for (const Payload& payload : layout.payloads()) {
        if (is_copied) report.copied_bytes += payload.length;
      }
      return report;
    }
    FileSinkOptions sink_options;
    sink_options.durability = options_.durability;
    if (is_copied) sink_options.direct = false;
    sink_options.is_read = IsRead(target());
    HAULWAY_ASSIGN(const auto sink, OpenFileSink(target(), sink_options));
    HAULWAY_ASSIGN(const WriteStats stats,
                   haulway::Write(layout, *sink, options_.write));
    report.written_bytes = stats.written_bytes;
    report.copied_bytes = stats.copied_bytes;
    return report;
  }

  const std::string& path_;
  const FileEdit& edit_;
  const EditOptions& options_;
  const std::map<std::string_view, std::string_view> renamed_;
  const std::set<std::string_view> dropped_;
  std::shared_ptr<const Checkpoint> file_;
  // Locked until a new file replaces it.
  std::unique_ptr<EditableFile> locked_;
  convert::SourceOptions source_;
  uint64_t tensors_ = 0;
};

}  // namespace

Result<EditReport> Edit(const std::string& path, const FileEdit& edit,
                        const EditOptions& options) {
  const auto local = LocalPath(path);
  if (!local.has_value()) {
    return Status(
        Code::kUnsupported,
        fmt::format("{} is not a local file: only local files can be edited",
                    Quote(ShownName(path))));
  }
  EditOptions with_path = options;
  if (!options.output.empty()) {
    const auto output = LocalPath(options.output);
    if (!output.has_value()) {
      return Status(Code::kUnsupported,
                    fmt::format("{} is not a local file: an edit writes only "
                                "local files",
                                Quote(ShownName(options.output))));
    }
    with_path.output = *output;
  } else if (!options.in_place) {
    // The file must not change, as other links lead to it. The new file takes
    // the place of this link.
    HAULWAY_ASSIGN(const FinalName name, FollowLinks(*local));
    if (name.path != *local && IsNamedByHash(name.path)) {
      with_path.output = *local;
    }
  }
  auto report =
      OrNoMemory([&] { return Editing(*local, edit, with_path).Run(); });
  if (!report.ok()) return std::move(report).status().Of(path);
  return report;
}

}  // namespace haulway
