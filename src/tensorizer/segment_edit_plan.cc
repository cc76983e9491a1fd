#include "tensorizer/segment_edit_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>

#include "base/text.h"
#include "base/thread_pool.h"
#include "decode/sequence_decoder.h"
#include "haulway/machine.h"
#include "tensorizer/segment_notes.h"
#include "tensorizer/tensorizer_name.h"
#include "tensorizer/tensorizer_tree.h"

namespace haulway::tensorizer {

Status SegmentEditPlan::Make(const Reader& reader) {
  HAULWAY_TRY(PlanAppended(reader));
  HAULWAY_TRY(PlanNames(reader));
  return PlanNotes(reader);
}

// Returns the writer's options for the appended tensors.
Result<TensorizerOptions> SegmentEditPlan::WriterOptions(
    const Reader& reader) const {
  TensorizerOptions write;
  write.nonce = options_.nonce;
  write.layout = TensorizerLayout::kSegments;
  if (!reader.preamble().encrypted) return write;
  if (options_.key.empty()) {
    return Status(Code::kAuth, "the file is encrypted, and no key was given");
  }
  if (!options_.key.key.empty()) {
    write.key = options_.key.key;
    return write;
  }
  for (uint32_t row = 0; row < reader.preamble().count; ++row) {
    HAULWAY_ASSIGN(const Reader::Header header, reader.HeaderOf(row, {}));
    if (!header.crypt.derivation.has_value()) continue;
    const KeyDerivation& found = *header.crypt.derivation;
    write.derivation = {found.operations, found.memory_bytes, found.salt};
    break;
  }
  if (!write.derivation.has_value()) {
    write.derivation = NewTensorizerDerivation();
  }
  HAULWAY_ASSIGN(write.key, DeriveTensorizerKey(options_.key.passphrase,
                                                write.derivation->operations,
                                                write.derivation->memory_bytes,
                                                write.derivation->salt));
  return write;
}

Status SegmentEditPlan::PlanAppended(const Reader& reader) {
  if (edit_.append.empty()) return Status();
  HAULWAY_ASSIGN(const TensorizerOptions write, WriterOptions(reader));
  HAULWAY_TRY(CheckSameKey(reader));
  return append_.Plan(edit_.append, write);
}

// Checks that the given key is that of the file, so that the file does not get
// tensors with two keys.
Status SegmentEditPlan::CheckSameKey(const Reader& reader) const {
  const LongVector<StorageInfo>& storages = reader.index().storages;
  std::optional<uint32_t> smallest;
  for (uint32_t row = 0; row < storages.size(); ++row) {
    if (storages[row].encoding == Encoding::kEncrypted &&
        (!smallest.has_value() ||
         storages[row].stored_bytes < storages[*smallest].stored_bytes)) {
      smallest = row;
    }
  }
  if (!smallest.has_value()) return Status();
  const StorageInfo& storage = storages[*smallest];
  HAULWAY_ASSIGN(
      SequenceDecoder decoder,
      SequenceDecoder::Open(reader, *smallest, /*verify=*/false, {}));
  HAULWAY_ASSIGN(const uint64_t unit, decoder.Step(1));
  std::vector<std::byte> bytes(std::min(unit, storage.stored_bytes));
  HAULWAY_TRY(reader.source()->ReadAt(storage.offset, bytes));
  return decoder.Decode(bytes);
}

// Plans the new names, and checks that all names can coexist.
Status SegmentEditPlan::PlanNames(const Reader& reader) {
  const CheckpointIndex& index = reader.index();
  std::unordered_map<std::string_view, uint32_t> rows;
  if (!edit_.rename.empty()) {
    for (const Entry& entry : index.entries) {
      rows.emplace(entry.name, entry.tensor);
    }
  }
  for (const TensorizerRename& rename : edit_.rename) {
    const auto found = rows.find(rename.from);
    if (found == rows.end()) {
      return Status(Code::kNotFound,
                    fmt::format("no tensor {}", Quote(rename.from)));
    }
    Path path;
    for (const TensorizerStep& step : rename.to) {
      path.push_back({step.is_position, step.position, step.key});
    }
    HAULWAY_ASSIGN(std::string name, EncodeName(path));
    const TensorType type = reader.tensor_index().entries[found->second].type;
    if (IsStructured(name) && type != TensorType::kStateDict) {
      return Status(Code::kInvalidArgument,
                    "a path of several steps names a tensor of no state "
                    "dict");
    }
    if (!renamed_.emplace(found->second, std::move(name)).second) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{} is renamed twice", Quote(rename.from)));
    }
  }
  if (append_.empty() && renamed_.empty()) return Status();
  std::vector<IndexEntry> entries(reader.preamble().count +
                                  append_.plans().size());
  for (uint32_t row = 0; row < reader.preamble().count; ++row) {
    const auto found = renamed_.find(row);
    entries[row].name = found != renamed_.end()
                            ? std::string_view(found->second)
                            : reader.tensor_index().entries[row].name;
  }
  for (size_t i = 0; i < append_.plans().size(); ++i) {
    entries[reader.preamble().count + i].name = append_.plans()[i].fields.name;
  }
  TreeArena arena;
  const auto tree = BuildTree(entries, options_.limits, &arena);
  if (tree.ok()) return Status();
  return Status(Code::kInvalidArgument, tree.status().message());
}

Status SegmentEditPlan::PlanNotes(const Reader& reader) {
  if (edit_.set.empty() && edit_.unset.empty()) return Status();
  Notes notes;
  if (reader.index().metadata.has_value()) {
    for (const Fact& fact : *reader.index().metadata) {
      notes.emplace_back(fact.name, std::get<std::string>(fact.value));
    }
  }
  std::erase_if(notes, [&](const auto& note) {
    return std::ranges::find(edit_.unset, note.first) != edit_.unset.end();
  });
  for (const auto& [key, value] : edit_.set) {
    const auto found = std::ranges::find(
        notes, key, &std::pair<std::string, std::string>::first);
    if (found != notes.end()) {
      found->second = value;
    } else {
      notes.emplace_back(key, value);
    }
  }
  HAULWAY_ASSIGN(notes_, EncodeNotes(notes));
  return Status();
}

Result<std::vector<SegmentRow>> SegmentEditPlan::KeptRows(
    const Reader& reader) const {
  std::vector<SegmentRow> rows;
  rows.reserve(reader.preamble().count);
  for (uint32_t row = 0; row < reader.preamble().count; ++row) {
    HAULWAY_ASSIGN(SegmentRow kept, ReadSegmentRow(reader, row));
    rows.push_back(std::move(kept));
  }
  std::vector<uint32_t> renamed;
  for (const auto& [row, name] : renamed_) renamed.push_back(row);
  const int threads = options_.threads > 0 ? options_.threads : UsableCpus();
  HAULWAY_TRY(ParallelFor(renamed.size(), threads, [&](uint64_t i) {
    const uint32_t row = renamed[i];
    return Rename(reader, row, renamed_.at(row), &rows[row]);
  }));
  return rows;
}

}  // namespace haulway::tensorizer
