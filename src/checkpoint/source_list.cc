// Presents several sources as one: its bytes are an index, and the sources are
// its neighbours.

#include "checkpoint/source_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/choose_model.h"
#include "checkpoint/sharded_index.h"
#include "checkpoint/signed_model.h"
#include "haulway/open.h"
#include "io/model_names.h"
#include "ranks/rank_list.h"

namespace haulway {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;

// Returns the last parts of the names, if all are names of the files of
// processes, each another one; else nothing.
std::vector<std::string> ProcessNames(const std::vector<std::string>& names) {
  std::vector<std::string> last;
  std::set<std::string_view> taken;
  for (const std::string& name : names) {
    const std::string_view part = LastPart(name);
    if (!IsOfProcess(part) || !taken.insert(part).second) return {};
    last.emplace_back(part);
  }
  return last;
}

// Returns the names of the sources, made unique.
std::vector<std::string> NamesOf(const std::vector<SourcePtr>& sources) {
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (const SourcePtr& source : sources) {
    const std::string name = Escape(source->name());
    std::string unique = name;
    for (int i = 2; !taken.insert(unique).second; ++i) {
      unique = fmt::format("{} ({})", name, i);
    }
    names.push_back(std::move(unique));
  }
  std::vector<std::string> of_processes = ProcessNames(names);
  return of_processes.empty() ? names : of_processes;
}

// Returns the listing of the files of processes, or a list of shards.
std::string Encode(const std::vector<std::string>& names) {
  if (names.empty() || ProcessNames(names) != names) {
    return EncodeShardList(names);
  }
  return ranks::EncodeRankList(IsDeepSpeedName(names.front())
                                   ? ranks::ListKind::kDeepSpeed
                                   : ranks::ListKind::kTorch,
                               names);
}

class SourceList : public ByteSource {
 public:
  // `name`: name of the list; if empty, made from those of its sources.
  SourceList(std::string name, std::vector<SourcePtr> sources)
      : sources_(std::move(sources)),
        names_(NamesOf(sources_)),
        index_(Encode(names_)),
        bytes_(MakeMemorySource(std::as_bytes(std::span(index_)))),
        name_(!name.empty() ? std::move(name)
                            : fmt::format("{} and {} more", names_.front(),
                                          names_.size() - 1)) {}

  std::string_view name() const override { return name_; }
  uint64_t size() const override { return bytes_->size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    return bytes_->ReadAt(offset, out);
  }
  // Returns the traits of the first file, because the files are read next.
  SourceTraits Look(std::span<const ByteRange>) const override {
    return sources_.front()->Look({});
  }
  // Returns the sums, and a version that combines those of all sources.
  std::optional<RemoteStats> remote_stats() const override {
    std::optional<RemoteStats> all;
    bool has_versions = true;
    for (const SourcePtr& source : sources_) {
      const auto one = source->remote_stats();
      if (!one.has_value()) continue;
      if (!all.has_value()) all.emplace();
      all->requests += one->requests;
      all->retries += one->retries;
      all->received_bytes += one->received_bytes;
      all->unvalidated = all->unvalidated || one->unvalidated;
      has_versions = has_versions && !one->version.empty();
      all->version += one->version + " ";
    }
    if (all.has_value() && !has_versions) all->version.clear();
    return all;
  }
  std::shared_ptr<const void> BeginParsing() const override {
    auto all = std::make_shared<std::vector<std::shared_ptr<const void>>>();
    for (const SourcePtr& source : sources_) {
      all->push_back(source->BeginParsing());
    }
    return all;
  }
  Result<SourcePtr> OpenNeighbour(std::string_view name) const override {
    const auto found = std::ranges::find(names_, name);
    if (found != names_.end()) return sources_[found - names_.begin()];
    // What is beside the first file is beside the checkpoint.
    auto beside = sources_.front()->OpenNeighbour(name);
    if (beside.ok()) return beside;
    return Status(Code::kInvalidArgument,
                  fmt::format("{} is not in the list", Quote(name)))
        .Of(name_);
  }

 private:
  const std::vector<SourcePtr> sources_;
  const std::vector<std::string> names_;  // Parallel to sources_.
  const std::string index_;
  const SourcePtr bytes_;
  const std::string name_;
};

}  // namespace

Result<SourcePtr> ListSourcesAs(std::string name,
                                std::vector<SourcePtr> sources) {
  return OrNoMemory([&]() -> Result<SourcePtr> {
    return SourcePtr(std::make_shared<const SourceList>(std::move(name),
                                                        std::move(sources)));
  });
}

Result<SourcePtr> ListSources(std::vector<SourcePtr> sources) {
  if (sources.empty()) {
    return Status(Code::kInvalidArgument,
                  "list of shards is empty: expected one or more");
  }
  if (std::ranges::find(sources, nullptr) != sources.end()) {
    return Status(Code::kInvalidArgument, "list of shards holds a null source");
  }
  return ListSourcesAs("", std::move(sources));
}

Result<SourcePtr> OpenSources(std::span<const std::string> uris,
                              const SourceOptions& asked) {
  if (uris.size() == 1) return OpenSource(uris.front(), asked);
  SourceOptions options = asked;
  if (!uris.empty()) {
    HAULWAY_ASSIGN(options, WithSignedModel(uris.front(), asked));
  }
  std::vector<SourcePtr> sources;
  for (const std::string& uri : uris) {
    HAULWAY_ASSIGN(SourcePtr source, OpenSource(uri, options));
    sources.push_back(std::move(source));
  }
  return ListSources(std::move(sources));
}

}  // namespace haulway
