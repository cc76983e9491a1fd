// One file, the shards of a model and their index, or a directory of
// torch.distributed.checkpoint, written together.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "convert/shards.h"
#include "haulway/index.h"
#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::convert {

// Whether the kernel may copy the largest payload from where it is.
bool IsCopied(const Layout& layout);

struct FileSetOptions {
  Format format = Format::kTorch;
  uint64_t shard_bytes = 0;  // Most tensor bytes in one file; 0: one file.
  SaveOptions save;          // `path` has no effect.
  Durability durability = Durability::kFull;
  bool is_read_back = false;  // Before Commit().
  SinkOpener open = nullptr;  // By default OpenSink().
};

// A FileSet becomes visible when all of it is written. Dropped without
// Commit(), it leaves no trace. Not for two threads at once.
class FileSet {
 public:
  struct File {
    std::string path;
    // Where its bytes are until Commit(), if it is read back.
    std::string temporary{};
    std::vector<uint32_t> tensors{};  // Numbers of those that it has.
    // Not opened by itself: an index, or a file that another one opens.
    bool is_part = false;
  };

  FileSet(std::string path, FileSetOptions options);
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;
  ~FileSet();

  // Once. Fails as LayOut() and Write() do.
  Status Write(TensorsToWrite all);
  // The index, if there is one, is the last.
  const std::vector<File>& files() const { return files_; }
  // Opens what was written to one of files() and is read back, before
  // Commit(). Fails as opening does.
  Result<std::shared_ptr<const ByteSource>> OpenBack(const File& file) const;
  // Makes all of them visible, the index last. Where that fails halfway, as by
  // a file that became a folder, those before stay.
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
  uint64_t total_ = 0;                            // All tensors, for progress.
  WriteStats stats_;
};

}  // namespace haulway::convert
