#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "haulway/layout.h"
#include "io/file_system.h"

namespace haulway {

namespace {

class SplitSink : public ByteSink {
 public:
  SplitSink(std::unique_ptr<ByteSink> first, std::unique_ptr<ByteSink> second,
            uint64_t split)
      : first_(std::move(first)),
        second_(std::move(second)),
        split_(split),
        name_(first_->name()) {}

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
    HAULWAY_TRY(second_->Prepare(size - std::min(size, split_)));
    return first_->Prepare(std::min(size, split_));
  }

  Status Commit(uint64_t size) override {
    HAULWAY_TRY(Prepare(size));
    HAULWAY_TRY(second_->Commit(size - std::min(size, split_)));
    return first_->Commit(std::min(size, split_));
  }

 private:
  const std::unique_ptr<ByteSink> first_;
  const std::unique_ptr<ByteSink> second_;
  const uint64_t split_;
  const std::string name_;
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
  struct stat facts;
  if (::lstat(data.c_str(), &facts) == 0) {
    return Status(Code::kInvalidArgument,
                  "data file exists already, and may be another's")
        .Of(data);
  }
  HAULWAY_ASSIGN(const FinalName name, FollowLinks(path));
  const std::string folder = FolderOf(name.path);
  if (name.path.substr(folder.size()) == data_file &&
      IsSameFile(folder + ".", FolderOf(data) + ".")) {
    return Status(Code::kInvalidArgument,
                  "data file has the name of the file itself")
        .Of(data);
  }
  FileSinkOptions anew = options;
  anew.existing = Existing::kRefuse;
  HAULWAY_ASSIGN(std::unique_ptr<ByteSink> first, OpenFileSink(path, options));
  HAULWAY_ASSIGN(std::unique_ptr<ByteSink> second, OpenFileSink(data, anew));
  return std::unique_ptr<ByteSink>(
      std::make_unique<SplitSink>(std::move(first), std::move(second), split));
}

}  // namespace haulway
