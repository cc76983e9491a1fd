// Design: all files are written to sinks of one FileSet, so nothing is visible
// before everything is written. A model's files are laid out one after another,
// each when it is written. Those of a directory are laid out together, because
// `.metadata` has the place of every tensor. Files that are read back before
// Commit() are opened under the sinks' temporary names. Files that an
// interrupted run has kept (kept_files.h) join the set as they are.
//
// Alternative not taken: make each file visible when it is written. A
// conversion that fails would leave some of them.

#include "convert/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/sha256.h"
#include "base/text.h"
#include "checkpoint/settle_tensors.h"
#include "convert/metadata.h"
#include "convert/shards.h"
#include "dcp/dcp_writer.h"
#include "haulway/folder.h"
#include "haulway/format.h"
#include "haulway/open.h"
#include "io/model_names.h"
#include "io/temporary_file.h"

namespace haulway::convert {

namespace {

uint64_t BytesOf(const TensorToWrite& tensor) {
  uint64_t bytes = ItemBytes(tensor.dtype);
  for (const int64_t size : tensor.shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

Status WriteWhole(std::string_view text, ByteSink* sink) {
  HAULWAY_TRY(sink->Begin(text.size()).status());
  HAULWAY_TRY(sink->WriteAt(0, std::as_bytes(std::span(text))));
  return sink->Commit(text.size());
}

TensorsToWrite PartOf(const TensorsToWrite& all,
                      std::span<const uint32_t> numbers) {
  TensorsToWrite part;
  part.metadata = all.metadata;
  part.values = all.values;
  std::map<uint32_t, uint32_t> storages;
  for (const uint32_t i : numbers) {
    TensorToWrite& tensor = part.tensors.emplace_back(all.tensors[i]);
    if (!tensor.view.has_value()) continue;
    const auto [at, fresh] = storages.try_emplace(
        tensor.view->storage, static_cast<uint32_t>(part.storages.size()));
    if (fresh) part.storages.push_back(all.storages[tensor.view->storage]);
    tensor.view->storage = at->second;
  }
  return part;
}

// Returns the digest of what the bytes of a file depend on.
Result<Sha256Value> PlanOf(std::string_view resumed_with,
                           const Layout& layout) {
  Sha256 digest;
  const auto add = [&](std::string_view text) {
    digest.Update(std::as_bytes(std::span(text)));
  };
  add(resumed_with);
  add(fmt::format("\n{}\n", layout.size()));
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < layout.frames().size(); ++i) {
    const Frame& frame = layout.frames()[i];
    add(fmt::format("frame {} {}\n", frame.offset, frame.length));
    if (frame.needs != Needs::kNothing) continue;
    bytes.resize(frame.length);
    HAULWAY_TRY(layout.EncodeFrame(i, {}, bytes));
    digest.Update(bytes);
  }
  for (const Payload& payload : layout.payloads()) {
    add(fmt::format("payload {} {}\n", payload.offset, payload.length));
  }
  return digest.Finish();
}

}  // namespace

bool IsCopied(const Layout& layout) {
  if (layout.digesting() != Digesting::kNone || layout.payloads().empty()) {
    return false;
  }
  const Payload& largest =
      *std::ranges::max_element(layout.payloads(), {}, &Payload::length);
  return largest.bytes == nullptr && largest.source != nullptr &&
         largest.source->InFile(largest.source_offset, largest.length)
             .has_value();
}

// A WrittenMetadata is a `.metadata` that is not visible yet. Its neighbours
// are the data files of the same set.
class ModelFiles::WrittenMetadata : public ByteSource {
 public:
  WrittenMetadata(std::shared_ptr<const ByteSource> bytes, std::string path,
                  std::span<const File> files)
      : bytes_(std::move(bytes)), path_(std::move(path)), files_(files) {}

  std::string_view name() const override { return path_; }
  uint64_t size() const override { return bytes_->size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    return bytes_->ReadAt(offset, out);
  }
  SourceTraits Look(std::span<const ByteRange> ranges) const override {
    return bytes_->Look(ranges);
  }
  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override {
    const std::string path = path_.substr(0, path_.rfind('/') + 1).append(name);
    const auto found = std::ranges::find(files_, path, &File::path);
    if (found == files_.end()) {
      return Status(Code::kNotFound, "no such file was written").Of(path);
    }
    return OpenFileSource(found->temporary);
  }

 private:
  const std::shared_ptr<const ByteSource> bytes_;
  const std::string path_;
  const std::span<const File> files_;
};

ModelFiles::ModelFiles(std::string path, ModelFilesOptions options)
    : path_(std::move(path)),
      options_(std::move(options)),
      set_(options_.durability) {}
ModelFiles::~ModelFiles() = default;

Status ModelFiles::Write(TensorsToWrite all) {
  // Names must differ in all files together.
  HAULWAY_TRY(SettleTensors(EntryOf(options_.format), options_.save, &all));
  for (const TensorToWrite& tensor : all.tensors) total_ += BytesOf(tensor);
  if (LocalPath(path_).has_value()) {
    const std::string folder = FolderOfPath(path_);
    if (options_.resumed_with.has_value()) {
      HAULWAY_ASSIGN(kept_, KeptFiles::Open(folder, options_.durability));
    } else {
      KeptFiles::Remove(folder);
    }
  }
  const bool is_directory = options_.format == Format::kTorchDcp;
  if (options_.shard_bytes == 0) {
    Split split;
    split.shards.emplace_back(all.tensors.size());
    std::iota(split.shards[0].begin(), split.shards[0].end(), 0U);
    return is_directory ? WriteDirectory(std::move(all), split)
                        : WriteShards(std::move(all), split, {});
  }
  std::vector<ShardItem> items;
  items.reserve(all.tensors.size());
  std::vector<std::string> names;
  names.reserve(all.tensors.size());
  for (const TensorToWrite& tensor : all.tensors) {
    ShardItem& item = items.emplace_back();
    item.name = names.emplace_back(tensor.name);
    item.bytes = BytesOf(tensor);
    if (!tensor.view.has_value()) continue;
    item.storage = tensor.view->storage;
    item.bytes = all.storages[*item.storage].length;
  }
  const Split split = SplitIntoShards(items, options_.shard_bytes);
  return is_directory ? WriteDirectory(std::move(all), split)
                      : WriteShards(std::move(all), split, items);
}

Status ModelFiles::WriteShards(TensorsToWrite all, const Split& split,
                               std::span<const ShardItem> items) {
  const size_t count = split.shards.size();
  is_alone_ = count == 1 && options_.others.empty();
  const PlaceFunctions* place = EntryOf(options_.format).place;
  if (count > 1 && !HasFolders(path_)) {
    return Status(Code::kUnsupported,
                  fmt::format("{} cannot be {} files: expected a path or an "
                              "s3:// name, or no maximum size of a file",
                              Quote(ShownName(path_)), count));
  }
  // The last file of a set opens the others.
  HAULWAY_TRY(WriteOthers());
  for (size_t s = 0; s < count; ++s) {
    TensorsToWrite part =
        count == 1 ? std::move(all) : PartOf(all, split.shards[s]);
    if (place != nullptr && count > 1) {
      place->set({s, count, items.size()}, &part.values);
    }
    File file;
    file.path = ShardPath(path_, s, count);
    file.tensors = split.shards[s];
    SaveOptions save = options_.save;
    save.path = file.path;
    HAULWAY_ASSIGN(const auto layout,
                   LayOut(std::move(part), options_.format, save));
    HAULWAY_TRY(WriteOne(*layout, std::move(file)));
  }
  if (count == 1) return Status();
  return WriteText(IndexText(path_, items, split),
                   {.path = IndexPath(path_), .is_part = true});
}

// Writes a directory. Its `.metadata` opens it, and lists all tensors.
Status ModelFiles::WriteDirectory(TensorsToWrite all, const Split& split) {
  HAULWAY_ASSIGN(const dcp::DirectoryToWrite directory,
                 dcp::LayOutDirectory(all, split.shards, path_, options_.save));
  HAULWAY_TRY(WriteOthers());
  for (const dcp::DirectoryToWrite::File& file : directory.files) {
    HAULWAY_TRY(
        WriteOne(*file.layout, {.path = path_ + file.name, .is_part = true}));
  }
  File metadata{.path = path_ + std::string(dcp::kMetadataName)};
  metadata.tensors.resize(all.tensors.size());
  std::iota(metadata.tensors.begin(), metadata.tensors.end(), 0U);
  return WriteText(directory.metadata, std::move(metadata));
}

Result<std::shared_ptr<const ByteSource>> ModelFiles::OpenBack(
    const File& file) const {
  HAULWAY_ASSIGN(
      auto source,
      OpenFileSource(file.temporary.empty() ? file.path : file.temporary));
  if (options_.format != Format::kTorchDcp) return source;
  return std::shared_ptr<const ByteSource>(
      std::make_shared<WrittenMetadata>(std::move(source), file.path, files_));
}

Status ModelFiles::Commit(const FileSet::OldFiles& old) {
  const auto start = std::chrono::steady_clock::now();
  HAULWAY_TRY(set_.Prepare());
  const bool is_sharded =
      files_.size() > 1 && options_.format != Format::kTorchDcp;
  if (is_sharded && !LocalPath(path_).has_value()) {
    // Uploads take their names one by one, and replace older shards of these
    // names. Until the index is the new one, none may join the two.
    HAULWAY_ASSIGN(const auto index, OpenSinkOf(files_.back().path, {}));
    HAULWAY_TRY(WriteWhole(kUnfinishedIndex, index.get()));
  }
  HAULWAY_TRY(set_.Commit(old));
  if (kept_ != nullptr) kept_->Finish();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  stats_.commit_seconds += seconds;
  stats_.seconds += seconds;
  return Status();
}

Result<std::unique_ptr<ByteSink>> ModelFiles::OpenSinkOf(
    const std::string& path, const FileSinkOptions& options) const {
  return options_.open ? options_.open(path, options)
                       : OpenSink(path, {.file = options});
}

Status ModelFiles::CheckName(const std::string& path) const {
  for (const Checkpoint* const from : options_.from) {
    if (!IsFileOf(*from, path)) continue;
    return Status(Code::kInvalidArgument,
                  fmt::format("{} is a file of a checkpoint that is read: "
                              "expected another name",
                              Quote(path)));
  }
  return Status();
}

Result<std::unique_ptr<ByteSink>> ModelFiles::Open(File new_file,
                                                   bool is_copied) {
  File* const file = &files_.emplace_back(std::move(new_file));
  HAULWAY_TRY(CheckName(file->path));
  FileSinkOptions options;
  options.durability = options_.durability;
  // Direct I/O may not write the last bytes before Commit(), and kernel copies
  // go through the page cache.
  if (options_.is_read_back || is_copied) options.direct = false;
  const auto local = LocalPath(file->path);
  if (options_.is_read_back) {
    if (!local.has_value()) {
      return Status(Code::kUnsupported,
                    fmt::format("{} cannot be read back before it is whole: "
                                "expected a path, or no proof",
                                Quote(file->path)));
    }
    options.temporary = &file->temporary;  // Set by Begin().
  }
  if (local.has_value() && !is_alone_) return set_.AddFile(*local, options);
  HAULWAY_ASSIGN(auto sink, OpenSinkOf(file->path, options));
  return set_.AddSink(std::move(sink));
}

Status ModelFiles::WriteOne(const Layout& layout, File file) {
  if (kept_ != nullptr) return WriteKept(layout, std::move(file));
  HAULWAY_ASSIGN(const auto sink, Open(std::move(file), IsCopied(layout)));
  return WriteTo(layout, sink.get());
}

Status ModelFiles::WriteKept(const Layout& layout, File new_file) {
  File& file = files_.emplace_back(std::move(new_file));
  HAULWAY_TRY(CheckName(file.path));
  const std::string name(LastPart(file.path));
  HAULWAY_ASSIGN(const Sha256Value plan,
                 PlanOf(*options_.resumed_with, layout));
  HAULWAY_ASSIGN(const bool is_kept,
                 kept_->HasNext(name, plan, options_.save.write.cancel));
  if (is_kept) {
    WriteStats kept;
    kept.bytes = layout.size();
    for (const Payload& payload : layout.payloads()) {
      kept.tensor_bytes += payload.length;
    }
    AddUp(kept, &stats_);
    resumed_.push_back(file.path);
  } else {
    HAULWAY_ASSIGN(const auto sink, kept_->Begin(name, plan));
    HAULWAY_TRY(WriteTo(layout, sink.get()));
    HAULWAY_TRY(kept_->Keep());
  }
  file.temporary = kept_->PathOf(name);
  return set_.AddWritten(file.path, file.temporary);
}

Status ModelFiles::WriteTo(const Layout& layout, ByteSink* sink) {
  WriteOptions write = options_.save.write;
  const uint64_t before = stats_.tensor_bytes;
  if (options_.save.write.progress) {
    write.progress = [this, before](uint64_t done, uint64_t) {
      options_.save.write.progress(std::min(before + done, total_), total_);
    };
  }
  HAULWAY_ASSIGN(const WriteStats stats, haulway::Write(layout, *sink, write));
  AddUp(stats, &stats_);
  return Status();
}

Status ModelFiles::WriteOthers() {
  const std::string folder = path_.substr(0, path_.rfind('/') + 1);
  FileSinkOptions options;
  options.durability = options_.durability;
  options.direct = false;
  // A link may lead to the model that is read.
  options.replaces_link = true;
  for (const OtherFile& other : options_.others) {
    const std::string& path = others_.emplace_back(folder + other.name);
    const auto local = LocalPath(path);
    std::unique_ptr<ByteSink> sink;
    if (local.has_value()) {
      HAULWAY_ASSIGN(sink, set_.AddFile(*local, options));
    } else {
      HAULWAY_ASSIGN(sink, OpenSinkOf(path, options));
      sink = set_.AddSink(std::move(sink));
    }
    stats_.bytes += other.text.size();
    stats_.written_bytes += other.text.size();
    HAULWAY_TRY(WriteWhole(other.text, sink.get()));
  }
  return Status();
}

Status ModelFiles::WriteText(std::string_view text, File file) {
  HAULWAY_ASSIGN(const auto sink, Open(std::move(file), false));
  stats_.bytes += text.size();
  stats_.written_bytes += text.size();
  return WriteWhole(text, sink.get());
}

}  // namespace haulway::convert
