// Converting builds one description of the output, a TensorsToWrite whose bytes
// are ranges of the old file, and passes it to Save(). The chunks of the new
// file determine which bytes are read at a time, and by which thread. All files
// are written before the first becomes visible.
//
// Alternative not taken: load whole storages and then save them. That needs as
// much memory as the largest storage, and alternates between reading and
// writing.

#include "haulway/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "base/no_memory.h"
#include "base/posix.h"
#include "base/text.h"
#include "checkpoint/format_registry.h"
#include "convert/description.h"
#include "convert/leaves.h"
#include "convert/metadata.h"
#include "convert/model_beside.h"
#include "convert/model_files.h"
#include "convert/model_folder.h"
#include "convert/proof.h"
#include "convert/tensor_source.h"
#include "haulway/dtype.h"
#include "haulway/folder.h"
#include "haulway/format.h"
#include "haulway/options.h"
#include "tensor/dtype_kind.h"

namespace haulway {

namespace {

class Conversion {
 public:
  Conversion(std::shared_ptr<const Checkpoint> from, const std::string& path,
             const ConvertOptions& options)
      : from_(std::move(from)),
        path_(LocalPath(path).value_or(path)),
        options_(options) {}

  Result<ConvertReport> Run() {
    const auto start = std::chrono::steady_clock::now();
    HAULWAY_TRY(Begin());
    auto made = convert::DescribeTensors(*from_, to_, options_, source_);
    if (made.status().code() == Code::kUnsupported) {
      return std::move(made).status().Of(from_->source().name());
    }
    HAULWAY_ASSIGN(convert::Description described, std::move(made));
    if (described.rows.empty() && !from_->entries().empty()) {
      return Status(Code::kNotFound, "no tensor is chosen");
    }
    if (described.rows.empty() && !described.left_out.empty()) {
      return Status(Code::kNotFound,
                    fmt::format(
                        "nothing to convert: the checkpoint has no tensor, "
                        "only other content such as {}",
                        Quote(described.left_out.front().name)))
          .Of(from_->source().name());
    }
    report_.tensors = described.rows.size();
    convert::ModelFilesOptions as = FilesAs();
    if (options_.resume) {
      HAULWAY_ASSIGN(as.resumed_with, DependsOn(described));
    }
    if (options_.proof) {
      rows_ = std::move(described.rows);
      report_.proof.resize(rows_.size());
      for (size_t i = 0; i < rows_.size(); ++i) {
        report_.proof[i].name = described.what.tensors[i].name;
      }
    }
    described.rows = {};  // Writing needs memory too.
    report_.ties = std::move(described.ties);
    report_.left_out = std::move(described.left_out);
    HAULWAY_ASSIGN(as.others, ReadOthers());
    if (folder_.has_value()) HAULWAY_TRY(folder_->Make());
    convert::ModelFiles files(path_, std::move(as));
    HAULWAY_TRY(files.Write(std::move(described.what)));
    if (options_.proof) HAULWAY_TRY(Prove(files));
    for (const auto& file : files.files()) report_.files.push_back(file.path);
    report_.copied = files.others();
    report_.resumed = files.resumed();
    HAULWAY_TRY(ReportQuantization());
    if (folder_.has_value()) {
      HAULWAY_TRY(files.Commit([&]() -> Result<std::vector<std::string>> {
        report_.removed = folder_->Others(report_.files);
        return report_.removed;
      }));
    } else {
      HAULWAY_TRY(files.Commit());
    }
    report_.write = files.stats();
    report_.write.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    report_.bytes = report_.write.bytes;
    return std::move(report_);
  }

 private:
  Status Begin() {
    const bool is_directory = options_.to == Format::kTorchDcp;
    if (is_directory || convert::IsFolder(path_)) {
      if (!HasFolders(path_)) {
        return Status(Code::kUnsupported,
                      fmt::format("{} cannot be a directory: expected a path "
                                  "or an s3:// name",
                                  QuotePath(path_)));
      }
      if (!options_.to.has_value()) {
        return Status(Code::kInvalidArgument,
                      fmt::format("{} is a folder, whose name does not say "
                                  "which format is meant: expected one",
                                  QuotePath(path_)));
      }
      folder_.emplace(path_, *options_.to, options_.durability);
      path_ = folder_->path();
      HAULWAY_TRY(folder_->CheckSource(*from_));
    }
    if (options_.to.has_value()) {
      to_ = *options_.to;
      HAULWAY_TRY(CheckEnding(path_, to_));
    } else {
      HAULWAY_ASSIGN(to_, FormatOfEnding(path_));
    }
    if (convert::IsFile(from_->source(), path_)) {
      return Status(Code::kInvalidArgument,
                    "a file cannot be converted onto itself");
    }
    if (options_.resume) HAULWAY_TRY(CheckResumable());
    source_ = convert::SourceOptionsFor(options_.save.write, options_.verify);
    threads_ = source_.threads;
    return Status();
  }

  convert::ModelFilesOptions FilesAs() const {
    convert::ModelFilesOptions files;
    files.format = to_;
    files.shard_bytes = options_.shard_bytes;
    files.save = options_.save;
    files.save.write.threads = threads_;
    files.durability = options_.durability;
    files.open = options_.open;
    files.is_read_back = options_.proof;
    files.from = {from_.get()};
    return files;
  }

  Status CheckResumable() const {
    std::string_view why;
    if (!folder_.has_value() || !LocalPath(path_).has_value()) {
      why = "a conversion that does not write into a local folder";
    } else if (to_ == Format::kTorchDcp) {
      why =
          "a conversion to 'torch-dcp', whose files have other names each "
          "time,";
    } else if (!options_.save.key.empty()) {
      why = "a conversion that encrypts, with other random numbers each time,";
    } else {
      return Status();
    }
    return Status(Code::kUnsupported,
                  fmt::format("{} cannot be resumed: leave out the option "
                              "resume",
                              why))
        .Of(path_);
  }

  // Returns a text of all that the bytes of the new files depend on, beside
  // their layouts.
  Result<std::string> DependsOn(const convert::Description& described) const {
    HAULWAY_ASSIGN(std::string text, from_->Fingerprint());
    text += fmt::format("{} {}\n", Name(to_), options_.save.checksums);
    for (size_t i = 0; i < described.rows.size(); ++i) {
      const convert::Row& row = described.rows[i];
      text += fmt::format("{} {} {}\n", row.tensor, Name(row.to),
                          Escape(described.what.tensors[i].name));
    }
    return text;
  }

  // Reads the other files of a model that is written to a folder.
  Result<std::vector<convert::OtherFile>> ReadOthers() {
    if (!folder_.has_value()) return std::vector<convert::OtherFile>();
    const auto& dequantized = from_->dequantized();
    if (folder_->IsFolderOf(*from_)) {
      if (!dequantized.has_value()) return std::vector<convert::OtherFile>();
      return Status(Code::kInvalidArgument,
                    "the folder is that of the quantized model, whose "
                    "config.json would be changed: expected another folder")
          .Of(folder_->path());
    }
    return convert::ReadOthers(*from_, NewDType(), &report_.left_out);
  }

  // The dtype that config.json names from now on; nothing: the old one.
  std::optional<DType> NewDType() const {
    if (options_.dtype.has_value()) return options_.dtype;
    const auto& dequantized = from_->dequantized();
    if (!dequantized.has_value() || dequantized->quantization.weights == 0) {
      return std::nullopt;
    }
    return dequantized->dtype;
  }

  Status ReportQuantization() {
    report_.merged = from_->merged().weights;
    report_.ruled = from_->ruled();
    const auto& dequantized = from_->dequantized();
    if (!dequantized.has_value()) {
      const auto found = from_->DescribeQuantization();
      if (found.ok() && found->has_value()) {
        report_.quantization = (*found)->method;
      }
      return Status();
    }
    report_.quantization = dequantized->quantization.method;
    report_.dequantized = dequantized->quantization.weights;
    report_.dropped = dequantized->dropped;
    return Status();
  }

  // Compares every tensor of the old file with the new one.
  Status Prove(const convert::ModelFiles& files) {
    for (const convert::ModelFiles::File& file : files.files()) {
      if (file.is_part) continue;
      Status status = ProveFile(files, file);
      if (!status.ok()) return std::move(status).Of(file.path);
    }
    std::ranges::sort(report_.proof, {}, &TensorProof::name);
    return Status();
  }

  Status ProveFile(const convert::ModelFiles& files,
                   const convert::ModelFiles::File& file) {
    const std::span<const uint32_t> numbers = file.tensors;
    OpenOptions open;
    open.key = options_.save.key;
    open.alone = true;
    HAULWAY_ASSIGN(auto source, files.OpenBack(file));
    HAULWAY_ASSIGN(const auto written,
                   Checkpoint::Open(std::move(source), open));
    const CheckpointIndex& index = written->index();
    // A format may order names differently.
    std::map<std::string_view, uint32_t> by_name;
    for (const convert::NamedTensor& one : convert::NameTensors(index)) {
      by_name.emplace(one.name, one.tensor);
    }
    std::vector<convert::DigestRequest> old_ones;
    std::vector<convert::DigestRequest> new_ones;
    for (const uint32_t i : numbers) {
      const std::string& name = report_.proof[i].name;
      auto at = by_name.find(name);
      // A file with a single array does not store its name.
      if (to_ == Format::kNpy && by_name.size() == 1) at = by_name.begin();
      if (at == by_name.end()) {
        return Status(Code::kMismatch, "a tensor is not in the new file")
            .In(Quote(name));
      }
      old_ones.push_back({rows_[i].tensor, rows_[i].to});
      new_ones.push_back({at->second, index.tensors[at->second].dtype});
    }
    std::optional<size_t> differing;
    // The digests were checked when the data was read; now the elements are
    // compared.
    convert::SourceOptions again = source_;
    again.verify = false;
    const auto digests =
        convert::DigestTensors(*from_, old_ones, again, threads_,
                               {written.get(), new_ones}, &differing);
    if (differing.has_value()) {
      return Status(Code::kMismatch,
                    "the new tensor has other elements than the old one")
          .In(Quote(report_.proof[numbers[*differing]].name));
    }
    HAULWAY_TRY(digests.status());
    for (size_t i = 0; i < numbers.size(); ++i) {
      report_.proof[numbers[i]].sha256 = (*digests)[i];
    }
    return Status();
  }

  const std::shared_ptr<const Checkpoint> from_;
  std::string path_;
  // Set if `path_` is in such a folder.
  std::optional<convert::ModelFolder> folder_;
  const ConvertOptions& options_;
  Format to_ = Format::kTorch;
  int threads_ = 1;
  convert::SourceOptions source_;
  std::vector<convert::Row> rows_;
  ConvertReport report_;
};

}  // namespace

std::string_view Name(Ties ties) { return WordOf(ties); }

Result<Format> FormatToConvertTo(std::string_view name) {
  const FormatEntry& directory = EntryOf(Format::kTorchDcp);
  if (name == directory.name) return directory.id;
  auto format = FormatToWriteByName(name);
  if (format.ok()) return format;
  return Status(
      Code::kUnsupported,
      fmt::format("{} or '{}'", format.status().message(), directory.name));
}

bool TakesCast(DType dtype) { return IsFloating(dtype); }

Result<ConvertReport> Convert(std::shared_ptr<const Checkpoint> from,
                              const std::string& path,
                              const ConvertOptions& options) {
  if (from == nullptr) {
    return Status(Code::kInvalidArgument, "checkpoint is null");
  }
  const auto run = [&] {
    return Conversion(std::move(from), path, options).Run();
  };
  return OrNoMemory(run);
}

}  // namespace haulway
