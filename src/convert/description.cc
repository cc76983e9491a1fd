// Design: tensors are selected row by row. Tensors that share memory are
// handled in groups of overlapping ranges of one storage. Then each tensor
// becomes a range of a source, which is read when it is written.
//
// Tried instead: separate code for converting and editing. The two refused
// different inputs. This code serves both: an edit is a conversion to the
// file's own format.

#include "convert/description.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "convert/leaves.h"
#include "convert/metadata.h"
#include "decode/encoding_traits.h"
#include "haulway/nearest.h"
#include "tensor/dtype_kind.h"
#include "tensor/strided.h"

namespace haulway::convert {

namespace {

class Describing {
 public:
  Describing(const Checkpoint& from, Format to, const ConvertOptions& options,
             const SourceOptions& source)
      : from_(from),
        index_(from.index()),
        to_(to),
        options_(options),
        source_(source),
        sources_(from, source) {}

  Result<Description> Run() {
    HAULWAY_TRY(ChooseRows());
    HAULWAY_TRY(SettleTies());
    HAULWAY_TRY(CheckWhatIsReadInParts());
    HAULWAY_ASSIGN(made_.what, Describe());
    return std::move(made_);
  }

 private:
  Status ChooseRows() {
    HAULWAY_TRY(Casts(options_).Check(index_));
    HAULWAY_TRY(CheckMetadata(options_.metadata, to_));
    const Leaves leaves = FindLeaves(index_);
    HAULWAY_TRY(CheckPatterns(leaves));
    for (const OtherLeaf& other : leaves.others) {
      if (IsWanted(other.name)) made_.left_out.push_back(other.left_out());
    }
    const std::map<std::string_view, std::string_view> keys(leaves.keys.begin(),
                                                            leaves.keys.end());
    made_.rows.reserve(index_.entries.size());
    for (const Entry& entry : index_.entries) {
      const auto key = keys.find(entry.name);
      const std::string_view name =
          key == keys.end() ? entry.name : key->second;
      if (!IsWanted(name)) continue;
      HAULWAY_TRY(CheckWhole(leaves, entry.name));
      HAULWAY_TRY(Casts(options_).CheckScales(name, from_, entry.tensor));
      Row row{.name = std::string(name), .tensor = entry.tensor};
      Rename(&row.name);
      Status status = Prepare(name, &row);
      if (!status.ok()) return std::move(status).In(Quote(name));
      made_.rows.push_back(std::move(row));
    }
    return CheckRules();
  }

  bool IsWanted(std::string_view name) const {
    return (options_.names == nullptr || options_.names->Matches(name)) &&
           (!options_.select || options_.select(name));
  }

  // A pattern that matches nothing is an error of the caller.
  Status CheckPatterns(const Leaves& leaves) const {
    if (options_.names == nullptr) return Status();
    const std::vector<NamedTensor> tensors = NameTensors(index_);
    std::vector<std::string_view> names;
    for (const NamedTensor& tensor : tensors) names.push_back(tensor.name);
    for (const OtherLeaf& other : leaves.others) names.push_back(other.name);
    return options_.names->CheckUsed(names);
  }

  void Rename(std::string* name) {
    used_rules_.resize(options_.rename.size());
    for (size_t i = 0; i < options_.rename.size(); ++i) {
      std::string renamed = options_.rename[i].apply(*name);
      if (renamed != *name) used_rules_[i] = true;
      *name = std::move(renamed);
    }
  }

  // A rename rule that changes nothing is an error too.
  Status CheckRules() const {
    for (size_t i = 0; i < options_.rename.size(); ++i) {
      const std::string& pattern = options_.rename[i].pattern;
      const bool is_used = i < used_rules_.size() && used_rules_[i];
      if (is_used || pattern.empty()) continue;
      return Status(Code::kNotFound,
                    fmt::format("rename {} changes no name", Quote(pattern)));
    }
    return Status();
  }

  // `name` is the name in the old file.
  Status Prepare(std::string_view name, Row* row) const {
    const TensorInfo& info = index_.tensors[row->tensor];
    if (info.kind == TensorKind::kMeta) {
      return Status(Code::kUnsupported,
                    "a meta tensor, which has no data: leave it out");
    }
    if (IsQuantized(info.dtype)) {
      return Status(Code::kUnsupported,
                    "a quantized tensor, whose scale cannot be converted: "
                    "leave it out");
    }
    HAULWAY_TRY(CheckElements(index_, info));
    HAULWAY_ASSIGN(row->to, Casts(options_).To(name, from_, row->tensor));
    const uint64_t item = ItemBytes(info.dtype);
    row->bytes = info.nbytes / item * ItemBytes(row->to);
    if (info.nbytes == 0) return Status();
    row->begin = info.storage_offset * item;
    row->end =
        row->begin + ElementExtent(info.shape, info.strides).value_or(0) * item;
    return Status();
  }

  const TensorInfo& InfoOf(const Row& row) const {
    return index_.tensors[row.tensor];
  }

  // Returns whether both rows have the same elements, before and after the
  // cast.
  bool IsSame(const Row& a, const Row& b) const {
    const TensorInfo& x = InfoOf(a);
    const TensorInfo& y = InfoOf(b);
    return a.to == b.to && x.storage == y.storage && x.dtype == y.dtype &&
           x.storage_offset == y.storage_offset &&
           std::ranges::equal(x.shape, y.shape) &&
           std::ranges::equal(x.strides, y.strides) &&
           x.conjugate == y.conjugate && x.negative == y.negative;
  }

  // Returns groups of at least two rows whose ranges in one storage overlap.
  std::vector<std::vector<uint32_t>> Groups() const {
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < made_.rows.size(); ++i) {
      if (made_.rows[i].end != made_.rows[i].begin) order.push_back(i);
    }
    std::ranges::stable_sort(order, {}, [&](uint32_t i) {
      return std::pair(InfoOf(made_.rows[i]).storage, made_.rows[i].begin);
    });
    std::vector<std::vector<uint32_t>> groups;
    uint64_t end = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const Row& row = made_.rows[order[i]];
      const bool joins =
          i != 0 &&
          InfoOf(row).storage == InfoOf(made_.rows[order[i - 1]]).storage &&
          row.begin < end;
      if (!joins) {
        groups.emplace_back();
        end = 0;
      }
      groups.back().push_back(order[i]);
      end = std::max(end, row.end);
    }
    std::erase_if(groups, [](const auto& group) { return group.size() < 2; });
    return groups;
  }

  Status SettleTies() {
    const bool can_keep = EntryOf(to_).can.views;
    keeps_ = can_keep && (options_.ties == Ties::kKeep);
    if (keeps_) return CheckKept();
    std::vector<bool> dropped(made_.rows.size());
    for (std::vector<uint32_t>& group : Groups()) {
      std::ranges::sort(group, {},
                        [&](uint32_t i) { return made_.rows[i].name; });
      const Row& first = made_.rows[group.front()];
      if (options_.ties == Ties::kKeep || options_.ties == Ties::kError) {
        return Refuse(group);
      }
      std::vector<uint32_t> kept = {group.front()};
      for (const uint32_t i : std::span(group).subspan(1)) {
        const auto same = std::ranges::find_if(kept, [&](uint32_t k) {
          return IsSame(made_.rows[k], made_.rows[i]);
        });
        if (options_.ties == Ties::kCopy) {
          made_.ties.push_back({made_.rows[i].name, first.name, false});
          continue;
        }
        if (same == kept.end()) {
          return Status(
              Code::kUnsupported,
              fmt::format("{} and {} share memory and are not the same "
                          "tensor, so that neither can be dropped: copy them",
                          Quote(first.name), Quote(made_.rows[i].name)));
        }
        dropped[i] = true;
        made_.ties.push_back(
            {made_.rows[i].name, made_.rows[*same].name, true});
      }
    }
    size_t number = 0;
    std::erase_if(made_.rows, [&](const Row&) { return dropped[number++]; });
    return Status();
  }

  Status Refuse(std::span<const uint32_t> group) const {
    std::string names;
    for (const uint32_t i : group) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ",
                           Quote(made_.rows[i].name));
    }
    if (options_.ties == Ties::kError) {
      return Status(Code::kUnsupported,
                    fmt::format("tensors share memory: {}", names));
    }
    return Status(Code::kUnsupported,
                  fmt::format("tensors share memory, which {} files cannot "
                              "express: {}: choose ties: drop or copy",
                              Name(to_), names));
  }

  // Fails for storages with several tensors that the format cannot express.
  Status CheckKept() const {
    for (const std::vector<uint32_t>& group : Groups()) {
      const DType to = made_.rows[group.front()].to;
      const TensorInfo& first = InfoOf(made_.rows[group.front()]);
      for (const uint32_t i : group) {
        const TensorInfo& info = InfoOf(made_.rows[i]);
        if (info.dtype != first.dtype || made_.rows[i].to != to ||
            info.conjugate || info.negative) {
          return Status(
              Code::kUnsupported,
              fmt::format("{} and {} share memory as different numbers, which "
                          "{} files cannot express: copy them",
                          Quote(made_.rows[group.front()].name),
                          Quote(made_.rows[i].name), Name(to_)));
        }
      }
    }
    return Status();
  }

  // Checks the storages that are read in parts: their digests cannot be checked
  // while converting.
  Status CheckWhatIsReadInParts() const {
    if (!options_.verify) return Status();
    std::vector<bool> in_parts(index_.storages.size());
    std::vector<bool> whole(index_.storages.size());
    for (const Row& row : made_.rows) {
      const TensorInfo& info = InfoOf(row);
      if (info.nbytes == 0) continue;
      const StorageInfo& storage = index_.storages[info.storage];
      // Encrypted or compressed data is checked when it is decoded.
      const bool is_whole = !TraitsOf(storage).is_raw ||
                            (row.begin == 0 && row.end == storage.nbytes &&
                             IsContiguous(info.shape, info.strides));
      (is_whole ? whole : in_parts)[info.storage] = true;
    }
    std::vector<uint32_t> rows;
    for (uint32_t row = 0; row < whole.size(); ++row) {
      if (in_parts[row] && !whole[row]) rows.push_back(row);
    }
    return CheckStorages(from_, rows, source_);
  }

  // How each storage is written, for formats that have views.
  struct Kept {
    uint32_t number = 0;  // Row of TensorsToWrite::storages.
    DType dtype = DType::kU8;
    DType to = DType::kU8;
    uint64_t begin = UINT64_MAX;  // Byte range in the old storage.
    uint64_t end = 0;             // 0: no tensor needs it.
    bool partly_chosen = false;
    bool is_mixed = false;  // Tensors in disjoint ranges have different dtypes.

    bool is_written() const { return end != 0 && !is_mixed; }
  };

  Result<TensorsToWrite> Describe() {
    TensorsToWrite all;
    if (keeps_) KeepStorages(&all);
    all.tensors.reserve(made_.rows.size());
    for (Row& row : made_.rows) {
      const TensorInfo& info = InfoOf(row);
      TensorToWrite& tensor = all.tensors.emplace_back();
      tensor.name = std::move(row.name);
      tensor.dtype = row.to;
      tensor.shape.assign(info.shape.begin(), info.shape.end());
      tensor.requires_grad = info.requires_grad;
      const bool is_view = keeps_ && row.bytes != 0 && !info.conjugate &&
                           !info.negative && kept_[info.storage].is_written();
      if (is_view) {
        const Kept& kept = kept_[info.storage];
        tensor.view = StorageView{
            kept.number,
            info.storage_offset - kept.begin / ItemBytes(info.dtype),
            {info.strides.begin(), info.strides.end()}};
      } else {
        tensor.bytes = sources_.Of(row.tensor, row.to);
      }
    }
    HAULWAY_TRY(
        CopyMetadata(index_, to_, options_.metadata, &all, &made_.left_out));
    return all;
  }

  void KeepStorages(TensorsToWrite* all) {
    kept_.resize(index_.storages.size());
    std::vector<bool> chosen(index_.tensors.size());
    for (const Row& row : made_.rows) chosen[row.tensor] = true;
    for (const Row& row : made_.rows) {
      const TensorInfo& info = InfoOf(row);
      if (row.bytes == 0 || info.conjugate || info.negative) continue;
      Kept& kept = kept_[info.storage];
      kept.is_mixed =
          kept.is_mixed ||
          (kept.end != 0 && (kept.dtype != info.dtype || kept.to != row.to));
      kept.dtype = info.dtype;
      kept.to = row.to;
      kept.begin = std::min(kept.begin, row.begin);
      kept.end = std::max(kept.end, row.end);
    }
    // If a tensor of a storage stays behind, only the selected bytes of that
    // storage are written.
    for (const Entry& entry : index_.entries) {
      const uint32_t storage = index_.tensors[entry.tensor].storage;
      if (chosen[entry.tensor] || storage == kNoStorage) continue;
      kept_[storage].partly_chosen = true;
    }
    for (uint32_t row = 0; row < kept_.size(); ++row) {
      Kept& kept = kept_[row];
      if (!kept.is_written()) continue;
      const uint64_t item = ItemBytes(kept.dtype);
      if (!options_.compact && !kept.partly_chosen) {
        kept.begin = 0;
        kept.end = index_.storages[row].nbytes / item * item;
      }
      kept.number = static_cast<uint32_t>(all->storages.size());
      all->storages.push_back(sources_.OfStorage(
          row, kept.dtype, kept.begin / item, kept.end / item, kept.to));
    }
  }

  const Checkpoint& from_;
  const CheckpointIndex& index_;
  const Format to_;
  const ConvertOptions& options_;
  const SourceOptions& source_;
  ElementSources sources_;
  std::vector<bool> used_rules_;  // Which of options_.rename had an effect.
  bool keeps_ = false;            // Tensors are written as views of storages.
  std::vector<Kept> kept_;        // By row of storages, if keeps_.
  Description made_;
};

}  // namespace

Status Casts::Check(const CheckpointIndex& index) const {
  const auto check = [](DType to) -> Status {
    if (IsFloating(to)) return Status();
    return Status(
        Code::kInvalidArgument,
        fmt::format("dtype {} is not a floating-point one", Name(to)));
  };
  if (all_.has_value()) HAULWAY_TRY(check(*all_));
  if (by_name_.empty()) return Status();
  const std::vector<NamedTensor> tensors = NameTensors(index);
  std::set<std::string_view> names;
  for (const NamedTensor& tensor : tensors) names.insert(tensor.name);
  for (const auto& [name, to] : by_name_) {
    HAULWAY_TRY(check(to));
    if (names.contains(name)) continue;
    return Status(Code::kNotFound,
                  fmt::format("no tensor {}{}", Quote(name),
                              HintOf(name, names, std::identity())));
  }
  return Status();
}

Status Casts::CheckScales(std::optional<std::string_view> name,
                          const Checkpoint& from, uint32_t tensor) const {
  const bool is_cast =
      all_.has_value() || (name.has_value() && by_name_.contains(*name));
  return is_cast ? from.CheckCast(tensor) : Status();
}

Result<DType> Casts::To(std::optional<std::string_view> name,
                        const Checkpoint& from, uint32_t tensor) const {
  HAULWAY_TRY(CheckScales(name, from, tensor));
  const DType dtype = from.index().tensors[tensor].dtype;
  const auto own = name.has_value() ? by_name_.find(*name) : by_name_.end();
  if (own == by_name_.end() && (!all_.has_value() || !IsFloating(dtype))) {
    return dtype;
  }
  const DType to = own == by_name_.end() ? *all_ : own->second;
  if (!IsFloating(dtype)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("dtype {} cannot be cast to {}: only "
                              "floating-point tensors are",
                              Name(dtype), Name(to)));
  }
  if (CanCast(dtype, to)) return to;
  return Status(Code::kUnsupported, fmt::format("cannot cast dtype {} to {}",
                                                Name(dtype), Name(to)));
}

Result<Description> DescribeTensors(const Checkpoint& from, Format to,
                                    const ConvertOptions& options,
                                    const SourceOptions& source) {
  return Describing(from, to, options, source).Run();
}

}  // namespace haulway::convert
