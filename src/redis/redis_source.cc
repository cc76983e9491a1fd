// Design: `header:0` holds the index, from which every key is computed. One
// pipeline of STRLEN commands then shows which data is split over several keys,
// and that nothing was evicted. Keys are not searched for: SCAN walks the whole
// database, treats the prefix as a pattern, and also finds keys of longer
// prefixes that continue with a colon.
//
// Redis has no validators. A WATCH on the first key tells whether any client
// has set the key since, but asking ends the watch. So two connections watch in
// turn, each starting before the other is asked, and no moment between opening
// and the last read is unwatched. Every writer of this layout sets that key
// before the others, or together with them. If a watching connection is lost,
// or belongs to the parent after a fork, two new ones are opened, and the
// content of the first key is compared with what was read before.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <iterator>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "haulway/options.h"
#include "net/fork_mutex.h"
#include "redis/redis.h"
#include "redis/redis_connection.h"
#include "redis/redis_layout.h"
#include "redis/redis_values.h"

namespace haulway::redis {

namespace {

using std::chrono::milliseconds;

constexpr int kAttempts = 6;
constexpr int kFirstWaitMs = 50;
// How often a wait checks whether it is cancelled.
constexpr milliseconds kWaitTick{50};
constexpr uint64_t kMostRangeBytes = 8 * kMiB;
constexpr uint64_t kMostInFlight = 16 * kMiB;  // Per connection.
constexpr int kParallel = 4;

// A server that was silent for the whole stall timeout is not asked again.
bool IsTransient(const Status& status) {
  return status.code() == Code::kUnavailable;
}

milliseconds WaitBefore(int attempt) {
  static thread_local std::minstd_rand random(std::random_device{}());
  const int most = kFirstWaitMs << attempt;
  return milliseconds(
      std::uniform_int_distribution<int>(most / 2, most)(random));
}

Status Wait(milliseconds left) {
  while (left.count() > 0) {
    if (CancelScope::IsCancelled()) {
      return Status(Code::kCancelled, "it was cancelled while waiting");
    }
    const milliseconds slice = std::min(left, kWaitTick);
    std::this_thread::sleep_for(slice);
    left -= slice;
  }
  return Status();
}

// Runs `work`, and retries it after a pause if the network fails or the server
// is busy. If time runs out during a later attempt, returns the failure of the
// attempt before, which is more informative than a timeout.
template <typename Work>
Status Retrying(const Deadline& deadline, const Work& work) {
  Status before;
  for (int attempt = 0;; ++attempt) {
    const Status status = work();
    if (status.code() == Code::kTimeout && deadline.IsOver() && !before.ok()) {
      return before;
    }
    if (!IsTransient(status) || attempt + 1 == kAttempts) return status;
    before = status;
    const milliseconds wait = WaitBefore(attempt);
    if (deadline.IsOver(wait)) return status;
    HAULWAY_TRY(Wait(wait));
  }
}

// A Pool keeps idle connections.
class Pool {
 public:
  explicit Pool(Target target) : target_(std::move(target)) {}

  const Target& target() const { return target_; }

  // Runs `work` on a connection; each retry may use another one.
  Status Run(const Deadline& deadline,
             const std::function<Status(Connection&)>& work) {
    return Retrying(deadline, [&] { return RunOnce(deadline, work); });
  }

 private:
  Status RunOnce(const Deadline& deadline,
                 const std::function<Status(Connection&)>& work) {
    std::unique_ptr<Connection> one;
    {
      const std::lock_guard lock(mutex_);
      if (process_ != ::getpid()) {
        // After a fork, the connections belong to the parent.
        idle_.clear();
        process_ = ::getpid();
      }
      if (!idle_.empty()) {
        one = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (one == nullptr) {
      HAULWAY_ASSIGN(one, Connection::Open(target_, deadline));
    }
    one->SetDeadline(deadline);
    Status status = work(*one);
    const std::lock_guard lock(mutex_);
    // After a failure the connection is closed: unread replies may be on their
    // way. If it was lost, so were those that were idle as long.
    if (status.ok()) {
      idle_.push_back(std::move(one));
    } else {
      idle_.clear();
    }
    return status;
  }

  const Target target_;
  net::ForkMutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_ HAULWAY_GUARDED_BY(mutex_);
  pid_t process_ HAULWAY_GUARDED_BY(mutex_) = ::getpid();
};

Status Replaced() {
  return Status(Code::kCorrupt,
                "it was replaced or removed since it was opened");
}

// A Watch tells whether a key was set, removed or evicted since the watch
// began.
class Watch {
 public:
  using Compare = std::function<Status(Connection& one)>;

  explicit Watch(std::string key) : key_(std::move(key)) {}

  Status Begin(const Target& target, const Deadline& deadline) {
    const auto lock = mutex_.Lock();
    return Open(target, deadline);
  }

  // Checks the key. If a connection was lost, opens new ones and calls
  // `compare` to check that the key still holds the same content.
  Status Check(const Target& target, const Deadline& deadline,
               const Compare& compare) {
    const uint64_t before = begun_.load();
    const auto lock = mutex_.Lock();
    if (is_replaced_) return Replaced();
    // A check that began after this call began is recent enough.
    if (!is_watched_ || passed_ > before) return Status();
    const uint64_t number = begun_.fetch_add(1) + 1;
    const bool is_anew = watchers_[1] == nullptr || process_ != ::getpid();
    Status status = is_anew ? Renew(target, deadline, compare) : Turn(deadline);
    // Unread replies may be on their way.
    if (!status.ok()) watchers_[1].reset();
    if (status.ok()) passed_ = number;
    return status;
  }

 private:
  Status Open(const Target& target, const Deadline& deadline) {
    process_ = ::getpid();
    for (auto& one : watchers_) {
      HAULWAY_ASSIGN(one, Connection::Open(target, deadline));
    }
    return Start(*watchers_[0]);
  }

  Status Renew(const Target& target, const Deadline& deadline,
               const Compare& compare) {
    HAULWAY_TRY(Open(target, deadline));
    return compare(*watchers_[1]);
  }

  Status Turn(const Deadline& deadline) {
    for (auto& one : watchers_) one->SetDeadline(deadline);
    HAULWAY_TRY(Start(*watchers_[1]));
    Connection& last = *watchers_[0];
    last.Add({"MULTI"});
    last.Add({"EXEC"});
    HAULWAY_TRY(last.Flush());
    HAULWAY_TRY(last.ReadOk());
    HAULWAY_ASSIGN(const std::optional<int64_t> replies, last.ReadArray());
    std::swap(watchers_[0], watchers_[1]);
    if (replies.has_value()) return Status();
    is_replaced_ = true;
    return Replaced();
  }

  // Begins to watch. If the user may not WATCH, reads are not checked.
  Status Start(Connection& one) {
    one.Add({"WATCH", key_});
    HAULWAY_TRY(one.Flush());
    Status status = one.ReadOk();
    if (status.code() != Code::kPermissionDenied) return status;
    is_watched_ = false;
    return Status();
  }

  const std::string key_;
  net::LongForkMutex mutex_;
  // The first connection watches. If the second is null, both must be reopened.
  std::unique_ptr<Connection> watchers_[2];
  pid_t process_ = ::getpid();
  std::atomic<uint64_t> begun_ = 0;  // Number of checks begun.
  // Number of the last check that found the key unchanged.
  uint64_t passed_ = 0;
  bool is_watched_ = true;
  bool is_replaced_ = false;  // Permanent.
};

class Source : public ByteSource {
 public:
  explicit Source(Target target)
      : pool_(std::move(target)),
        watch_(pool_.target().key.empty() ? HeaderKey(pool_.target().prefix)
                                          : pool_.target().key) {}

  Status Open() {
    const Deadline deadline(pool_.target().options.deadline);
    HAULWAY_TRY(BeginWatch(deadline));
    HAULWAY_TRY(pool_.target().key.empty() ? OpenFile(deadline)
                                           : OpenValue(deadline));
    return CheckUnchanged(deadline);
  }

  std::string_view name() const override { return pool_.target().name; }
  uint64_t size() const override { return size_; }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const ReadRequest request{offset, out};
    return ReadMany(std::span(&request, 1));
  }

  Status ReadMany(std::span<const ReadRequest> requests) const override {
    std::vector<Part> parts;
    for (const ReadRequest& request : requests) {
      if (!RangeFits(request.offset, request.out.size(), size_)) {
        return Status(Code::kTruncated,
                      fmt::format("cannot read {} bytes: it has {}",
                                  request.out.size(), size_))
            .At(request.offset)
            .Of(name());
      }
      Cut(request, &parts);
    }
    if (parts.empty()) return Status();
    const Deadline deadline(pool_.target().options.deadline);
    Status status = pool_.Run(
        deadline, [&](Connection& one) { return ReadParts(one, parts); });
    // A wrong value may belong to another file.
    if (status.ok() || status.code() == Code::kCorrupt) {
      Status unchanged = CheckUnchanged(deadline);
      if (!unchanged.ok()) status = std::move(unchanged);
    }
    if (!status.ok()) return std::move(status).Of(name());
    return Status();
  }

  SourceTraits Look(std::span<const ByteRange>) const override {
    SourceTraits traits;
    traits.remote = true;
    traits.parallel = kParallel;
    return traits;
  }

 private:
  struct Part {
    const Stored* stored;
    uint64_t begin;  // Offset in the value.
    std::span<std::byte> out;
  };

  Status BeginWatch(const Deadline& deadline) {
    return Retrying(deadline,
                    [&] { return watch_.Begin(pool_.target(), deadline); });
  }

  Status CheckUnchanged(const Deadline& deadline) const {
    return Retrying(deadline, [&] {
      return watch_.Check(pool_.target(), deadline,
                          [&](Connection& one) { return Compare(one); });
    });
  }

  // Checks that the first key still holds the same content; for a plain value,
  // only the length.
  Status Compare(Connection& one) const {
    const Target& target = pool_.target();
    const bool is_value = !target.key.empty();
    const std::string key = is_value ? target.key : HeaderKey(target.prefix);
    one.Add({"STRLEN", key});
    HAULWAY_TRY(one.Flush());
    HAULWAY_ASSIGN(const int64_t length, one.ReadInteger());
    const uint64_t expected = is_value ? size_ : head_.size();
    if (static_cast<uint64_t>(length) != expected) return Replaced();
    if (is_value) return Status();
    HAULWAY_ASSIGN(const Buffer found, AllocateBuffer(head_.size()));
    one.Add({"GET", key});
    HAULWAY_TRY(one.Flush());
    HAULWAY_ASSIGN(const bool is_there, one.ReadValue(found.mutable_bytes()));
    const bool is_same =
        is_there && std::ranges::equal(found.bytes(), head_.bytes());
    return is_same ? Status() : Replaced();
  }

  Result<uint64_t> LengthOf(const std::string& key, const Deadline& deadline) {
    uint64_t length = 0;
    HAULWAY_TRY(pool_.Run(deadline, [&](Connection& one) -> Status {
      HAULWAY_ASSIGN(const auto lengths, ReadLengths(one, std::span(&key, 1)));
      length = lengths.front();
      return Status();
    }));
    return length;
  }

  Status OpenValue(const Deadline& deadline) {
    const std::string& key = pool_.target().key;
    HAULWAY_ASSIGN(size_, LengthOf(key, deadline));
    if (size_ == 0) {
      bool is_there = false;
      HAULWAY_TRY(pool_.Run(deadline, [&](Connection& one) -> Status {
        one.Add({"EXISTS", key});
        HAULWAY_TRY(one.Flush());
        HAULWAY_ASSIGN(const int64_t count, one.ReadInteger());
        is_there = count != 0;
        return Status();
      }));
      if (!is_there) {
        return Status::FromErrno(ENOENT,
                                 fmt::format("there is no key {}", Quote(key)));
      }
    }
    stored_.push_back({0, size_, size_, key});
    return Status();
  }

  Status OpenFile(const Deadline& deadline) {
    const std::string key = HeaderKey(pool_.target().prefix);
    HAULWAY_ASSIGN(const uint64_t length, LengthOf(key, deadline));
    if (length == 0) {
      return Status::FromErrno(
          ENOENT, fmt::format("there is no key {}, with which a Tensorizer "
                              "file begins",
                              Quote(key)));
    }
    if (length > kMostStringBytes) {
      return Status(Code::kCorrupt,
                    fmt::format("it has a wrong length: expected at most {} "
                                "bytes, found {}",
                                kMostStringBytes, length))
          .In(fmt::format("key {}", Quote(key)));
    }
    HAULWAY_ASSIGN(head_, AllocateBuffer(length));
    stored_.push_back({0, length, length, key});
    size_ = length;
    std::vector<Part> parts;
    Cut({0, head_.mutable_bytes()}, &parts);
    HAULWAY_TRY(pool_.Run(
        deadline, [&](Connection& one) { return ReadParts(one, parts); }));
    auto layout = LayOutKeys(pool_.target().prefix, head_.bytes());
    if (!layout.ok()) {
      return std::move(layout).status().In(fmt::format("key {}", Quote(key)));
    }
    if (layout->pieces.front().length != length) {
      return Status(Code::kCorrupt,
                    fmt::format("it has a wrong length: expected {} bytes, "
                                "found {}",
                                layout->pieces.front().length, length))
          .In(fmt::format("key {}", Quote(key)));
    }
    stored_.clear();
    HAULWAY_TRY(FindKeys(layout->pieces, deadline));
    size_ = layout->file_bytes;
    return Status();
  }

  Status FindKeys(std::span<const Piece> pieces, const Deadline& deadline) {
    HAULWAY_TRY(pool_.Run(deadline, [&](Connection& one) -> Status {
      HAULWAY_ASSIGN(stored_, FindValues(one, pieces));
      return Status();
    }));
    for (const Stored& one : stored_) {
      if (one.length == 0) return Missing(one.key);
      if (one.length <= one.most) continue;
      return Status(Code::kCorrupt,
                    fmt::format("it has a wrong length: expected at most {} "
                                "bytes, found {}",
                                one.most, one.length))
          .In(fmt::format("key {}", Quote(one.key)));
    }
    return Status();
  }

  // Divides a request into parts of values. Bytes in no key are zero.
  void Cut(const ReadRequest& request, std::vector<Part>* parts) const {
    uint64_t at = request.offset;
    std::span<std::byte> out = request.out;
    auto stored = std::ranges::upper_bound(stored_, at, {}, &Stored::offset);
    if (stored != stored_.begin()) --stored;
    while (!out.empty()) {
      if (stored == stored_.end()) {
        std::ranges::fill(out, std::byte{0});
        return;
      }
      const uint64_t within = at - stored->offset;
      if (within >= stored->length) {
        const auto next = std::next(stored);
        if (next != stored_.end() && next->offset <= at) {
          stored = next;
          continue;
        }
        const uint64_t gap =
            next == stored_.end() ? out.size() : next->offset - at;
        const size_t zeros = std::min<uint64_t>(gap, out.size());
        std::ranges::fill(out.first(zeros), std::byte{0});
        out = out.subspan(zeros);
        at += zeros;
        stored = next;
        continue;
      }
      const uint64_t most = stored->length <= kMostValueBytes && within == 0 &&
                                    stored->length <= out.size()
                                ? kMostValueBytes
                                : kMostRangeBytes;
      const size_t length =
          std::min<uint64_t>({stored->length - within, most, out.size()});
      parts->push_back({&*stored, within, out.first(length)});
      out = out.subspan(length);
      at += length;
    }
  }

  // Reads the parts. Requests more while replies are read, limited so that the
  // server need not buffer too much.
  static Status ReadParts(Connection& one, std::span<const Part> parts) {
    size_t asked = 0;
    uint64_t in_flight = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      while (asked < parts.size() && asked - i < kBatch &&
             (in_flight == 0 ||
              in_flight + parts[asked].out.size() <= kMostInFlight)) {
        in_flight += parts[asked].out.size();
        Ask(parts[asked++], &one);
      }
      HAULWAY_TRY(one.Flush());
      const Part& part = parts[i];
      auto found = one.ReadValue(part.out);
      if (!found.ok()) {
        return std::move(found).status().In(
            fmt::format("key {}", Quote(part.stored->key)));
      }
      if (!*found) return Missing(part.stored->key);
      in_flight -= part.out.size();
    }
    return Status();
  }

  // Requests a part. GETRANGE makes the server copy the range, so whole values
  // use GET.
  static void Ask(const Part& part, Connection* one) {
    if (part.out.size() == part.stored->length) {
      one->Add({"GET", part.stored->key});
    } else {
      one->Add({"GETRANGE", part.stored->key, std::to_string(part.begin),
                std::to_string(part.begin + part.out.size() - 1)});
    }
  }

  // Reads do not change the source's content.
  mutable Pool pool_;
  mutable Watch watch_;
  std::vector<Stored> stored_;
  Buffer head_;  // Content of the first key of a file.
  uint64_t size_ = 0;
};

}  // namespace

bool IsPrefix(std::string_view uri) {
  const auto target = ParseTarget(uri, "redis://localhost");
  return target.ok() && target->key.empty();
}

Result<std::shared_ptr<const ByteSource>> OpenSource(
    std::string_view uri, std::string_view server,
    const ConnectOptions& connect) {
  HAULWAY_ASSIGN(Target target, ParseTarget(uri, server));
  target.options = connect;
  auto source = std::make_shared<Source>(std::move(target));
  Status opened = source->Open();
  if (!opened.ok()) return std::move(opened).Of(source->name());
  return std::shared_ptr<const ByteSource>(std::move(source));
}

}  // namespace haulway::redis
