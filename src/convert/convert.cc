// Converting makes one description of what to write, TensorsToWrite, whose
// bytes are ranges of the old file, and leaves the rest to Save(): what is read
// at once, and by whom, is what the new file's chunks ask for. Every file is
// written before the first becomes visible.
//
// Loading storages whole and then saving them would need as much memory as the
// largest of them, and would read and write by turns.

#include "haulway/convert.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/no_memory.h"
#include "base/posix.h"
#include "base/text.h"
#include "convert/file_set.h"
#include "convert/leaves.h"
#include "convert/proof.h"
#include "convert/tensor_source.h"
#include "haulway/cast.h"
#include "haulway/format.h"
#include "haulway/limits.h"
#include "tensor/strided.h"

namespace haulway {

namespace {

using convert::ElementsOf;
using convert::ElementsOfStorage;
using convert::SourceOptions;

bool IsFloating(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2FNUZ:
    case DType::kF8E8M0:
      return true;
    default:
      return false;
  }
}

bool IsQuantized(DType dtype) {
  return dtype >= DType::kQI8 && dtype <= DType::kQU2X4;
}

// A tensor that was chosen.
struct Row {
  std::string name;
  uint32_t tensor = 0;
  DType to = DType::kU8;
  uint64_t bytes = 0;  // As written.
  // In its storage, of what it reaches.
  uint64_t begin = 0;
  uint64_t end = 0;
};

class Conversion {
 public:
  Conversion(std::shared_ptr<const Checkpoint> from, std::string path,
             const ConvertOptions& options)
      : from_(std::move(from)),
        index_(from_->index()),
        path_(std::move(path)),
        options_(options) {}

  Result<ConvertReport> Run() {
    const auto start = std::chrono::steady_clock::now();
    HAULWAY_TRY(Begin());
    HAULWAY_TRY(ChooseRows());
    HAULWAY_TRY(SettleTies());
    HAULWAY_TRY(CheckWhatIsReadInParts());
    HAULWAY_ASSIGN(TensorsToWrite all, Describe());
    convert::FileSet files(path_, FilesAs());
    HAULWAY_TRY(files.Write(std::move(all)));
    if (options_.proof) HAULWAY_TRY(Prove(files));
    HAULWAY_TRY(files.Commit());
    report_.tensors = rows_.size();
    report_.write = files.stats();
    report_.write.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    report_.bytes = report_.write.bytes;
    for (const convert::FileSet::File& file : files.files()) {
      report_.files.push_back(file.path);
    }
    return std::move(report_);
  }

 private:
  Status Begin() {
    if (options_.to.has_value()) {
      to_ = *options_.to;
      HAULWAY_TRY(CheckEnding(path_, to_));
    } else {
      HAULWAY_ASSIGN(to_, FormatToWrite(path_));
    }
    if (options_.dtype.has_value() && !IsFloating(*options_.dtype)) {
      return Status(Code::kInvalidArgument,
                    fmt::format("dtype {} is not a floating-point one",
                                Name(*options_.dtype)));
    }
    struct stat old {};
    struct stat target {};
    if (stat(std::string(from_->source().name()).c_str(), &old) == 0 &&
        stat(path_.c_str(), &target) == 0 && old.st_dev == target.st_dev &&
        old.st_ino == target.st_ino) {
      return Status(Code::kInvalidArgument,
                    "a file cannot be converted onto itself");
    }
    threads_ = options_.save.write.threads;
    if (threads_ == 0) {
      threads_ = UsableCpus();
    }
    // Each thread may hold two blocks of a tensor, and what is cast of them.
    source_.block_bytes = std::clamp(
        options_.save.write.memory_budget / 8 / static_cast<uint64_t>(threads_),
        kMiB, 32 * kMiB);
    source_.threads = threads_;
    source_.verify = options_.verify;
    source_.cancel = options_.save.write.cancel;
    return Status();
  }

  Status ChooseRows() {
    const convert::Leaves leaves = convert::FindLeaves(index_);
    for (const LeftOut& other : leaves.others) {
      if (IsWanted(other.name)) report_.left_out.push_back(other);
    }
    const std::map<std::string_view, std::string_view> keys(leaves.keys.begin(),
                                                            leaves.keys.end());
    for (const Entry& entry : index_.entries) {
      const auto key = keys.find(entry.name);
      const std::string name(key == keys.end() ? entry.name : key->second);
      if (!IsWanted(name)) continue;
      HAULWAY_TRY(CheckWhole(leaves, entry.name));
      Row row{.name = name};
      if (options_.rename) row.name = options_.rename(name);
      row.tensor = entry.tensor;
      Status status = Prepare(&row);
      if (!status.ok()) return std::move(status).In(Quote(name));
      rows_.push_back(std::move(row));
    }
    if (rows_.empty() && !index_.entries.empty()) {
      return Status(Code::kNotFound, "no tensor is chosen");
    }
    return Status();
  }

  bool IsWanted(std::string_view name) const {
    return !options_.select || options_.select(name);
  }

  // Fails if the entry is a part of a tensor that no format here can hold.
  static Status CheckWhole(const convert::Leaves& leaves,
                           std::string_view name) {
    for (const std::string& whole : leaves.composed) {
      if (!whole.empty() &&
          !(name.starts_with(whole) && name.size() > whole.size() &&
            name[whole.size()] == '.')) {
        continue;
      }
      return Status(Code::kUnsupported,
                    "a sparse or nested tensor, which cannot be converted: "
                    "leave it out")
          .In(Quote(whole));
    }
    return Status();
  }

  Status Prepare(Row* row) const {
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
    if ((info.conjugate || info.negative) && !convert::CanResolve(info.dtype)) {
      return Status(
          Code::kUnsupported,
          fmt::format("cannot resolve the sign of dtype {}", Name(info.dtype)));
    }
    row->to = info.dtype;
    if (options_.dtype.has_value() && IsFloating(info.dtype)) {
      row->to = *options_.dtype;
    }
    if (row->to != info.dtype && !CanCast(info.dtype, row->to)) {
      return Status(Code::kUnsupported,
                    fmt::format("cannot cast dtype {} to {}", Name(info.dtype),
                                Name(row->to)));
    }
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

  // Whether both are the same elements.
  bool IsSame(const Row& a, const Row& b) const {
    const TensorInfo& x = InfoOf(a);
    const TensorInfo& y = InfoOf(b);
    return x.storage == y.storage && x.dtype == y.dtype &&
           x.storage_offset == y.storage_offset &&
           std::ranges::equal(x.shape, y.shape) &&
           std::ranges::equal(x.strides, y.strides) &&
           x.conjugate == y.conjugate && x.negative == y.negative;
  }

  // Numbers of rows that overlap in one storage, two at least each.
  std::vector<std::vector<uint32_t>> Groups() const {
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].end != rows_[i].begin) order.push_back(i);
    }
    std::ranges::stable_sort(order, {}, [&](uint32_t i) {
      return std::pair(InfoOf(rows_[i]).storage, rows_[i].begin);
    });
    std::vector<std::vector<uint32_t>> groups;
    uint64_t end = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const Row& row = rows_[order[i]];
      const bool joins =
          i != 0 &&
          InfoOf(row).storage == InfoOf(rows_[order[i - 1]]).storage &&
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
    std::vector<bool> dropped(rows_.size());
    for (std::vector<uint32_t>& group : Groups()) {
      std::ranges::sort(group, {}, [&](uint32_t i) { return rows_[i].name; });
      const Row& first = rows_[group.front()];
      if (options_.ties == Ties::kKeep || options_.ties == Ties::kError) {
        return Refuse(group);
      }
      std::vector<uint32_t> kept = {group.front()};
      for (const uint32_t i : std::span(group).subspan(1)) {
        const auto same = std::ranges::find_if(
            kept, [&](uint32_t k) { return IsSame(rows_[k], rows_[i]); });
        if (options_.ties == Ties::kCopy) {
          report_.ties.push_back({rows_[i].name, first.name, false});
          continue;
        }
        if (same == kept.end()) {
          return Status(
              Code::kUnsupported,
              fmt::format("{} and {} share memory and are not the same "
                          "tensor, so that neither can be dropped: copy them",
                          Quote(first.name), Quote(rows_[i].name)));
        }
        dropped[i] = true;
        report_.ties.push_back({rows_[i].name, rows_[*same].name, true});
      }
    }
    size_t number = 0;
    std::erase_if(rows_, [&](const Row&) { return dropped[number++]; });
    return Status();
  }

  Status Refuse(std::span<const uint32_t> group) const {
    std::string names;
    for (const uint32_t i : group) {
      names +=
          fmt::format("{}{}", names.empty() ? "" : ", ", Quote(rows_[i].name));
    }
    if (options_.ties == Ties::kError) {
      return Status(Code::kUnsupported,
                    fmt::format("tensors share memory: {}", names));
    }
    return Status(
        Code::kUnsupported,
        fmt::format("tensors share memory, which {} files cannot say: {}: "
                    "drop all but one of them, or copy them",
                    Name(to_), names));
  }

  // What a storage with several tensors cannot be written as.
  Status CheckKept() const {
    for (const std::vector<uint32_t>& group : Groups()) {
      const TensorInfo& first = InfoOf(rows_[group.front()]);
      for (const uint32_t i : group) {
        const TensorInfo& info = InfoOf(rows_[i]);
        if (info.dtype != first.dtype || info.conjugate || info.negative) {
          return Status(
              Code::kUnsupported,
              fmt::format("{} and {} share memory as different numbers, which "
                          "{} files cannot say: copy them",
                          Quote(rows_[group.front()].name),
                          Quote(rows_[i].name), Name(to_)));
        }
      }
    }
    return Status();
  }

  // Storages that are not read whole are not checked on the way.
  Status CheckWhatIsReadInParts() const {
    if (!options_.verify) return Status();
    std::set<uint32_t> in_parts;
    std::set<uint32_t> whole;
    for (const Row& row : rows_) {
      const TensorInfo& info = InfoOf(row);
      if (info.nbytes == 0) continue;
      const StorageInfo& storage = index_.storages[info.storage];
      // What is encrypted or compressed is checked as it is decoded.
      const bool is_whole = storage.encoding != Encoding::kRaw ||
                            (row.begin == 0 && row.end == storage.nbytes &&
                             IsContiguous(info.shape, info.strides));
      (is_whole ? whole : in_parts).insert(info.storage);
    }
    std::vector<uint32_t> rows;
    std::ranges::set_difference(in_parts, whole, std::back_inserter(rows));
    return convert::CheckStorages(*from_, rows, source_);
  }

  // What each storage is written as, for formats that have views.
  struct Kept {
    uint32_t number = 0;  // Of TensorsToWrite::storages.
    DType dtype = DType::kU8;
    DType to = DType::kU8;
    uint64_t begin = UINT64_MAX;  // In bytes of the old storage.
    uint64_t end = 0;
    bool partly_chosen = false;
    bool is_mixed = false;  // Tensors in different parts differ in dtype.
  };

  Result<TensorsToWrite> Describe() {
    TensorsToWrite all;
    if (keeps_) KeepStorages(&all);
    all.tensors.reserve(rows_.size());
    for (const Row& row : rows_) {
      const TensorInfo& info = InfoOf(row);
      TensorToWrite& tensor = all.tensors.emplace_back();
      tensor.name = row.name;
      tensor.dtype = row.to;
      tensor.shape.assign(info.shape.begin(), info.shape.end());
      const auto kept = row.bytes == 0 ? kept_.end() : kept_.find(info.storage);
      if (kept != kept_.end() && !info.conjugate && !info.negative) {
        const uint64_t item = ItemBytes(info.dtype);
        tensor.view =
            StorageView{kept->second.number,
                        info.storage_offset - kept->second.begin / item,
                        {info.strides.begin(), info.strides.end()}};
      } else {
        tensor.bytes = ElementsOf(*from_, row.tensor, row.to, source_);
      }
    }
    DescribeMetadata(&all);
    return all;
  }

  void KeepStorages(TensorsToWrite* all) {
    std::unordered_map<uint32_t, uint64_t> chosen;
    for (const Row& row : rows_) ++chosen[row.tensor];
    for (const Row& row : rows_) {
      const TensorInfo& info = InfoOf(row);
      if (row.bytes == 0 || info.conjugate || info.negative) continue;
      Kept& kept = kept_[info.storage];
      kept.is_mixed =
          kept.is_mixed || (kept.end != 0 && kept.dtype != info.dtype);
      kept.dtype = info.dtype;
      kept.to = row.to;
      kept.begin = std::min(kept.begin, row.begin);
      kept.end = std::max(kept.end, row.end);
    }
    // Of a storage of which a tensor stays behind, no more goes along than is
    // wanted.
    for (const Entry& entry : index_.entries) {
      if (chosen.contains(entry.tensor)) continue;
      const auto kept = kept_.find(index_.tensors[entry.tensor].storage);
      if (kept != kept_.end()) kept->second.partly_chosen = true;
    }
    std::erase_if(kept_, [](const auto& kept) { return kept.second.is_mixed; });
    for (auto& [row, kept] : kept_) {
      const uint64_t item = ItemBytes(kept.dtype);
      if (!options_.compact && !kept.partly_chosen) {
        kept.begin = 0;
        kept.end = index_.storages[row].nbytes / item * item;
      }
      kept.number = static_cast<uint32_t>(all->storages.size());
      all->storages.push_back(
          ElementsOfStorage(*from_, row, kept.dtype, kept.begin / item,
                            kept.end / item, kept.to, source_));
    }
  }

  // Values go along as they are to a format that keeps them, and text to one
  // that keeps text.
  void DescribeMetadata(TensorsToWrite* all) {
    const Capabilities& can = EntryOf(to_).can;
    std::vector<std::pair<std::string, std::string>> noted;
    if (index_.metadata.has_value()) {
      for (const Fact& fact : *index_.metadata) {
        // What an index says of its shards is not true of other files.
        if (!index_.parts.empty() && fact.name == "total_size") continue;
        const auto* text = std::get_if<std::string>(&fact.value);
        if (can.values) {
          all->values.push_back(fact);
        } else if (can.metadata && text != nullptr) {
          noted.emplace_back(fact.name, *text);
        } else {
          report_.left_out.push_back(
              {fact.name, fmt::format("metadata, which the format {} has no "
                                      "room for",
                                      Name(to_))});
        }
      }
    }
    // What others ask of a safetensors file of torch's tensors.
    if (noted.empty() && to_ == Format::kSafetensors &&
        index_.format <= Format::kTorchPackage) {
      noted.emplace_back("format", "pt");
    }
    if (!noted.empty()) all->metadata = std::move(noted);
  }

  convert::FileSetOptions FilesAs() const {
    convert::FileSetOptions files;
    files.format = to_;
    files.shard_bytes = options_.shard_bytes;
    files.save = options_.save;
    files.save.write.threads = threads_;
    files.durability = options_.durability;
    files.is_read_back = options_.proof;
    return files;
  }

  // Compares every tensor in the old file with the new one.
  Status Prove(const convert::FileSet& files) {
    std::vector<convert::DigestRequest> wanted;
    for (const Row& row : rows_) wanted.push_back({row.tensor, row.to});
    HAULWAY_ASSIGN(const std::vector<Sha256Value> before,
                   convert::DigestTensors(*from_, wanted, source_, threads_));
    report_.proof.resize(rows_.size());
    for (const convert::FileSet::File& file : files.files()) {
      if (file.is_index) continue;
      Status status = ProveFile(file, before);
      if (!status.ok()) return std::move(status).Of(file.path);
    }
    std::ranges::sort(report_.proof, {}, &TensorProof::name);
    return Status();
  }

  Status ProveFile(const convert::FileSet::File& file,
                   std::span<const Sha256Value> before) {
    const std::span<const uint32_t> numbers = file.tensors;
    OpenOptions open;
    open.key = options_.save.key;
    const std::string& path =
        file.temporary.empty() ? file.path : file.temporary;
    HAULWAY_ASSIGN(auto source, OpenFileSource(path));
    HAULWAY_ASSIGN(const auto written,
                   Checkpoint::Open(std::move(source), open));
    const CheckpointIndex& index = written->index();
    // A format may keep names in an order of its own.
    const convert::Leaves leaves = convert::FindLeaves(index);
    std::map<std::string_view, uint32_t> by_name;
    for (const Entry& entry : index.entries) by_name[entry.name] = entry.tensor;
    for (const auto& [shown, key] : leaves.keys) {
      const auto at = by_name.find(shown);
      if (at != by_name.end()) by_name[key] = at->second;
    }
    std::vector<convert::DigestRequest> wanted;
    for (const uint32_t i : numbers) {
      auto at = by_name.find(rows_[i].name);
      // A file of one array has no name for it.
      if (to_ == Format::kNpy && by_name.size() == 1) at = by_name.begin();
      if (at == by_name.end()) {
        return Status(Code::kMismatch, "a tensor is not in the new file")
            .In(Quote(rows_[i].name));
      }
      wanted.push_back({at->second, index.tensors[at->second].dtype});
    }
    HAULWAY_ASSIGN(const std::vector<Sha256Value> after,
                   convert::DigestTensors(*written, wanted, source_, threads_));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const Row& row = rows_[numbers[i]];
      if (after[i] != before[numbers[i]]) {
        return Status(Code::kMismatch,
                      "the digest of what was written is not that of what was "
                      "read")
            .In(Quote(row.name));
      }
      report_.proof[numbers[i]] = {row.name, after[i]};
    }
    return Status();
  }

  const std::shared_ptr<const Checkpoint> from_;
  const CheckpointIndex& index_;
  const std::string path_;
  const ConvertOptions& options_;
  Format to_ = Format::kTorch;
  int threads_ = 1;
  SourceOptions source_;
  std::vector<Row> rows_;
  bool keeps_ = false;  // Tensors are views of storages.
  std::map<uint32_t, Kept> kept_;
  ConvertReport report_;
};

}  // namespace

std::string_view Name(Ties ties) {
  switch (ties) {
    case Ties::kKeep:
      return "keep";
    case Ties::kDrop:
      return "drop";
    case Ties::kCopy:
      return "copy";
    case Ties::kError:
      return "error";
  }
  return {};
}

std::optional<Ties> TiesFromName(std::string_view name) {
  for (const Ties ties :
       {Ties::kKeep, Ties::kDrop, Ties::kCopy, Ties::kError}) {
    if (Name(ties) == name) return ties;
  }
  return std::nullopt;
}

Result<ConvertReport> Convert(std::shared_ptr<const Checkpoint> from,
                              const std::string& path,
                              const ConvertOptions& options) {
  const auto run = [&] {
    return Conversion(std::move(from), path, options).Run();
  };
  return OrNoMemory(run);
}

}  // namespace haulway
