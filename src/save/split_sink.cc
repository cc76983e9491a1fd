#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "haulway/file_set.h"
#include "haulway/layout.h"
#include "io/file_system.h"

namespace haulway {

namespace {

// Fails if something has the name of the data file.
Status CheckIsNew(const std::string& data) {
  struct stat facts;
  if (::lstat(data.c_str(), &facts) != 0) return Status();
  return Status(Code::kInvalidArgument,
                "data file exists already, and may be another's")
      .Of(data);
}

class SplitSink : public ByteSink {
 public:
  SplitSink(std::string data, uint64_t split, Durability durability)
      : data_(std::move(data)), split_(split), files_(durability) {}

  Status Open(const std::string& path, const FileSinkOptions& options) {
    FileSinkOptions anew = options;
    anew.existing = Existing::kRefuse;
    HAULWAY_ASSIGN(second_, files_.AddFile(data_, anew));
    HAULWAY_ASSIGN(first_, files_.AddFile(path, options));
    name_ = first_->name();
    return Status();
  }

  std::string_view name() const override { return name_; }

  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    HAULWAY_ASSIGN(SinkTraits traits, first_->Begin(split_));
    std::optional<uint64_t> rest;
    if (size.has_value()) rest = *size - std::min(*size, split_);
    HAULWAY_ASSIGN(const SinkTraits second, second_->Begin(rest));
    traits.ordered = traits.ordered || second.ordered;
    traits.in_turn = second.in_turn;  // The payloads go to the second sink.
    traits.request_bytes = second.request_bytes;
    return traits;
  }

  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    for (const std::span<const std::byte> part : parts) {
      const uint64_t before =
          std::min<uint64_t>(part.size(), split_ - std::min(split_, offset));
      if (before != 0) {
        HAULWAY_TRY(first_->ByteSink::WriteAt(offset, part.subspan(0, before)));
      }
      if (before != part.size()) {
        HAULWAY_TRY(second_->ByteSink::WriteAt(offset + before - split_,
                                               part.subspan(before)));
      }
      offset += part.size();
    }
    return Status();
  }

  uint64_t direct_bytes() const override {
    return first_->direct_bytes() + second_->direct_bytes();
  }

  Status Prepare(uint64_t size) override {
    HAULWAY_TRY(second_->Commit(size - std::min(size, split_)));
    HAULWAY_TRY(first_->Commit(std::min(size, split_)));
    return files_.Prepare();
  }

  Status Commit(uint64_t size) override {
    HAULWAY_TRY(Prepare(size));
    return files_.Commit([&]() -> Result<std::vector<std::string>> {
      HAULWAY_TRY(CheckIsNew(data_));
      return std::vector<std::string>();
    });
  }

 private:
  const std::string data_;
  const uint64_t split_;
  FileSet files_;
  std::unique_ptr<ByteSink> first_;
  std::unique_ptr<ByteSink> second_;
  std::string name_;
};

// Returns the folder of a path with the slash, or "".
std::string FolderOf(const std::string& path) {
  return path.substr(0, path.rfind('/') + 1);
}

}  // namespace

Result<std::unique_ptr<ByteSink>> OpenSplitSink(
    const std::string& path, const std::string& data_file, uint64_t split,
    const FileSinkOptions& options) {
  const std::string data = FolderOf(path) + data_file;
  HAULWAY_TRY(CheckIsNew(data));
  HAULWAY_ASSIGN(const FinalName name, FollowLinks(path));
  const std::string folder = FolderOf(name.path);
  if (name.path.substr(folder.size()) == data_file &&
      IsSameFile(folder + ".", FolderOf(data) + ".")) {
    return Status(Code::kInvalidArgument,
                  "data file has the name of the file itself")
        .Of(data);
  }
  auto sink = std::make_unique<SplitSink>(data, split, options.durability);
  HAULWAY_TRY(sink->Open(path, options));
  return std::unique_ptr<ByteSink>(std::move(sink));
}

}  // namespace haulway
