// Design: each copy is opened, if necessary as what is left of it (salvage.h).
// A tensor is intact in a copy if all its bytes are present and every checksum
// that covers them matches, which takes reading it once. The new file takes
// each tensor from the first copy where it is intact, and is written as
// Convert() writes.
//
// Alternative not taken: patch the damaged file. Its damage is known only in
// part, and a second fault would take the rest with it. The damaged file
// decides what a tensor is (dtype, shape) if it has the tensor, and copies that
// differ are not used. If its index is intact, it also decides which tensors
// there are, and copies add none. The shards of an index are opened one by one,
// so that a shard that is missing or damaged costs no tensor of another.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/posix.h"
#include "base/text.h"
#include "checkpoint/format_registry.h"
#include "checkpoint/sharded_index.h"
#include "convert/header_journal.h"
#include "convert/leaves.h"
#include "convert/metadata.h"
#include "convert/model_files.h"
#include "convert/salvage.h"
#include "convert/tensor_source.h"
#include "haulway/convert.h"
#include "haulway/format.h"
#include "haulway/load.h"
#include "tensor/dtype_kind.h"

namespace haulway {

namespace {

// A checkpoint to take tensors from, and the state of its storages.
class Copy {
 public:
  Copy(convert::Salvaged opened, int threads) : opened_(std::move(opened)) {
    load_.verify = true;
    load_.threads = threads;
    load_.memory_budget = 32 * kMiB;
    const CheckpointIndex& index = checkpoint().index();
    const convert::Leaves leaves = convert::FindLeaves(index);
    std::vector<convert::NamedTensor> named = convert::NameTensors(index);
    for (size_t i = 0; i < named.size(); ++i) {
      if (convert::ComposedOf(leaves, index.entries[i].name) != nullptr) {
        parts_.emplace(named[i].name);
      }
      if (leaves.wrappers.contains(index.entries[i].name)) {
        wrappers_.emplace(named[i].name);
      }
      tensors_.emplace(named[i].name, named[i].tensor);
    }
  }

  const Checkpoint& checkpoint() const { return *opened_.checkpoint; }
  std::string_view name() const { return checkpoint().source().name(); }
  const std::map<std::string, uint32_t, std::less<>>& tensors() const {
    return tensors_;
  }
  const TensorInfo& info(uint32_t tensor) const {
    return checkpoint().index().tensors[tensor];
  }
  void set_cancel(const std::atomic<bool>* cancel) { load_.cancel = cancel; }

  // Checks that the bytes of a tensor are present, match their checksums, and
  // are the whole tensor.
  Status Check(std::string_view name, uint32_t tensor) {
    const TensorInfo& info = this->info(tensor);
    if (parts_.contains(name)) {
      return Status(Code::kUnsupported,
                    "a part of a sparse or nested tensor, which cannot be "
                    "written");
    }
    if (wrappers_.contains(name)) {
      return Status(Code::kUnsupported, "its data are in other tensors");
    }
    if (info.kind == TensorKind::kMeta) {
      return Status(Code::kUnsupported, "a meta tensor, which has no data");
    }
    if (IsQuantized(info.dtype)) {
      return Status(Code::kUnsupported,
                    "a quantized tensor, whose scale cannot be written");
    }
    HAULWAY_TRY(convert::CheckElements(checkpoint().index(), info));
    const uint32_t storage = info.storage;
    if (storage != kNoStorage && opened_.IsLost(storage)) {
      return Status(Code::kTruncated, "the file was cut before its end");
    }
    if (info.nbytes == 0) return Status();
    const auto known = storages_.find(storage);
    if (known != storages_.end()) return known->second;
    const Status status =
        LoadPieces(checkpoint(), std::span(&storage, 1), load_, 4 * kMiB,
                   [](const Piece&) { return Status(); })
            .status();
    storages_.emplace(storage, status);
    return status;
  }

 private:
  const convert::Salvaged opened_;
  LoadOptions load_;
  std::map<std::string, uint32_t, std::less<>> tensors_;
  std::set<std::string, std::less<>> parts_;  // Parts of composed tensors.
  // Those that have their data in other tensors.
  std::set<std::string, std::less<>> wrappers_;
  std::map<uint32_t, Status> storages_;
};

// Returns whether the failure ends the repair, because it is not damage.
bool Ends(const Status& status) {
  return status.code() == Code::kCancelled || status.code() == Code::kAuth;
}

// A model to take tensors from: a file, or the shards of an index. Each shard
// is a copy, or what is left of one.
class Model {
 public:
  Model(const RepairOptions& options, int threads)
      : options_(options), threads_(threads) {}

  // Opens the model, or what is left of it. Fails if nothing is.
  Status Open(const std::shared_ptr<const ByteSource>& source) {
    const Status status = OpenFile(source, &fault_);
    if (status.ok() || Ends(status)) return status;
    const auto index = IndexOf(*source);
    if (!index.has_value()) {
      const std::string_view first = fault_.message();
      // The same fault may end both attempts.
      return Status(fault_.code(),
                    first.starts_with(status.message())
                        ? fmt::format("{}; nothing can be saved", first)
                        : fmt::format("{}; nothing can be saved: {}", first,
                                      status.message()));
    }
    std::vector<std::optional<size_t>> copies;
    std::vector<std::string> faults;
    for (const std::string& name : index->files) {
      copies.push_back(copies_.size());
      auto file = source->OpenNeighbour(name);
      Status opened = file.status();
      if (file.ok()) {
        Status usual;
        opened = OpenFile(*file, &usual);
      }
      if (Ends(opened)) return opened;
      if (!opened.ok()) copies.back().reset();
      faults.push_back(fmt::format("{}; of {}", opened.message(), name));
    }
    if (copies_.empty()) return fault_;
    // The map says what belongs to the model, whatever the shards lack or have.
    is_list_whole_ = true;
    unknown_from_.reset();
    names_.clear();
    for (const MappedTensor& tensor : *index->weight_map) {
      names_.insert(tensor.name);
      if (copies[tensor.file].has_value()) {
        copy_of_.emplace(tensor.name, *copies[tensor.file]);
      } else {
        faults_.emplace(tensor.name, faults[tensor.file]);
      }
    }
    return Status();
  }

  // Why the model could not be opened as usual; ok if it could.
  const Status& fault() const { return fault_; }
  bool is_list_whole() const { return is_list_whole_; }
  const std::optional<uint64_t>& unknown_from() const { return unknown_from_; }
  const std::set<std::string, std::less<>>& names() const { return names_; }
  const std::vector<std::unique_ptr<Copy>>& copies() const { return copies_; }
  std::vector<LeftOut>& left_out() { return left_out_; }

  // Returns the copy with the tensor, or null; then `why` says why, if the
  // model should have it.
  Copy* Find(std::string_view name, uint32_t* tensor, std::string* why) const {
    const auto mapped = copy_of_.find(name);
    for (size_t i = 0; i < copies_.size(); ++i) {
      if (!copy_of_.empty() &&
          (mapped == copy_of_.end() || mapped->second != i)) {
        continue;
      }
      const auto found = copies_[i]->tensors().find(name);
      if (found == copies_[i]->tensors().end()) continue;
      *tensor = found->second;
      return copies_[i].get();
    }
    const auto fault = faults_.find(name);
    if (fault != faults_.end()) {
      *why = fault->second;
    } else if (mapped != copy_of_.end()) {
      *why = fmt::format("not in {}", copies_[mapped->second]->name());
    }
    return nullptr;
  }

 private:
  // Opens one file, or what is left of it; then `fault` says why not all of it.
  // Fails if nothing can be read.
  Status OpenFile(const std::shared_ptr<const ByteSource>& file,
                  Status* fault) {
    auto opened = Checkpoint::Open(file, options_.open);
    if (opened.ok()) {
      Add({*std::move(opened), UINT64_MAX});
      return Status();
    }
    if (Ends(opened.status())) return opened.status();
    *fault = opened.status();
    auto salvaged = convert::Salvage(file, options_.open);
    if (!salvaged.ok()) return salvaged.status();
    if (salvaged->unknown_from.has_value()) {
      unknown_from_ = salvaged->unknown_from;
      is_list_whole_ = false;
    }
    for (LostTensor& wrong : salvaged->wrong) {
      names_.insert(wrong.name);
      faults_.emplace(std::move(wrong.name), std::move(wrong.why));
    }
    std::ranges::move(salvaged->left_out, std::back_inserter(left_out_));
    Add(*std::move(salvaged));
    return Status();
  }

  void Add(convert::Salvaged opened) {
    copies_.push_back(std::make_unique<Copy>(std::move(opened), threads_));
    copies_.back()->set_cancel(options_.save.write.cancel);
    for (const auto& [name, tensor] : copies_.back()->tensors()) {
      names_.insert(name);
    }
  }

  std::optional<ShardedIndex> IndexOf(const ByteSource& source) const {
    const uint64_t size = source.size();
    if (size > options_.open.limits.max_header_bytes) return std::nullopt;
    std::vector<std::byte> json(size);
    if (!source.ReadAt(0, json).ok() || !IsShardedIndex(json)) {
      return std::nullopt;
    }
    auto index =
        ParseShardedIndex(json, options_.open.strictness, options_.open.limits);
    if (!index.ok() || !index->weight_map.has_value()) return std::nullopt;
    return *std::move(index);
  }

  const RepairOptions& options_;
  const int threads_;
  Status fault_;
  bool is_list_whole_ = true;  // Nothing but what is named belongs to it.
  std::optional<uint64_t> unknown_from_;
  std::vector<std::unique_ptr<Copy>> copies_;
  std::set<std::string, std::less<>> names_;
  // If the copies are an index's, the one that has the tensor.
  std::map<std::string, size_t, std::less<>> copy_of_;
  std::map<std::string, std::string, std::less<>> faults_;  // By name.
  std::vector<LeftOut> left_out_;
};

class Repairing {
 public:
  Repairing(const std::string& path, const RepairOptions& options)
      : path_(path), options_(options) {
    threads_ = convert::ThreadsOf(options.save.write.threads);
    source_.block_bytes =
        convert::BlockBytesFor(options.save.write.memory_budget, threads_);
    source_.threads = threads_;
    // All tensors were checked before they are written.
    source_.verify = false;
    source_.cancel = options.save.write.cancel;
  }

  Result<RepairReport> Run(
      std::shared_ptr<const ByteSource> file,
      std::span<const std::shared_ptr<const ByteSource>> others) {
    HAULWAY_TRY(CheckPath(*file));
    HAULWAY_TRY(convert::UndoInterruptedEdit(std::string(file->name()),
                                             options_.durability));
    models_.push_back(std::make_unique<Model>(options_, threads_));
    Model& model = *models_.front();
    Status status = model.Open(file);
    if (!status.ok() && (others.empty() || Ends(status))) return status;
    report_.fault = model.fault().message();
    if (others.empty() && model.unknown_from().has_value()) {
      report_.lost.push_back(
          {"?", fmt::format("the record at byte {} is incomplete, and the "
                            "file does not say what followed",
                            *model.unknown_from())});
    }
    for (const auto& other : others) {
      HAULWAY_TRY(CheckPath(*other));
      models_.push_back(std::make_unique<Model>(options_, threads_));
      HAULWAY_TRY(models_.back()->Open(other));
    }
    HAULWAY_TRY(Choose(status.ok() && model.is_list_whole()));
    HAULWAY_TRY(Write());
    return std::move(report_);
  }

 private:
  Status CheckPath(const ByteSource& source) const {
    if (!convert::IsFile(source, path_)) return Status();
    return Status(Code::kInvalidArgument,
                  "a file cannot be repaired onto itself, nor onto its copy");
  }

  // `is_list_whole`: no other tensors than those it names belong to the file.
  Status Choose(bool is_list_whole) {
    std::set<std::string_view> names;
    for (const auto& model : models_) {
      names.insert(model->names().begin(), model->names().end());
      if (is_list_whole) break;
    }
    for (const std::string_view name : names) HAULWAY_TRY(ChooseOne(name));
    if (!chosen_.empty()) return Status();
    return Status(Code::kNotFound, "no tensor is sound");
  }

  // Selects the first copy in which the tensor is intact. The first copy that
  // has the tensor decides its dtype and shape.
  Status ChooseOne(std::string_view name) {
    const TensorInfo* wanted = nullptr;
    std::string why;
    const auto add = [&](std::string_view reason) {
      if (!why.empty() && !reason.empty()) why += "; ";
      why += reason;
    };
    for (const auto& model : models_) {
      uint32_t tensor = 0;
      std::string reason;
      Copy* const copy = model->Find(name, &tensor, &reason);
      add(reason);
      if (copy == nullptr) continue;
      const TensorInfo& info = copy->info(tensor);
      if (wanted == nullptr) {
        wanted = &info;
      } else if (info.dtype != wanted->dtype ||
                 !std::ranges::equal(info.shape, wanted->shape)) {
        add(fmt::format("another dtype or shape in {}", copy->name()));
        continue;
      }
      const Status status = copy->Check(name, tensor);
      if (Ends(status)) return status;
      if (status.ok()) {
        chosen_.push_back({std::string(name), copy, tensor});
        if (model == models_.front()) {
          report_.kept.emplace_back(name);
        } else {
          report_.taken.push_back(
              {std::string(name), std::string(copy->name())});
        }
        return Status();
      }
      add(status.message());
    }
    report_.lost.push_back({std::string(name), why});
    return Status();
  }

  Status Write() {
    convert::ModelFilesOptions files;
    if (options_.to.has_value()) {
      files.format = *options_.to;
      HAULWAY_TRY(CheckEnding(path_, files.format));
    } else {
      HAULWAY_ASSIGN(files.format, FormatOfEnding(path_));
    }
    files.save = options_.save;
    files.save.write.threads = threads_;
    files.durability = options_.durability;
    files.open = options_.open_sink;
    const Copy* first = nullptr;  // With the metadata.
    for (const auto& model : models_) {
      for (const auto& copy : model->copies()) {
        files.from.push_back(&copy->checkpoint());
        if (first == nullptr) first = copy.get();
      }
    }
    TensorsToWrite all;
    for (const Chosen& one : chosen_) {
      const Copy& copy = *one.copy;
      const TensorInfo& info = copy.info(one.tensor);
      TensorToWrite& tensor = all.tensors.emplace_back();
      tensor.name = one.name;
      tensor.dtype = info.dtype;
      tensor.shape.assign(info.shape.begin(), info.shape.end());
      tensor.requires_grad = info.requires_grad;
      tensor.bytes = convert::ElementsOf(copy.checkpoint(), one.tensor,
                                         info.dtype, source_);
    }
    report_.left_out = std::move(models_.front()->left_out());
    HAULWAY_TRY(convert::CopyMetadata(first->checkpoint().index(), files.format,
                                      {}, &all, &report_.left_out));
    for (const convert::OtherLeaf& other :
         convert::FindLeaves(first->checkpoint().index()).others) {
      report_.left_out.push_back(other.left_out());
    }
    convert::ModelFiles set(path_, files);
    HAULWAY_TRY(set.Write(std::move(all)));
    HAULWAY_TRY(set.Commit());
    report_.bytes = set.stats().bytes;
    return Status();
  }

  struct Chosen {
    std::string name;
    const Copy* copy = nullptr;
    uint32_t tensor = 0;
  };

  const std::string& path_;
  const RepairOptions& options_;
  int threads_ = 1;
  convert::SourceOptions source_;
  std::vector<std::unique_ptr<Model>> models_;  // The file, then the others.
  std::vector<Chosen> chosen_;
  RepairReport report_;
};

}  // namespace

Result<RepairReport> Repair(
    std::shared_ptr<const ByteSource> file,
    std::span<const std::shared_ptr<const ByteSource>> others,
    const std::string& path, const RepairOptions& options) {
  if (file == nullptr || std::ranges::find(others, nullptr) != others.end()) {
    return Status(Code::kInvalidArgument, "source is null");
  }
  return OrNoMemory(
      [&] { return Repairing(path, options).Run(std::move(file), others); });
}

}  // namespace haulway
