// What each end of a channel keeps to itself.

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

  // How much the parent has left room for; kCorrupt if it claims nonsense.
  Result<uint64_t> Room() const;
  // Waits until `ready`; kCancelled after an abort, kUnavailable if the parent
  // is gone.
  template <class Ready>
  Status WaitFor(const Ready& ready);
  Status Put(std::span<const std::byte> bytes);
  void Publish();
  // True also before there is a peer to watch.
  bool PeerAlive();

  const std::shared_ptr<Channel::State> channel;
  UniqueFd parent;
  bool finds_peer;    // The peer is whoever opens the other end.
  uint64_t head = 0;  // This end's own count; the shared one follows.
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

  // How much there is to read; kCorrupt if the worker claims nonsense.
  Result<uint64_t> Waiting() const;
  // Waits until there are `bytes` to read; kTimeout, kUnavailable.
  Status Await(uint64_t bytes, uint64_t timeout_ns);
  void Take(std::span<std::byte> out);
  void Publish();

  const std::shared_ptr<Channel::State> channel;
  const UniqueFd worker;
  std::shared_ptr<Arena> arena;
  uint64_t tail = 0;
  uint64_t items_taken = 0;
  arena::Spinner spinner;

  // The message that is being read.
  bool in_message = false;
  arena::MessageHeader message = {};
  uint64_t done = 0;
  std::shared_ptr<std::byte[]> body;  // Used again if nobody kept it.
  uint64_t body_bytes = 0;
};

}  // namespace haulway
