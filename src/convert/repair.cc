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
// there are, and copies add none.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/no_memory.h"
#include "base/posix.h"
#include "base/text.h"
#include "checkpoint/format_registry.h"
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
        parts_.insert(named[i].name);
      }
      tensors_.emplace(std::move(named[i].name), named[i].tensor);
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
  std::map<uint32_t, Status> storages_;
};

// Returns whether the failure ends the repair, because it is not damage.
bool Ends(const Status& status) {
  return status.code() == Code::kCancelled || status.code() == Code::kAuth;
}

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
    HAULWAY_TRY(OpenFile(std::move(file), others.empty()));
    for (const auto& other : others) {
      HAULWAY_TRY(CheckPath(*other));
      HAULWAY_ASSIGN(auto opened, Checkpoint::Open(other, options_.open));
      Add({std::move(opened), UINT64_MAX});
    }
    HAULWAY_TRY(Choose());
    HAULWAY_TRY(Write());
    return std::move(report_);
  }

 private:
  Status CheckPath(const ByteSource& source) const {
    if (!convert::IsFile(source, path_)) return Status();
    return Status(Code::kInvalidArgument,
                  "a file cannot be repaired onto itself, nor onto its copy");
  }

  void Add(convert::Salvaged opened) {
    copies_.push_back(std::make_unique<Copy>(std::move(opened), threads_));
    copies_.back()->set_cancel(options_.save.write.cancel);
  }

  // Opens the file, or what is left of it.
  Status OpenFile(std::shared_ptr<const ByteSource> file, bool alone) {
    auto opened = Checkpoint::Open(file, options_.open);
    if (opened.ok()) {
      Add({*std::move(opened), UINT64_MAX});
      has_file_ = true;
      is_index_whole_ = true;
      return Status();
    }
    if (Ends(opened.status())) return std::move(opened).status();
    report_.fault = opened.status().message();
    auto salvaged = convert::Salvage(std::move(file), options_.open);
    if (salvaged.ok()) {
      if (alone && salvaged->unknown_from.has_value()) {
        report_.lost.push_back(
            {"?", fmt::format("the record at byte {} is incomplete, and the "
                              "file does not say what followed",
                              *salvaged->unknown_from)});
      }
      is_index_whole_ = !salvaged->unknown_from.has_value();
      Add(*std::move(salvaged));
      has_file_ = true;
      return Status();
    }
    if (Ends(salvaged.status())) return std::move(salvaged).status();
    if (!alone) return Status();
    return Status(
        opened.status().code(),
        fmt::format("{}; nothing can be saved: {}", opened.status().message(),
                    salvaged.status().message()));
  }

  Status Choose() {
    std::set<std::string_view> names;
    for (const auto& copy : copies_) {
      for (const auto& [name, tensor] : copy->tensors()) names.insert(name);
      if (is_index_whole_) break;  // No other tensors belong to the file.
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
    for (size_t i = 0; i < copies_.size(); ++i) {
      Copy& copy = *copies_[i];
      const auto found = copy.tensors().find(name);
      if (found == copy.tensors().end()) continue;
      const TensorInfo& info = copy.info(found->second);
      if (wanted == nullptr) {
        wanted = &info;
      } else if (info.dtype != wanted->dtype ||
                 !std::ranges::equal(info.shape, wanted->shape)) {
        why += fmt::format("; another dtype or shape in {}", copy.name());
        continue;
      }
      const Status status = copy.Check(name, found->second);
      if (Ends(status)) return status;
      if (status.ok()) {
        chosen_.push_back({std::string(name), i, found->second});
        if (i == 0 && has_file_) {
          report_.kept.emplace_back(name);
        } else {
          report_.taken.push_back(
              {std::string(name), std::string(copy.name())});
        }
        return Status();
      }
      why += fmt::format("{}{}", why.empty() ? "" : "; ", status.message());
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
    for (const auto& copy : copies_) files.from.push_back(&copy->checkpoint());
    TensorsToWrite all;
    for (const Chosen& one : chosen_) {
      const Copy& copy = *copies_[one.copy];
      const TensorInfo& info = copy.info(one.tensor);
      TensorToWrite& tensor = all.tensors.emplace_back();
      tensor.name = one.name;
      tensor.dtype = info.dtype;
      tensor.shape.assign(info.shape.begin(), info.shape.end());
      tensor.bytes = convert::ElementsOf(copy.checkpoint(), one.tensor,
                                         info.dtype, source_);
    }
    const CheckpointIndex& index = copies_.front()->checkpoint().index();
    HAULWAY_TRY(convert::CopyMetadata(index, files.format, {}, &all,
                                      &report_.left_out));
    for (LeftOut& other : convert::FindLeaves(index).others) {
      report_.left_out.push_back(std::move(other));
    }
    convert::ModelFiles set(path_, files);
    HAULWAY_TRY(set.Write(std::move(all)));
    HAULWAY_TRY(set.Commit());
    report_.bytes = set.stats().bytes;
    return Status();
  }

  struct Chosen {
    std::string name;
    size_t copy = 0;
    uint32_t tensor = 0;
  };

  const std::string& path_;
  const RepairOptions& options_;
  int threads_ = 1;
  convert::SourceOptions source_;
  // The file to repair is the first of the copies.
  bool has_file_ = false;
  bool is_index_whole_ = false;  // The file's index names every tensor.
  std::vector<std::unique_ptr<Copy>> copies_;
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
