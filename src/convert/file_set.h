// Writes one file, the shards of a model and their index, or a directory of
// torch.distributed.checkpoint, as a unit.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "convert/shards.h"
#include "haulway/checkpoint.h"
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

struct FileSetOptions {
  Format format = Format::kTorch;
  // Maximum tensor bytes per file; 0 for a single file.
  uint64_t shard_bytes = 0;
  SaveOptions save;  // `path` has no effect.
  Durability durability = Durability::kFull;
  bool is_read_back = false;  // True if files are read back before Commit().
  SinkOpener open = nullptr;  // OpenSink() if null.
  // The checkpoints that are read while the files are written.
  std::vector<const Checkpoint*> from{};
};

// A FileSet becomes visible when all of its files are written. If it is
// destroyed without Commit(), it leaves no trace. Must not be used by two
// threads at once.
class FileSet {
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

  FileSet(std::string path, FileSetOptions options);
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;
  ~FileSet();

  // Writes all files. Call it once. Fails as LayOut() and Write() do.
  Status Write(TensorsToWrite all);
  // The index, if there is one, is last.
  const std::vector<File>& files() const { return files_; }
  // Opens a written file before Commit(), if the options ask for reading back.
  // Fails as opening does.
  Result<std::shared_ptr<const ByteSource>> OpenBack(const File& file) const;
  // Makes all files visible, the index last, once all of them are synced. If
  // that fails halfway, e.g. because a file became a folder, the files before
  // it stay.
  Status Commit();
  // Sums over all files.
  const WriteStats& stats() const { return stats_; }

 private:
  class LateSink;
  class WrittenMetadata;

  Result<LateSink*> Open(File file, bool is_copied);
  Status WriteShards(TensorsToWrite all, const Split& split,
                     std::span<const ShardItem> items);
  Status WriteDirectory(TensorsToWrite all, const Split& split);
  Status WriteOne(const Layout& layout, File file);
  Status WriteText(const std::string& text, File file);

  const std::string path_;
  const FileSetOptions options_;
  std::vector<File> files_;
  std::vector<std::unique_ptr<LateSink>> sinks_;  // Parallel to files_.
  // Total bytes of all tensors, for progress reports.
  uint64_t total_ = 0;
  WriteStats stats_;
};

}  // namespace haulway::convert
