#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "arena/channel_ends.h"
#include "arena/channel_state.h"
#include "base/checked.h"
#include "base/page_bytes.h"
#include "base/posix.h"
#include "haulway/worker.h"

namespace haulway {

namespace {

constexpr uint64_t kLeastRing = 4096;

Result<UniqueFd> DuplicatePidFd(int pidfd) {
  if (pidfd < 0) return UniqueFd();
  UniqueFd copy(::fcntl(pidfd, F_DUPFD_CLOEXEC, 0));
  if (copy.get() < 0) {
    return Status::FromErrno(errno, "cannot duplicate a descriptor");
  }
  return copy;
}

}  // namespace

Result<int> OpenPidFd(int pid) {
  const long fd = ::syscall(SYS_pidfd_open, pid, 0);
  if (fd < 0) {
    if (errno == ESRCH) {
      return Status(Code::kNotFound, fmt::format("no process {}", pid));
    }
    return Status::FromErrno(errno, "cannot open a process");
  }
  (void)::fcntl(static_cast<int>(fd), F_SETFD, FD_CLOEXEC);
  return static_cast<int>(fd);
}

bool IsAlive(int pidfd) {
  if (pidfd < 0) return true;
  pollfd ended = {pidfd, POLLIN, 0};
  return ::poll(&ended, 1, 0) <= 0;
}

Channel::Channel(std::shared_ptr<State> state) : state_(std::move(state)) {}
Channel::~Channel() = default;

int Channel::fd() const { return state_->segment->fd(); }

Result<std::shared_ptr<Channel>> Channel::Create(
    const ChannelOptions& options) {
  arena::ChannelFacts facts = {};
  facts.magic = arena::kChannelMagic;
  facts.version = arena::kChannelVersion;
  facts.max_items = options.max_items;
  facts.max_message_bytes = options.max_message_bytes;
  if (options.max_items == 0) {
    return Status(Code::kInvalidArgument, "a channel needs room for an item");
  }
  if (!CheckedRoundUp(std::max(options.ring_bytes, kLeastRing), PageBytes(),
                      &facts.ring_bytes) ||
      !CheckedAdd(facts.ring_bytes, arena::kHeaderBytes, &facts.total_bytes)) {
    return Status(Code::kLimit, "channel too large");
  }
  HAULWAY_ASSIGN(
      auto segment,
      arena::ShmSegment::Create(arena::kChannelLabel, facts.total_bytes, {}));
  std::memcpy(segment->data(), &facts, sizeof(facts));
  return std::shared_ptr<Channel>(
      new Channel(std::make_shared<State>(facts, std::move(segment))));
}

Result<std::shared_ptr<Channel>> Channel::Attach(int fd) {
  UniqueFd owned(fd);
  arena::ChannelFacts facts;
  HAULWAY_TRY(ReadFully(
      owned.get(), 0,
      std::as_writable_bytes(std::span<arena::ChannelFacts>(&facts, 1))));
  uint64_t total = 0;
  if (facts.magic != arena::kChannelMagic) {
    return Status(Code::kCorrupt, "not a channel").In("channel header");
  }
  if (facts.version != arena::kChannelVersion) {
    return Status(Code::kUnsupported,
                  fmt::format("channel of version {}: expected {}",
                              facts.version, arena::kChannelVersion));
  }
  if (facts.ring_bytes < kLeastRing || facts.max_items == 0 ||
      !CheckedAdd(facts.ring_bytes, arena::kHeaderBytes, &total) ||
      total != facts.total_bytes) {
    return Status(Code::kCorrupt, "sizes that contradict one another")
        .In("channel header");
  }
  HAULWAY_ASSIGN(auto segment,
                 arena::ShmSegment::Attach(std::move(owned), total, {}));
  return std::shared_ptr<Channel>(
      new Channel(std::make_shared<State>(facts, std::move(segment))));
}

Result<std::unique_ptr<ChannelSender>> Channel::OpenSender(int peer) {
  const bool find = peer == kPeerThatOpens;
  HAULWAY_ASSIGN(UniqueFd pidfd, DuplicatePidFd(find ? -1 : peer));
  return std::unique_ptr<ChannelSender>(new ChannelSender(
      std::make_unique<ChannelSender::State>(state_, std::move(pidfd), find)));
}

void Channel::Abort() {
  state_->header.aborted.store(1, std::memory_order_seq_cst);
  state_->header.to_worker.Ring();
}

Result<std::unique_ptr<ChannelReceiver>> Channel::OpenReceiver(int peer) {
  HAULWAY_ASSIGN(UniqueFd pidfd, DuplicatePidFd(peer));
  state_->header.receiver.store(static_cast<uint32_t>(::getpid()),
                                std::memory_order_release);
  return std::unique_ptr<ChannelReceiver>(new ChannelReceiver(
      std::make_unique<ChannelReceiver::State>(state_, std::move(pidfd))));
}

}  // namespace haulway
