#include "versions/version_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "haulway/folder.h"
#include "io/file_system.h"
#include "io/model_names.h"

namespace haulway {

namespace {

Status Exists(std::string_view path) {
  return Status(Code::kInvalidArgument,
                "the folder of the version exists: versions are never changed")
      .Of(path);
}

// Renames a folder unless the new name is taken.
Status RenameFolder(const std::string& from, const std::string& to) {
#ifdef RENAME_NOREPLACE
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                  RENAME_NOREPLACE) == 0) {
    return Status();
  }
  // EINVAL: the file system cannot do it in one step.
  if (errno != EINVAL && errno != ENOSYS) {
    if (errno == EEXIST) return Exists(to);
    return Status::FromErrno(errno, "cannot rename the folder").Of(to);
  }
#endif
  std::error_code ignored;
  if (std::filesystem::exists(to, ignored)) return Exists(to);
  if (::rename(from.c_str(), to.c_str()) == 0) return Status();
  return Status::FromErrno(errno, "cannot rename the folder").Of(to);
}

class LocalFolder : public NewFolder {
 public:
  LocalFolder(std::string path, Durability durability)
      : path_(std::move(path)), durability_(durability) {
    static std::atomic<uint64_t> next = 0;
    const std::string_view last = LastPart(path_);
    parent_ = path_.substr(0, path_.size() - last.size());
    hidden_ = fmt::format("{}.{}.{}-{}.haulway-tmp", parent_, last, ::getpid(),
                          next.fetch_add(1));
  }
  ~LocalFolder() override {
    std::error_code ignored;
    if (!hidden_.empty()) std::filesystem::remove_all(hidden_, ignored);
  }

  Status Begin() {
    std::error_code error;
    if (std::filesystem::exists(path_, error)) return Exists(path_);
    std::filesystem::create_directories(hidden_, error);
    if (!error) return Status();
    return Status::FromErrno(error.value(), "cannot make the folder").Of(path_);
  }

  Result<std::unique_ptr<ByteSink>> OpenFile(const std::string& name) override {
    return OpenFileSink(fmt::format("{}/{}", hidden_, name),
                        {.durability = durability_});
  }

  Status Commit() override {
    const bool is_durable = durability_ == Durability::kFull;
    if (is_durable) HAULWAY_TRY(SyncFolder(hidden_));
    HAULWAY_TRY(RenameFolder(hidden_, path_));
    hidden_.clear();
    if (!is_durable) return Status();
    return SyncFolder(parent_.empty() ? "." : parent_);
  }

 private:
  const std::string path_;
  const Durability durability_;
  std::string parent_;
  std::string hidden_;
};

class RemoteFolder : public NewFolder {
 public:
  RemoteFolder(std::string path, RemoteOptions remote)
      : path_(std::move(path)), remote_(std::move(remote)) {}

  Status Begin() const {
    SourceOptions options;
    options.remote = remote_;
    const auto index =
        OpenSource(path_ + "/model.safetensors.index.json", options);
    if (index.ok()) return Exists(path_);
    if (index.status().code() == Code::kNotFound) return Status();
    return index.status();
  }

  Result<std::unique_ptr<ByteSink>> OpenFile(const std::string& name) override {
    return OpenSink(fmt::format("{}/{}", path_, name), {.remote = remote_});
  }

  Status Commit() override { return Status(); }

 private:
  const std::string path_;
  const RemoteOptions remote_;
};

}  // namespace

Result<std::unique_ptr<NewFolder>> NewFolder::Make(std::string_view path,
                                                   const Options& options) {
  const std::optional<std::string> local = LocalPath(path);
  std::string name = local.has_value() ? *local : std::string(path);
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  if (local.has_value()) {
    auto folder =
        std::make_unique<LocalFolder>(std::move(name), options.durability);
    HAULWAY_TRY(folder->Begin());
    return std::unique_ptr<NewFolder>(std::move(folder));
  }
  if (!name.starts_with("s3://")) {
    return Status(Code::kUnsupported,
                  "versions are written to local folders and s3:// names")
        .Of(ShownName(path));
  }
  auto folder = std::make_unique<RemoteFolder>(std::move(name), options.remote);
  HAULWAY_TRY(folder->Begin());
  return std::unique_ptr<NewFolder>(std::move(folder));
}

}  // namespace haulway
