// The private state of each end of a channel.

#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "arena/channel_state.h"
#include "arena/futex.h"
#include "base/posix.h"
#include "haulway/worker.h"

namespace haulway {

class ChannelSender::State {
 public:
  State(std::shared_ptr<Channel::State> shared, UniqueFd pidfd, bool find)
      : channel(std::move(shared)), parent(std::move(pidfd)), finds_peer(find) {
    arena::ChannelHeader& header = channel->header;
    head = header.head.load(std::memory_order_acquire);
    items_sent = header.items_sent.load(std::memory_order_acquire);
  }

  // Returns the free bytes in the ring. Fails with kCorrupt if the parent's
  // count is impossible.
  Result<uint64_t> Room() const;
  // Waits until `ready`. Fails with kCancelled after an abort, and with
  // kUnavailable if the parent has ended.
  template <class Ready>
  Status WaitFor(const Ready& ready);
  Status AwaitRoom(uint64_t bytes);
  Status Put(std::span<const std::byte> bytes);
  void Publish();
  // Also returns true while there is no peer to watch.
  bool PeerAlive();

  const std::shared_ptr<Channel::State> channel;
  UniqueFd parent;
  bool finds_peer;    // The peer is the process that opens the other end.
  uint64_t head = 0;  // This end's own count, copied to the shared one.
  uint64_t items_sent = 0;
  arena::Spinner spinner;
};

class ChannelReceiver::State {
 public:
  State(std::shared_ptr<Channel::State> shared, UniqueFd pidfd)
      : channel(std::move(shared)), worker(std::move(pidfd)) {
    tail = channel->header.tail.load(std::memory_order_acquire);
    items_taken = channel->header.items_taken.load(std::memory_order_acquire);
  }

  // Returns the number of bytes to read. Fails with kCorrupt if the worker's
  // count is impossible.
  Result<uint64_t> Waiting() const;
  // Waits until there are `bytes` to read. Fails as Receive() does.
  Status Await(uint64_t bytes, uint64_t timeout_ns);
  void Take(std::span<std::byte> out);
  void Publish();

  const std::shared_ptr<Channel::State> channel;
  const UniqueFd worker;
  std::shared_ptr<Arena> arena;
  uint64_t tail = 0;
  uint64_t items_taken = 0;
  arena::Spinner spinner;

  // The message being read.
  bool in_message = false;
  arena::MessageHeader message = {};
  uint64_t done = 0;
  std::shared_ptr<std::byte[]> body;  // Reused unless the caller kept it.
  uint64_t body_bytes = 0;
};

}  // namespace haulway
