#include "checkpoint/folder_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "base/text.h"
#include "checkpoint/signed_model.h"

namespace haulway {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;

class FolderList : public ByteSource {
 public:
  FolderList(ranks::ListKind kind, std::string name, std::string folder,
             std::vector<std::string> names, const SourceOptions& options)
      : folder_(std::move(folder)),
        names_(std::move(names)),
        options_(options),
        list_(ranks::EncodeRankList(kind, names_)),
        bytes_(MakeMemorySource(std::as_bytes(std::span(list_)))),
        name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  uint64_t size() const override { return bytes_->size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    return bytes_->ReadAt(offset, out);
  }
  // Returns the traits of a file, because the files are read next.
  SourceTraits Look(std::span<const ByteRange>) const override {
    const auto first = OpenNeighbour(names_.front());
    return first.ok() ? (*first)->Look({}) : SourceTraits();
  }
  std::optional<RemoteStats> remote_stats() const override {
    const std::lock_guard lock(mutex_);
    std::optional<RemoteStats> all;
    for (const SourcePtr& source : opened_) {
      if (source == nullptr) continue;
      const auto one = source->remote_stats();
      if (!one.has_value()) continue;
      if (!all.has_value()) all.emplace();
      all->requests += one->requests;
      all->retries += one->retries;
      all->received_bytes += one->received_bytes;
      all->unvalidated = all->unvalidated || one->unvalidated;
    }
    return all;
  }
  std::shared_ptr<const void> BeginParsing() const override {
    return BeginParsingOf(options_);
  }
  Result<SourcePtr> OpenNeighbour(std::string_view name) const override {
    const auto found = std::ranges::find(names_, name);
    if (found == names_.end()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{} is not in the list", Quote(name)))
          .Of(name_);
    }
    const auto row = static_cast<size_t>(found - names_.begin());
    {
      const std::lock_guard lock(mutex_);
      if (opened_[row] != nullptr) return opened_[row];
    }
    HAULWAY_ASSIGN(SourcePtr source, OpenSource(folder_ + *found, options_));
    const std::lock_guard lock(mutex_);
    if (opened_[row] == nullptr) opened_[row] = std::move(source);
    return opened_[row];
  }

 private:
  const std::string folder_;
  const std::vector<std::string> names_;
  const SourceOptions options_;
  const std::string list_;
  const SourcePtr bytes_;
  const std::string name_;
  mutable std::mutex mutex_;
  mutable std::vector<SourcePtr> opened_ HAULWAY_GUARDED_BY(mutex_) =
      std::vector<SourcePtr>(names_.size());
};

}  // namespace

SourcePtr ListFolderFiles(ranks::ListKind kind, std::string name,
                          std::string folder,
                          const std::vector<std::string>& files,
                          const SourceOptions& options) {
  std::vector<std::string> names;
  for (const std::string& file : files) {
    names.push_back(file.substr(folder.size()));
  }
  return std::make_shared<const FolderList>(
      kind, std::move(name), std::move(folder), std::move(names), options);
}

}  // namespace haulway
