// Design: files in segments are edited in place. Other files, and edits that
// segments do not support, are laid out anew with the path, kind and module
// number of each tensor, which a conversion would lose.
//
// Tensors added to segments are held in memory, because their digests are
// written before the bytes. A file that is written anew is read piece by piece.

#include "convert/edit_tensorizer.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "convert/description.h"
#include "convert/encrypt.h"
#include "convert/leaves.h"
#include "convert/metadata.h"
#include "convert/tensor_source.h"
#include "haulway/tensorizer.h"
#include "tensorizer/tensorizer_reader.h"
#include "tensorizer/tensorizer_save.h"

namespace haulway::convert {

namespace {

// Returns the path for a new name of a tensor. If the tensor is nested and the
// name has as many parts as the old path, each part is a step; otherwise the
// name replaces the last step.
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

// A Gathering collects the tensors to write, as a writer takes them. It must
// outlive the writer.
class Gathering {
 public:
  Gathering(const FileEdit& edit, const EditOptions& options)
      : edit_(edit),
        source_(SourceOptionsFor(options.write, /*verify=*/true)) {}

  // Adds the tensors that the edited file keeps.
  Status AddKept(const Checkpoint& file) {
    const std::set<std::string_view> dropped(edit_.drop.begin(),
                                             edit_.drop.end());
    const std::map<std::string_view, std::string_view> renamed(
        edit_.rename.begin(), edit_.rename.end());
    std::map<std::string_view, const Checkpoint*> replaced;
    for (const auto& one : edit_.replace) {
      replaced.emplace(one.name, one.from.get());
    }
    HAULWAY_ASSIGN(const auto paths, TensorizerTensors(file.reader()));
    std::vector<uint32_t> rows(file.index().tensors.size());
    std::iota(rows.begin(), rows.end(), 0);
    HAULWAY_ASSIGN(const auto headers,
                   ReadTensorizerHeaders(file.reader(), rows));
    for (const auto& [name, row] : NameTensors(file.index())) {
      if (dropped.contains(name)) continue;
      TensorizerInput input;
      input.path = paths[row].path;
      input.type = paths[row].type;
      input.module_index = headers[row].module_index;
      const auto new_name = renamed.find(name);
      if (new_name != renamed.end()) {
        input.path = PathOf(input.path, std::string(new_name->second));
      }
      const auto other = replaced.find(name);
      if (other == replaced.end()) {
        HAULWAY_TRY(Add(file, row, name, std::move(input)));
      } else {
        HAULWAY_ASSIGN(const uint32_t at, RowOf(other->second->index(), name));
        HAULWAY_TRY(Add(*other->second, at, name, std::move(input)));
      }
    }
    return Status();
  }

  // Adds the tensors of other files of any format. Tensors of nested containers
  // keep their paths.
  Status AddMerged() {
    for (const auto& other : edit_.merge) {
      Status status = AddAll(*other);
      if (!status.ok()) return std::move(status).Of(other->source().name());
    }
    return Status();
  }

  // Returns the collected tensors, without a layout.
  RewrittenTensorizer Take() { return std::move(made_); }

 private:
  Status AddAll(const Checkpoint& from) {
    const CheckpointIndex& index = from.index();
    std::vector<TensorizerTensor> paths;
    if (index.format == Format::kTensorizer && !index.flat) {
      HAULWAY_ASSIGN(paths, TensorizerTensors(from.reader()));
    }
    const Leaves leaves = FindLeaves(index);
    for (const Entry& entry : index.entries) {
      HAULWAY_TRY(CheckWhole(leaves, entry.name));
    }
    for (const auto& [name, row] : NameTensors(index)) {
      HAULWAY_TRY(Casts(edit_).CheckScales(std::nullopt, from, row));
      TensorizerInput input;
      if (paths.empty()) {
        input.path = {{false, 0, std::string(name)}};
      } else {
        input.path = paths[row].path;
        input.type = paths[row].type;
      }
      Status status = Add(from, row, std::nullopt, std::move(input));
      if (!status.ok()) return std::move(status).In(Quote(name));
    }
    return Status();
  }

  // `name` is the name in the edited file, if the tensor is there.
  Status Add(const Checkpoint& from, uint32_t row,
             std::optional<std::string_view> name, TensorizerInput input) {
    const TensorInfo& info = from.index().tensors[row];
    HAULWAY_ASSIGN(input.dtype, Casts(edit_).To(name, from, row));
    input.shape.assign(info.shape.begin(), info.shape.end());
    input.meta = info.kind == TensorKind::kMeta;
    BytesToWrite elements;
    if (!input.meta) {
      HAULWAY_TRY(CheckElements(from.index(), info));
      elements = ElementsOf(from, row, input.dtype, source_);
    }
    input.source = elements.source.get();
    input.source_offset = elements.source_offset;
    made_.inputs.push_back(std::move(input));
    made_.bytes.push_back(std::move(elements));
    return Status();
  }

  const FileEdit& edit_;
  const SourceOptions source_;
  RewrittenTensorizer made_;
};

Status EditMetadata(const FileEdit& edit, TensorizerOptions* layout) {
  if (edit.set.empty() && edit.unset.empty()) return Status();
  if (layout->layout == TensorizerLayout::kInterleaved) {
    return Status(Code::kUnsupported,
                  "only files in segments have room for metadata");
  }
  EditPairs(edit, &layout->metadata);
  return Status();
}

}  // namespace

bool TakesSegments(const Checkpoint& file, const FileEdit& edit) {
  const tensorizer::Reader* const reader =
      tensorizer::Reader::Of(file.reader());
  return reader != nullptr &&
         reader->preamble().layout == tensorizer::Layout::kSegments &&
         edit.drop.empty() && edit.replace.empty() && !edit.dtype.has_value() &&
         edit.dtype_of.empty() && !edit.untie;
}

Result<EditReport> EditSegments(std::shared_ptr<const Checkpoint> file,
                                const std::string& path, const FileEdit& edit,
                                const EditOptions& options) {
  Gathering merged(edit, options);
  HAULWAY_TRY(merged.AddMerged());
  RewrittenTensorizer added = merged.Take();
  EditReport report;
  report.in_place = true;
  if (options.dry_run) {
    report.tensors = file->entries().size() + added.inputs.size();
    for (const BytesToWrite& bytes : added.bytes) {
      report.written_bytes += bytes.length;
    }
    return report;
  }
  std::vector<std::vector<std::byte>> memory;
  for (size_t i = 0; i < added.inputs.size(); ++i) {
    const BytesToWrite& from = added.bytes[i];
    if (from.source == nullptr) continue;
    std::vector<std::byte>& bytes = memory.emplace_back(from.length);
    HAULWAY_TRY(from.source->ReadAt(from.source_offset, bytes));
    added.inputs[i].bytes = bytes.data();
    added.inputs[i].source = nullptr;
  }
  TensorizerEdit inner;
  inner.append = std::move(added.inputs);
  if (!edit.rename.empty()) {
    const std::map<std::string_view, std::string_view> renamed(
        edit.rename.begin(), edit.rename.end());
    HAULWAY_ASSIGN(const auto paths, TensorizerTensors(file->reader()));
    const std::vector<NamedTensor> named = NameTensors(file->index());
    for (size_t i = 0; i < named.size(); ++i) {
      const auto to = renamed.find(named[i].name);
      if (to == renamed.end()) continue;
      inner.rename.push_back(
          {std::string(file->entries()[i].name),
           PathOf(paths[named[i].tensor].path, std::string(to->second))});
    }
  }
  inner.set = edit.set;
  inner.unset = edit.unset;
  TensorizerEditOptions how;
  how.key = options.open.key;
  how.limits = options.open.limits;
  how.threads = options.write.threads;
  how.durability = options.durability;
  how.room = options.room;
  file.reset();  // Blocks are not inserted while the file is mapped.
  HAULWAY_ASSIGN(const TensorizerEditStats stats,
                 EditTensorizer(path, inner, how));
  report.tensors = stats.tensors;
  report.written_bytes = stats.written_bytes;
  report.inserted_bytes = stats.inserted_bytes;
  report.moved = stats.moved;
  return report;
}

Result<RewrittenTensorizer> LayOutEdited(const Checkpoint& file,
                                         const FileEdit& edit,
                                         const EditOptions& options) {
  TensorizerOptions layout =
      LayoutOf(file, *tensorizer::Reader::Of(file.reader()));
  HAULWAY_TRY(tensorizer::SetKey(options.open.key, &layout));
  HAULWAY_TRY(EditMetadata(edit, &layout));
  Gathering all(edit, options);
  HAULWAY_TRY(all.AddKept(file));
  HAULWAY_TRY(all.AddMerged());
  RewrittenTensorizer made = all.Take();
  HAULWAY_ASSIGN(made.layout, LayOutTensorizer(made.inputs, layout));
  return made;
}

}  // namespace haulway::convert
