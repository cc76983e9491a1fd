#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/no_memory.h"
#include "base/posix.h"
#include "base/text.h"
#include "convert/metadata.h"
#include "convert/model_files.h"
#include "haulway/folder.h"
#include "haulway/format.h"
#include "haulway/save.h"
#include "io/temporary_file.h"
#include "tensor/strided.h"

namespace haulway {

namespace {

constexpr uint64_t kAlignment = 64;

// Returns the folder for data that waits for `path`.
std::string FolderOf(const std::string& path) {
  const auto local = LocalPath(path);
  if (!local.has_value()) return TemporaryFolder();
  const size_t slash = local->find_last_of('/');
  if (slash == local->npos) return ".";
  return slash == 0 ? "/" : local->substr(0, slash);
}

// Tracks which bytes of a tensor have arrived.
class Covered {
 public:
  void Add(uint64_t begin, uint64_t end) {
    if (begin == end) return;
    auto next = ranges_.upper_bound(begin);
    if (next != ranges_.begin() && std::prev(next)->second >= begin) {
      --next;
      begin = next->first;
    }
    while (next != ranges_.end() && next->first <= end) {
      end = std::max(end, next->second);
      next = ranges_.erase(next);
    }
    ranges_[begin] = end;
  }
  // Returns the first missing byte; `length` if none is missing.
  uint64_t Missing(uint64_t length) const {
    if (length == 0) return 0;
    if (ranges_.empty() || ranges_.begin()->first != 0) return 0;
    return ranges_.begin()->second;
  }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // Begin and end of disjoint ranges.
};

class Writer : public TensorWriter {
 public:
  Writer(std::string path, convert::ModelFilesOptions files, UniqueFd spool,
         const TensorWriterOptions& options)
      : path_(std::move(path)),
        files_(std::move(files)),
        spool_(std::move(spool)) {
    tensors_.metadata = options.metadata;
    convert::NoteFramework(files_.format, &tensors_.metadata);
  }

  Status Add(std::string_view name, DType dtype, std::span<const int64_t> shape,
             std::span<const std::byte> bytes) override {
    HAULWAY_ASSIGN(const size_t number, AddPart(name, dtype, shape));
    const uint64_t needed = tensors_.tensors[number].bytes.length;
    if (bytes.size() != needed) {
      Forget(name);
      return Status(Code::kInvalidArgument,
                    fmt::format("a tensor of {} bytes is given {}", needed,
                                bytes.size()))
          .In(Quote(name));
    }
    return Write(number, 0, bytes);
  }

  Result<size_t> AddPart(std::string_view name, DType dtype,
                         std::span<const int64_t> shape) override {
    const auto add = [&]() -> Result<size_t> {
      HAULWAY_TRY(CheckOpen());
      uint64_t bytes = 0;
      bool fits = true;
      for (const int64_t size : shape) fits = fits && size >= 0;
      const auto count = fits ? CountElements(shape) : std::nullopt;
      uint64_t end = 0;
      if (!count.has_value() ||
          !CheckedMultiply(*count, ItemBytes(dtype), &bytes) ||
          !CheckedAdd(end_, bytes, &end) || end > INT64_MAX - kAlignment) {
        return Status(Code::kInvalidArgument,
                      fmt::format("shape [{}] is too large, or negative",
                                  fmt::join(shape, ", ")))
            .In(Quote(name));
      }
      if (!numbers_.try_emplace(std::string(name), numbers_.size()).second) {
        return Status(Code::kInvalidArgument,
                      fmt::format("two tensors are named {}", Quote(name)));
      }
      TensorToWrite& tensor = tensors_.tensors.emplace_back();
      tensor.name = name;
      tensor.dtype = dtype;
      tensor.shape.assign(shape.begin(), shape.end());
      tensor.bytes.length = bytes;
      tensor.bytes.source_offset = end_;
      covered_.emplace_back();
      end_ = (end + kAlignment - 1) / kAlignment * kAlignment;
      return tensors_.tensors.size() - 1;
    };
    return OrNoMemory(add);
  }

  Status Write(size_t tensor, uint64_t offset,
               std::span<const std::byte> bytes) override {
    HAULWAY_TRY(CheckOpen());
    if (tensor >= tensors_.tensors.size()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("no tensor {}: there are {}", tensor,
                                tensors_.tensors.size()));
    }
    const TensorToWrite& to = tensors_.tensors[tensor];
    if (!RangeFits(offset, bytes.size(), to.bytes.length)) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{} bytes from byte {} on end behind the "
                                "tensor, which has {}",
                                bytes.size(), offset, to.bytes.length))
          .In(Quote(to.name));
    }
    HAULWAY_TRY(WriteFully(spool_.get(), to.bytes.source_offset + offset,
                           std::span(&bytes, 1))
                    .In(Quote(to.name))
                    .Of(path_));
    const std::lock_guard lock(mutex_);
    covered_[tensor].Add(offset, offset + bytes.size());
    return Status();
  }

  Result<WrittenFiles> Commit() override {
    const auto commit = [&]() -> Result<WrittenFiles> {
      HAULWAY_TRY(CheckOpen());
      for (size_t i = 0; i < tensors_.tensors.size(); ++i) {
        const TensorToWrite& tensor = tensors_.tensors[i];
        const uint64_t missing = covered_[i].Missing(tensor.bytes.length);
        if (missing == tensor.bytes.length) continue;
        return Status(Code::kInvalidArgument,
                      fmt::format("bytes of a tensor are missing: it has {}, "
                                  "and byte {} was not written",
                                  tensor.bytes.length, missing))
            .In(Quote(tensor.name));
      }
      is_open_ = false;
      const int fd = spool_.get();
      const std::shared_ptr<const ByteSource> spool = MakeFunctionSource(
          end_,
          [fd](uint64_t offset, std::span<std::byte> out) {
            return ReadFully(fd, offset, out);
          },
          path_);
      for (TensorToWrite& tensor : tensors_.tensors) {
        if (tensor.bytes.length != 0) tensor.bytes.source = spool;
      }
      convert::ModelFiles files(path_, files_);
      HAULWAY_TRY(files.Write(std::move(tensors_)));
      HAULWAY_TRY(files.Commit());
      WrittenFiles written;
      for (const convert::ModelFiles::File& file : files.files()) {
        written.files.push_back(file.path);
      }
      written.write = files.stats();
      return written;
    };
    return OrNoMemory(commit);
  }

 private:
  Status CheckOpen() const {
    if (is_open_) return Status();
    return Status(Code::kInvalidArgument, "the writer has been committed")
        .Of(path_);
  }

  // Undoes the last AddPart().
  void Forget(std::string_view name) {
    numbers_.erase(std::string(name));
    tensors_.tensors.pop_back();
    covered_.pop_back();
  }

  const std::string path_;
  const convert::ModelFilesOptions files_;
  const UniqueFd spool_;
  bool is_open_ = true;
  uint64_t end_ = 0;  // End of the bytes in the spool.
  TensorsToWrite tensors_;
  std::map<std::string, size_t> numbers_;
  std::mutex mutex_;
  std::vector<Covered> covered_ HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace

Result<std::unique_ptr<TensorWriter>> TensorWriter::Open(
    std::string path, const TensorWriterOptions& options) {
  convert::ModelFilesOptions files;
  if (options.format.has_value()) {
    files.format = *options.format;
    HAULWAY_TRY(CheckEnding(path, files.format));
  } else {
    HAULWAY_ASSIGN(files.format, FormatToWrite(path));
  }
  if (EntryOf(files.format).lay_out == nullptr) {
    return FormatToWriteByName(Name(files.format)).status();
  }
  if (EntryOf(files.format).can.values) {
    // The format may require values. Report missing ones now, not after all
    // tensors have arrived.
    const TensorsToWrite none{.metadata = options.metadata};
    HAULWAY_TRY(LayOut(none, files.format, options.save).status());
  }
  files.shard_bytes = options.shard_bytes;
  files.save = options.save;
  files.durability = options.durability;
  files.open = options.open;
  HAULWAY_ASSIGN(UniqueFd spool, OpenNameless(FolderOf(path)));
  return std::unique_ptr<TensorWriter>(std::make_unique<Writer>(
      std::move(path), std::move(files), std::move(spool), options));
}

}  // namespace haulway
