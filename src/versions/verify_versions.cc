// Design: first the files of each version are checked for themselves. Then the
// newest version of each chain is decoded, with the checksums of every step:
// that checks all its versions in one pass over the base. A version on which a
// damaged one builds is checked as the newest of a chain of its own.

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/is_of_source.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/sharded_reader.h"
#include "checkpoint/version_chain.h"
#include "checkpoint/version_source.h"
#include "delta/version_facts.h"
#include "haulway/delta.h"

namespace haulway {

namespace {

class VersionsVerifier {
 public:
  explicit VersionsVerifier(const VerifyVersionsOptions& options)
      : options_(options) {}

  Result<VersionsReport> Run(std::string_view uri) {
    HAULWAY_ASSIGN(versions_, ListVersions(uri, options_.source.remote));
    report_.versions = versions_.size();
    if (versions_.empty()) {
      return Status(Code::kNotFound, "no versions of weights are here").Of(uri);
    }
    is_good_.resize(versions_.size());
    is_in_chain_.resize(versions_.size());
    for (size_t i = 0; i < versions_.size(); ++i) {
      if (options_.cancel != nullptr && options_.cancel->load()) {
        return Status(Code::kCancelled, "verifying was cancelled");
      }
      HAULWAY_ASSIGN(is_good_[i], HasGoodFiles(versions_[i]));
    }
    for (size_t i = 0; i < versions_.size(); ++i) {
      if (is_good_[i] && versions_[i].kind == "delta" && IsNewest(i)) {
        HAULWAY_TRY(CheckChain(versions_[i]));
      }
    }
    // In a circle none is the newest.
    for (size_t i = 0; i < versions_.size(); ++i) {
      if (is_good_[i] && versions_[i].kind == "delta" && !is_in_chain_[i]) {
        HAULWAY_TRY(CheckChain(versions_[i]));
      }
    }
    report_.ok = report_.findings.empty() && report_.unchecked.empty();
    return std::move(report_);
  }

 private:
  Status Note(const Status& status, const std::string& version,
              const std::string& tensor = {}) {
    const bool has_failed =
        IsOfSource(status) && status.code() != Code::kNotFound;
    if (has_failed) return status;
    report_.findings.push_back(
        {status.code(), std::string(status.message()), version, tensor});
    return Status();
  }

  Result<std::shared_ptr<const ByteSource>> OpenIndex(
      const WeightVersion& version) const {
    return OpenSource(fmt::format("{}/{}", version.path, kVersionIndexName),
                      options_.source);
  }

  // Checks the files of a version, without those of its base.
  Result<bool> HasGoodFiles(const WeightVersion& version) {
    const auto check = [&]() -> Status {
      HAULWAY_ASSIGN(const auto source, OpenIndex(version));
      HAULWAY_ASSIGN(const ShardedIndex index, ReadShardedIndex(*source, {}));
      if (delta::IsDelta(index.metadata)) {
        return OpenDelta(*source, index, {}).status();
      }
      HAULWAY_ASSIGN(const auto reader, OpenFilesOf(*source, index, {}));
      HAULWAY_ASSIGN(const CheckedTensors checked,
                     CheckFull(*reader, options_.threads, options_.cancel));
      report_.checked_bytes += checked.bytes;
      for (const WrongTensor& one : checked.wrong) {
        HAULWAY_TRY(Note(one.status, version.id, one.tensor));
      }
      return Status();
    };
    Status status = OrNoMemory(check);
    if (status.ok()) return true;
    HAULWAY_TRY(Note(std::move(status).Of(version.path), version.id));
    return false;
  }

  // Returns whether no good version builds on this one.
  bool IsNewest(size_t i) const {
    for (size_t other = 0; other < versions_.size(); ++other) {
      if (other != i && is_good_[other] && versions_[other].kind == "delta" &&
          delta::IsSameVersion(versions_[other].base, versions_[i].id)) {
        return false;
      }
    }
    return true;
  }

  // Returns the rows of a version and of those on which it builds, it first.
  std::vector<size_t> ChainOf(const WeightVersion& version) const {
    std::vector<size_t> chain = {
        static_cast<size_t>(&version - versions_.data())};
    while (versions_[chain.back()].kind == "delta" &&
           chain.size() <= versions_.size()) {
      const auto base =
          std::ranges::find_if(versions_, [&](const WeightVersion& one) {
            return delta::IsSameVersion(one.id, versions_[chain.back()].base);
          });
      if (base == versions_.end()) break;
      chain.push_back(static_cast<size_t>(base - versions_.begin()));
    }
    return chain;
  }

  // Returns whether the chain lacks only the checkpoint before the first
  // version, which nobody named.
  bool LacksOnlyBase(const std::vector<size_t>& chain) const {
    const WeightVersion& first = versions_[chain.back()];
    return options_.source.base.empty() && first.kind == "delta" &&
           chain.size() <= versions_.size() &&
           delta::CheckBase(first.id, first.base, std::nullopt).ok();
  }

  Status CheckChain(const WeightVersion& version) {
    const std::vector<size_t> chain = ChainOf(version);
    for (const size_t row : chain) is_in_chain_[row] = true;
    const auto is_faulty = [&](size_t row) { return !is_good_[row]; };
    if (std::ranges::any_of(chain, is_faulty)) return Status();
    const auto open =
        [&]() -> Result<std::unique_ptr<const delta::VersionReader>> {
      HAULWAY_ASSIGN(const auto source, OpenIndex(version));
      HAULWAY_ASSIGN(const ShardedIndex index, ReadShardedIndex(*source, {}));
      return OpenVersionReader(*source, index, {});
    };
    const auto reader = OrNoMemory(open);
    if (reader.status().code() == Code::kNotFound && LacksOnlyBase(chain)) {
      for (size_t i = chain.size(); i > 0; --i) {
        const std::string& id = versions_[chain[i - 1]].id;
        if (std::ranges::count(report_.unchecked, id) == 0) {
          report_.unchecked.push_back(id);
        }
      }
      return Status();
    }
    if (!reader.ok()) return Note(reader.status(), version.id);
    HAULWAY_ASSIGN(const CheckedTensors checked,
                   CheckChanged(**reader, options_.threads, options_.cancel));
    report_.checked_bytes += checked.bytes;
    for (const WrongTensor& one : checked.wrong) {
      HAULWAY_TRY(Note(one.status, (*reader)->deltas()[one.delta].facts.version,
                       one.tensor));
    }
    return Status();
  }

  const VerifyVersionsOptions& options_;
  std::vector<WeightVersion> versions_;
  std::vector<bool> is_good_;
  std::vector<bool> is_in_chain_;  // A version that was checked needs it.
  VersionsReport report_;
};

}  // namespace

Result<VersionsReport> VerifyVersions(std::string_view uri,
                                      const VerifyVersionsOptions& options) {
  return OrNoMemory([&] { return VersionsVerifier(options).Run(uri); });
}

}  // namespace haulway
