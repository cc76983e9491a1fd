// Writes one file, the shards of a model and their index, or a directory of
// torch.distributed.checkpoint, as a unit.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/kept_files.h"
#include "convert/model_beside.h"
#include "convert/shards.h"
#include "haulway/checkpoint.h"
#include "haulway/file_set.h"
#include "haulway/index.h"
#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::convert {

// Returns whether the kernel may copy the largest payload directly from its
// source.
bool IsCopied(const Layout& layout);

struct ModelFilesOptions {
  Format format = Format::kTorch;
  // Maximum tensor bytes per file; 0 for a single file.
  uint64_t shard_bytes = 0;
  SaveOptions save;  // `path` has no effect.
  Durability durability = Durability::kFull;
  bool is_read_back = false;  // True if files are read back before Commit().
  SinkOpener open = nullptr;  // OpenSink() if null.
  // The checkpoints that are read while the files are written.
  std::vector<const Checkpoint*> from{};
  // Other files of the model, written beside it.
  std::vector<OtherFile> others{};
  // If set, each file is kept in the folder when it is whole, and those that an
  // earlier run kept are not written again. What the bytes of all files depend
  // on, beside their layouts: the earlier run must have had the same. Requires:
  // `path` is local.
  std::optional<std::string> resumed_with = std::nullopt;
};

// ModelFiles become visible as one (haulway/file_set.h) when all are written.
// If they are destroyed without Commit(), they leave no trace. Must not be used
// by two threads at once.
class ModelFiles {
 public:
  struct File {
    std::string path;
    // Where the bytes are until Commit(), if the file is read back.
    std::string temporary{};
    std::vector<uint32_t> tensors{};  // Numbers of the tensors in the file.
    // True if the file is not opened by itself: an index, or a file that
    // another one opens.
    bool is_part = false;
  };

  ModelFiles(std::string path, ModelFilesOptions options);
  ModelFiles(const ModelFiles&) = delete;
  ModelFiles& operator=(const ModelFiles&) = delete;
  ~ModelFiles();

  // Writes all files. Call it once. Fails as LayOut() and Write() do.
  Status Write(TensorsToWrite all);
  // The index, if there is one, is last.
  const std::vector<File>& files() const { return files_; }
  // The paths of the other files.
  const std::vector<std::string>& others() const { return others_; }
  // The paths of the files that an earlier run wrote.
  const std::vector<std::string>& resumed() const { return resumed_; }
  // Opens a written file before Commit(), if the options ask for reading back.
  // Fails as opening does.
  Result<std::shared_ptr<const ByteSource>> OpenBack(const File& file) const;
  // Makes all files visible, the index last, once all of them are synced. `old`
  // is as in FileSet::Commit().
  Status Commit(const FileSet::OldFiles& old = nullptr);
  // Sums over all files.
  const WriteStats& stats() const { return stats_; }

 private:
  class WrittenMetadata;

  Result<std::unique_ptr<ByteSink>> Open(File new_file, bool is_copied);
  Result<std::unique_ptr<ByteSink>> OpenSinkOf(
      const std::string& path, const FileSinkOptions& options) const;
  Status WriteShards(TensorsToWrite all, const Split& split,
                     std::span<const ShardItem> items);
  Status WriteDirectory(TensorsToWrite all, const Split& split);
  Status CheckName(const std::string& path) const;
  Status WriteOne(const Layout& layout, File file);
  Status WriteKept(const Layout& layout, File file);
  Status WriteTo(const Layout& layout, ByteSink* sink);
  Status WriteText(std::string_view text, File file);
  Status WriteOthers();

  const std::string path_;
  const ModelFilesOptions options_;
  std::vector<File> files_;
  FileSet set_;
  std::unique_ptr<KeptFiles> kept_;  // If the options say so.
  std::vector<std::string> others_;
  std::vector<std::string> resumed_;
  bool is_alone_ = false;  // Whether there is only one file.
  // Total bytes of all tensors, for progress reports.
  uint64_t total_ = 0;
  WriteStats stats_;
};

}  // namespace haulway::convert
