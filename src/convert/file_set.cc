// Design: all files are written to sinks that delay their Commit(), so nothing
// is visible before everything is written. Then they are committed in order,
// with the file that opens the others last. A model's files are laid out one
// after another, each when it is written. Those of a directory are laid out
// together, because `.metadata` has the place of every tensor. Files that are
// read back before Commit() are opened under the sinks' temporary names.
//
// Alternative not taken: commit each file when it is written. A conversion that
// fails would leave some of them.

#include "convert/file_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/text.h"
#include "checkpoint/settle_tensors.h"
#include "convert/metadata.h"
#include "convert/shards.h"
#include "dcp/dcp_writer.h"
#include "haulway/folder.h"
#include "haulway/format.h"
#include "haulway/open.h"

namespace haulway::convert {

namespace {

uint64_t BytesOf(const TensorToWrite& tensor) {
  uint64_t bytes = ItemBytes(tensor.dtype);
  for (const int64_t size : tensor.shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
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
// are the data files of the same FileSet.
class FileSet::WrittenMetadata : public ByteSource {
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

// A LateSink is committed later, when all others are written.
class FileSet::LateSink : public ByteSink {
 public:
  // Opens the sink. Begin() stores the temporary name in temporary().
  static Result<std::unique_ptr<LateSink>> Open(const std::string& path,
                                                FileSinkOptions options,
                                                bool is_named,
                                                const SinkOpener& open) {
    auto late = std::make_unique<LateSink>();
    if (is_named) options.temporary = &late->temporary_;
    if (is_named && !LocalPath(path).has_value()) {
      return Status(Code::kUnsupported,
                    fmt::format("{} cannot be read back before it is whole: "
                                "expected a path, or no proof",
                                Quote(path)));
    }
    auto sink = open ? open(path, options) : OpenSink(path, {.file = options});
    if (!sink.ok()) return std::move(sink).status();
    late->sink_ = *std::move(sink);
    return late;
  }

  std::string_view name() const override { return sink_->name(); }
  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    return sink_->Begin(size);
  }
  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    return sink_->WriteAt(offset, parts);
  }
  Status CopyAt(uint64_t offset, const FileBytes& from,
                uint64_t length) override {
    return sink_->CopyAt(offset, from, length);
  }
  uint64_t direct_bytes() const override { return sink_->direct_bytes(); }
  Status Commit(uint64_t size) override {
    size_ = size;
    return Status();
  }
  Status PrepareNow() { return sink_->Prepare(size_); }
  Status CommitNow() { return sink_->Commit(size_); }
  const std::string& temporary() const { return temporary_; }

 private:
  std::string temporary_;
  std::unique_ptr<ByteSink> sink_;
  uint64_t size_ = 0;
};

FileSet::FileSet(std::string path, FileSetOptions options)
    : path_(std::move(path)), options_(std::move(options)) {}
FileSet::~FileSet() = default;

Status FileSet::Write(TensorsToWrite all) {
  // Names must differ in all files together.
  HAULWAY_TRY(SettleTensors(EntryOf(options_.format), options_.save, &all));
  std::vector<ShardItem> items;
  items.reserve(all.tensors.size());
  std::vector<std::string> names;
  names.reserve(all.tensors.size());
  for (const TensorToWrite& tensor : all.tensors) {
    ShardItem& item = items.emplace_back();
    item.name = names.emplace_back(tensor.name);
    item.bytes = BytesOf(tensor);
    total_ += item.bytes;
    if (!tensor.view.has_value()) continue;
    item.storage = tensor.view->storage;
    item.bytes = all.storages[*item.storage].length;
  }
  Split split;
  if (options_.shard_bytes == 0) {
    split.shards.emplace_back(items.size());
    for (uint32_t i = 0; i < items.size(); ++i) split.shards[0][i] = i;
  } else {
    split = SplitIntoShards(items, options_.shard_bytes);
  }
  return options_.format == Format::kTorchDcp
             ? WriteDirectory(std::move(all), split)
             : WriteShards(std::move(all), split, items);
}

Status FileSet::WriteShards(TensorsToWrite all, const Split& split,
                            std::span<const ShardItem> items) {
  const size_t count = split.shards.size();
  const PlaceFunctions* place = EntryOf(options_.format).place;
  if (count > 1 && !HasFolders(path_)) {
    return Status(Code::kUnsupported,
                  fmt::format("{} cannot be {} files: expected a path or an "
                              "s3:// name, or no maximum size of a file",
                              Quote(ShownName(path_)), count));
  }
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
Status FileSet::WriteDirectory(TensorsToWrite all, const Split& split) {
  HAULWAY_ASSIGN(const dcp::DirectoryToWrite directory,
                 dcp::LayOutDirectory(all, split.shards, path_, options_.save));
  for (const dcp::DirectoryToWrite::File& file : directory.files) {
    HAULWAY_TRY(
        WriteOne(*file.layout, {.path = path_ + file.name, .is_part = true}));
  }
  File metadata{.path = path_ + std::string(dcp::kMetadataName)};
  metadata.tensors.resize(all.tensors.size());
  std::iota(metadata.tensors.begin(), metadata.tensors.end(), 0U);
  return WriteText(directory.metadata, std::move(metadata));
}

Result<std::shared_ptr<const ByteSource>> FileSet::OpenBack(
    const File& file) const {
  HAULWAY_ASSIGN(
      auto source,
      OpenFileSource(file.temporary.empty() ? file.path : file.temporary));
  if (options_.format != Format::kTorchDcp) return source;
  return std::shared_ptr<const ByteSource>(
      std::make_shared<WrittenMetadata>(std::move(source), file.path, files_));
}

Status FileSet::Commit() {
  const auto start = std::chrono::steady_clock::now();
  // A failure to sync one file must not leave others in place of older shards
  // with the same names.
  for (const auto& sink : sinks_) HAULWAY_TRY(sink->PrepareNow());
  for (const auto& sink : sinks_) HAULWAY_TRY(sink->CommitNow());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  stats_.commit_seconds += seconds;
  stats_.seconds += seconds;
  return Status();
}

Result<FileSet::LateSink*> FileSet::Open(File file, bool is_copied) {
  for (const Checkpoint* const from : options_.from) {
    if (!IsFileOf(*from, file.path)) continue;
    return Status(Code::kInvalidArgument,
                  fmt::format("{} is a file of a checkpoint that is read: "
                              "expected another name",
                              Quote(file.path)));
  }
  FileSinkOptions options;
  options.durability = options_.durability;
  // Direct I/O may not write the last bytes before Commit(), and kernel copies
  // go through the page cache.
  if (options_.is_read_back || is_copied) options.direct = false;
  HAULWAY_ASSIGN(
      auto sink,
      LateSink::Open(file.path, options, options_.is_read_back, options_.open));
  files_.push_back(std::move(file));
  sinks_.push_back(std::move(sink));
  return sinks_.back().get();
}

Status FileSet::WriteOne(const Layout& layout, File file) {
  WriteOptions write = options_.save.write;
  const uint64_t before = stats_.tensor_bytes;
  if (options_.save.write.progress) {
    write.progress = [this, before](uint64_t done, uint64_t) {
      options_.save.write.progress(std::min(before + done, total_), total_);
    };
  }
  HAULWAY_ASSIGN(LateSink* const sink, Open(std::move(file), IsCopied(layout)));
  HAULWAY_ASSIGN(const WriteStats stats, haulway::Write(layout, *sink, write));
  files_.back().temporary = sink->temporary();
  AddUp(stats, &stats_);
  return Status();
}

Status FileSet::WriteText(const std::string& text, File file) {
  HAULWAY_ASSIGN(LateSink* const sink, Open(std::move(file), false));
  HAULWAY_TRY(sink->Begin(text.size()).status());
  HAULWAY_TRY(
      static_cast<ByteSink*>(sink)->WriteAt(0, std::as_bytes(std::span(text))));
  files_.back().temporary = sink->temporary();
  stats_.bytes += text.size();
  stats_.written_bytes += text.size();
  return sink->Commit(text.size());
}

}  // namespace haulway::convert
