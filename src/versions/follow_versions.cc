// Design: each look lists the folder once, and reads only versions that may be
// the next one. On this machine the kernel tells of new names in the folder and
// in the folders of versions that are not whole yet (inotify); the list is the
// truth, and the notice only ends the wait early. So nothing is missed where
// there are no notices, as on network file systems. Versions that came are not
// looked at again.

#include <fmt/format.h>
#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/posix.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/version_source.h"
#include "delta/version_facts.h"
#include "haulway/folder.h"
#include "haulway/options.h"
#include "haulway/version_follower.h"
#include "io/model_names.h"
#include "versions/version_folders.h"
#include "versions/version_names.h"

namespace haulway {

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// How often a wait looks whether it is cancelled.
constexpr Milliseconds kLook(50);
// One save makes several names; they are looked at together.
constexpr Milliseconds kTogether(3);
// Versions that are not there, before others that are, may be on their way for
// so long.
constexpr Milliseconds kGrace(1000);
constexpr uint64_t kMostPointerBytes = 4096;

// A Notices tells of new names in local folders.
class Notices {
 public:
  Notices() : fd_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {}

  // Returns a number for Forget(); -1 if the folder cannot be watched.
  int Watch(const std::string& folder) {
    if (fd_.get() < 0) return -1;
    return ::inotify_add_watch(
        fd_.get(), folder.c_str(),
        IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE | IN_ONLYDIR);
  }
  void Forget(int watch) {
    if (watch >= 0) (void)::inotify_rm_watch(fd_.get(), watch);
  }

  // Waits for a notice, at most for `wait`. Returns whether one came.
  bool Wait(Milliseconds wait) {
    pollfd waiting{fd_.get(), POLLIN, 0};
    const nfds_t count = fd_.get() < 0 ? 0 : 1;
    if (::poll(&waiting, count, static_cast<int>(wait.count())) <= 0) {
      return false;
    }
    (void)::poll(nullptr, 0, static_cast<int>(kTogether.count()));
    std::array<char, 16384> ignored;
    while (::read(fd_.get(), ignored.data(), ignored.size()) > 0) {
    }
    return true;
  }

 private:
  const UniqueFd fd_;
};

// What a folder holds.
struct Listing {
  std::multimap<uint64_t, VersionFolder> folders;  // By number.
  bool has_latest = false;
};

void AddFolder(VersionFolder folder, Listing* listing) {
  const std::string_view digits = delta::DigitsOfFolder(LastPart(folder.path));
  if (digits.empty()) return;
  listing->folders.emplace(NumberFromDigits(digits), std::move(folder));
}

using Found = Result<std::optional<WeightVersion>>;
Found None() { return std::optional<WeightVersion>(); }

// Lists a local folder. Whether the folders of versions have an index is found
// when they are opened.
Status ListFolderOfRun(const std::string& root, const std::string& path,
                       Listing* listing) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name == "latest" && path == root) listing->has_latest = true;
    if (IsLinkWithin(*at)) continue;
    AddFolder({.path = fmt::format("{}/{}", path, name), .has_index = true},
              listing);
  }
  if (!error || error == std::errc::no_such_file_or_directory) return Status();
  return Status::FromErrno(error.value(), "cannot list the versions").Of(path);
}

}  // namespace

class VersionFollower::State {
 public:
  State(std::string_view uri, const FollowOptions& options)
      : root_(uri), options_(options), last_(options.newer_than) {
    if (const auto path = LocalPath(uri)) {
      is_local_ = true;
      root_ = path->empty() ? "." : *path;
      notices_ = std::make_unique<Notices>();
    }
    while (root_.size() > 1 && root_.ends_with('/')) root_.pop_back();
    sources_.io = IoMode::kPread;
    sources_.remote = options_.remote;
  }

  Result<WeightVersion> Next(std::optional<Milliseconds> wait) {
    const auto end = Clock::now() + wait.value_or(Milliseconds(0));
    while (true) {
      if (CancelScope::IsCancelled()) {
        return Status(Code::kCancelled, "waiting for a version was cancelled");
      }
      if (is_local_) {
        (void)notices_->Watch(root_);
        (void)notices_->Watch(root_ + "/updates");
      }
      HAULWAY_ASSIGN(std::optional<WeightVersion> version, Look());
      if (version.has_value()) {
        last_ = version->number;
        has_come_ = true;
        stuck_at_.clear();
        WatchVersion({});
        return *std::move(version);
      }
      const auto now = Clock::now();
      if (wait.has_value() && now >= end) {
        return Status(Code::kTimeout,
                      fmt::format("no version came for {} seconds{}",
                                  static_cast<double>(wait->count()) / 1000,
                                  is_held_back_ ? ": the file 'latest' holds "
                                                  "back newer ones, which are "
                                                  "here"
                                                : ""))
            .Of(ShownName(root_));
      }
      auto until = now + options_.poll;
      if (wait.has_value()) until = std::min(until, end);
      Pause(until);
    }
  }

 private:
  // Watches the folder of the version that is waited for; empty: none.
  void WatchVersion(const std::string& path) {
    if (!is_local_ || path == watched_) return;
    notices_->Forget(watch_);
    watch_ = path.empty() ? -1 : notices_->Watch(path);
    // A folder that cannot be watched yet is tried again.
    watched_ = watch_ < 0 ? "" : path;
  }

  // Waits until then, or until there is a notice.
  void Pause(Clock::time_point until) {
    while (!CancelScope::IsCancelled()) {
      const auto left = std::chrono::ceil<Milliseconds>(until - Clock::now());
      if (left.count() <= 0) return;
      const auto step = std::min(left, kLook);
      if (!is_local_) {
        (void)::poll(nullptr, 0, static_cast<int>(step.count()));
      } else if (notices_->Wait(step)) {
        return;
      }
    }
  }

  // Lists the folders of versions. A folder that is not there has none.
  Result<Listing> List() const {
    Listing listing;
    if (is_local_) {
      HAULWAY_TRY(ListFolderOfRun(root_, root_, &listing));
      HAULWAY_TRY(ListFolderOfRun(root_, root_ + "/updates", &listing));
      return listing;
    }
    auto folders =
        FindVersionFolders(root_, options_.remote, &listing.has_latest);
    if (!folders.ok()) {
      if (folders.status().code() == Code::kNotFound) return listing;
      return folders.status();
    }
    for (VersionFolder& folder : *folders) {
      AddFolder(std::move(folder), &listing);
    }
    return listing;
  }

  // Returns the number in the file `latest`; 0 if its text does not end in the
  // name of a version, as while it is being written.
  Result<uint64_t> Latest() const {
    const auto source = OpenSource(fmt::format("{}/latest", root_), sources_);
    if (!source.ok()) {
      if (source.status().code() == Code::kNotFound) return 0;
      return source.status();
    }
    const uint64_t size = (*source)->size();
    if (size > kMostPointerBytes) return 0;
    std::string text(static_cast<size_t>(size), '\0');
    HAULWAY_TRY((*source)->ReadAt(0, std::as_writable_bytes(std::span(text))));
    while (!text.empty() && (static_cast<unsigned char>(text.back()) <= ' ' ||
                             text.back() == '/')) {
      text.pop_back();
    }
    const std::string_view name = LastPart(text);
    const std::string_view digits = delta::DigitsOfFolder(name);
    if (!digits.empty()) return NumberFromDigits(digits);
    const std::string_view number = delta::NumberOf(name);
    return number.empty() ? 0 : NumberFromDigits(number);
  }

  // Returns a version if it is whole.
  Found Whole(uint64_t number, const Listing& listing) {
    std::optional<WeightVersion> whole;
    const auto [begin, end] = listing.folders.equal_range(number);
    for (auto at = begin; at != end; ++at) {
      WatchVersion(at->second.path);
      WeightVersion version;
      HAULWAY_TRY(DescribeVersion(at->second, sources_, &version));
      if (whole.has_value()) HAULWAY_TRY(CheckHeldOnce(*whole, version));
      if (version.complete && !whole.has_value()) whole = std::move(version);
    }
    return whole;
  }

  // Returns whether a version may be the first of a chain.
  static bool BeginsChain(const WeightVersion& version) {
    if (version.kind == "full") return true;
    const std::string_view number = delta::NumberOf(version.base);
    return number.empty() || NumberFromDigits(number) == 0;
  }

  // Returns the next version if it is there and whole.
  Found Look() {
    HAULWAY_ASSIGN(const Listing listing, List());
    const bool is_first_look = std::exchange(is_first_look_, false);
    if (listing.folders.empty()) return None();
    if (is_first_look) newest_at_first_ = listing.folders.rbegin()->first;
    uint64_t latest = UINT64_MAX;
    if (listing.has_latest) {
      HAULWAY_ASSIGN(latest, Latest());
    }
    is_held_back_ = listing.folders.rbegin()->first > latest;
    Found found = None();
    if (last_.has_value() && listing.folders.contains(*last_ + 1)) {
      if (*last_ + 1 > latest) return None();
      found = Whole(*last_ + 1, listing);
    } else {
      found = LookForFirst(listing, latest);
    }
    if (!found.ok() || found->has_value()) return found;
    return PassOver(listing, latest);
  }

  // Returns a full version that is newer than the one that should come, if that
  // cannot be expected any more: versions after it were there at the first
  // look, as in a run from which some were removed. Fails with kNotFound if
  // there is none.
  Found PassOver(const Listing& listing, uint64_t latest) {
    const uint64_t next =
        last_.has_value() ? *last_ + 1 : listing.folders.begin()->first;
    if (next > latest || newest_at_first_ < next) return None();
    std::vector<uint64_t> numbers;
    for (const auto& [number, folder] : listing.folders) {
      numbers.push_back(number);
    }
    const auto now = Clock::now();
    if (numbers != stuck_at_) {
      stuck_at_ = std::move(numbers);
      stuck_since_ = now;
    }
    if (now - stuck_since_ < kGrace) return None();
    stuck_since_ = now;
    for (auto at = listing.folders.upper_bound(next);
         at != listing.folders.end() && at->first <= latest;
         at = listing.folders.upper_bound(at->first)) {
      HAULWAY_ASSIGN(std::optional<WeightVersion> version,
                     Whole(at->first, listing));
      if (version.has_value() && version->kind == "full") return version;
    }
    std::string missing = fmt::format("{:06}", next);
    if (listing.folders.contains(next)) {
      // It may become whole; but the first one may lack its base.
      HAULWAY_ASSIGN(const std::optional<WeightVersion> first,
                     Whole(next, listing));
      if (!first.has_value() || last_.has_value()) return None();
      missing = first->base;
    }
    return Status(
               Code::kNotFound,
               fmt::format("version {} is not here, on which newer ones "
                           "build, and none of these is full: publish a full "
                           "version, or put the missing one back",
                           Quote(missing)))
        .Of(ShownName(root_));
  }

  // Returns the version with which to begin, or to go on if all versions up to
  // the last one were removed.
  Found LookForFirst(const Listing& listing, uint64_t latest) {
    for (auto at = listing.folders.begin(); at != listing.folders.end();
         at = listing.folders.upper_bound(at->first)) {
      const uint64_t number = at->first;
      if (number > latest || (last_.has_value() && number <= *last_)) {
        return None();
      }
      HAULWAY_ASSIGN(std::optional<WeightVersion> version,
                     Whole(number, listing));
      if (!version.has_value()) return None();
      const bool begins =
          last_.has_value() ? version->kind == "full" : BeginsChain(*version);
      // A delta without its base, of a run whose first versions were removed.
      if (!begins) continue;
      const bool is_sure = has_come_ || newest_at_first_.has_value() ||
                           (!last_.has_value() && number <= 1);
      if (is_sure) return version;
      // Earlier ones may be on their way.
      if (number != first_seen_) {
        first_seen_ = number;
        first_seen_at_ = Clock::now();
      }
      if (Clock::now() - first_seen_at_ >= kGrace) return version;
      return None();
    }
    return None();
  }

  std::string root_;
  const FollowOptions options_;
  bool is_local_ = false;
  SourceOptions sources_;
  std::unique_ptr<Notices> notices_;
  std::optional<uint64_t> last_;
  bool has_come_ = false;
  bool is_first_look_ = true;
  bool is_held_back_ = false;                // By `latest`, at the last look.
  std::optional<uint64_t> newest_at_first_;  // At the first look.
  uint64_t first_seen_ = 0;
  Clock::time_point first_seen_at_;
  std::vector<uint64_t>
      stuck_at_;  // All versions while the next one is missed.
  Clock::time_point stuck_since_;
  int watch_ = -1;
  std::string watched_;
};

VersionFollower::VersionFollower(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
VersionFollower::~VersionFollower() = default;

Result<std::unique_ptr<VersionFollower>> VersionFollower::Open(
    std::string_view uri, const FollowOptions& options) {
  return OrNoMemory([&]() -> Result<std::unique_ptr<VersionFollower>> {
    if (!HasFolders(uri)) {
      return Status(Code::kUnsupported,
                    "versions are followed in local folders and below s3:// "
                    "names")
          .Of(ShownName(uri));
    }
    return std::unique_ptr<VersionFollower>(
        new VersionFollower(std::make_unique<State>(uri, options)));
  });
}

Result<WeightVersion> VersionFollower::Next(std::optional<Milliseconds> wait) {
  return OrNoMemory([&] { return state_->Next(wait); });
}

}  // namespace haulway
