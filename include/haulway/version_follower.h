// Following a run: its versions, one after another, as they become whole.

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "haulway/delta.h"
#include "haulway/open.h"
#include "haulway/status.h"

namespace haulway {

struct FollowOptions {
  // The number of the version that the caller has; without it, the versions
  // that are there come first.
  std::optional<uint64_t> newer_than = std::nullopt;
  // How long to wait before the folder is listed again. Changes of a local
  // folder by this machine are noticed at once.
  std::chrono::milliseconds poll{200};
  RemoteOptions remote{};
};

// A VersionFollower waits for the versions of a local folder, or below an s3://
// name.
//
// A version is whole when its index is valid and every shard is as long as its
// header says. Versions come in the order of their numbers; one that is not
// there yet, or not whole, holds back those after it. The first one is that
// after `newer_than`; without it, the first that is there and begins a chain: a
// full version, or one that builds on version 0 or on a name that is not a
// number. If all versions up to the last one that came were removed, the next
// one that is full follows; so it does after a second if the next version is
// not there, or not whole, although newer ones were there at the first look. If
// the folder has a file `latest`, whose text ends in the name of a version,
// none beyond that comes.
//
// Threads: one at a time.
class HAULWAY_EXPORT VersionFollower {
 public:
  // Does not look at the folder, which may not exist yet. Fails with
  // kUnsupported for a URL that cannot be listed.
  static Result<std::unique_ptr<VersionFollower>> Open(
      std::string_view uri, const FollowOptions& options = {});
  VersionFollower(const VersionFollower&) = delete;
  VersionFollower& operator=(const VersionFollower&) = delete;
  ~VersionFollower();

  // Returns the next version. Waits for it, at most for `wait`: then fails with
  // kTimeout. Fails with kNotFound, and names the version that is missing, if
  // the versions that were there at the first look build on it, and no newer
  // one is full. Fails with kCancelled within a tenth of a second if the
  // CancelScope is cancelled, and as listing and requests do; it may be called
  // again afterwards.
  Result<WeightVersion> Next(
      std::optional<std::chrono::milliseconds> wait = std::nullopt);

  class State;

 private:
  explicit VersionFollower(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace haulway
