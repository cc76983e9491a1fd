#include <algorithm>
#include <cstring>

#include "arena/channel_ends.h"

namespace haulway {

Result<uint64_t> ChannelSender::State::Room() const {
  const uint64_t tail = channel->header.tail.load(std::memory_order_acquire);
  HAULWAY_ASSIGN(const uint64_t waiting, channel->BytesBetween(tail, head));
  return channel->facts.ring_bytes - waiting;
}

template <class Ready>
Status ChannelSender::State::WaitFor(const Ready& ready) {
  arena::ChannelHeader& header = channel->header;
  const auto aborted = [&] {
    return header.aborted.load(std::memory_order_acquire) != 0;
  };
  while (true) {
    if (aborted()) return Status(Code::kCancelled, "told to end");
    if (ready()) return Status();
    (void)arena::WaitOnBell(header.to_worker, spinner, arena::kLivenessNs,
                            [&] { return aborted() || ready(); });
    if (!ready() && !PeerAlive()) {
      return Status(Code::kUnavailable, "the parent process is gone");
    }
  }
}

bool ChannelSender::State::PeerAlive() {
  if (finds_peer) {
    const uint32_t pid =
        channel->header.receiver.load(std::memory_order_acquire);
    if (pid == 0) return true;
    Result<int> found = OpenPidFd(static_cast<int>(pid));
    if (!found.ok()) return found.status().code() != Code::kNotFound;
    parent = UniqueFd(*found);
    finds_peer = false;
  }
  return IsAlive(parent.get());
}

void ChannelSender::State::Publish() {
  channel->header.head.store(head, std::memory_order_release);
  channel->header.to_parent.Ring();
}

Status ChannelSender::State::AwaitRoom(uint64_t bytes) {
  Status corrupt;
  HAULWAY_TRY(WaitFor([&] {
    const Result<uint64_t> room = Room();
    if (!room.ok()) corrupt = room.status();
    return !room.ok() || *room >= bytes;
  }));
  return corrupt;
}

Status ChannelSender::State::Put(std::span<const std::byte> bytes) {
  const uint64_t ring_bytes = channel->facts.ring_bytes;
  while (!bytes.empty()) {
    HAULWAY_ASSIGN(uint64_t room, Room());
    if (room == 0) {
      Publish();
      HAULWAY_TRY(AwaitRoom(1));
      continue;
    }
    const uint64_t at = head % ring_bytes;
    // Publish long messages in pieces, so that reading overlaps writing.
    const uint64_t length =
        std::min({room, bytes.size(), ring_bytes - at,
                  std::max<uint64_t>(ring_bytes / 4, sizeof(uint64_t))});
    std::memcpy(channel->ring + at, bytes.data(), length);
    head += length;
    bytes = bytes.subspan(length);
    if (!bytes.empty() && length >= ring_bytes / 4) Publish();
  }
  return Status();
}

ChannelSender::ChannelSender(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
ChannelSender::~ChannelSender() = default;

Result<bool> ChannelSender::Send(
    MessageKind kind, uint32_t epoch,
    std::span<const std::span<const std::byte>> parts) {
  State& state = *state_;
  arena::ChannelHeader& header = state.channel->header;
  const bool is_item = kind == MessageKind::kItem;
  const auto unwanted = [&] {
    return is_item && header.wanted.load(std::memory_order_acquire) != epoch;
  };
  if (is_item) {
    const auto has_credit = [&] {
      return state.items_sent -
                 header.items_taken.load(std::memory_order_acquire) <
             state.channel->facts.max_items;
    };
    HAULWAY_TRY(state.WaitFor([&] { return unwanted() || has_credit(); }));
    if (unwanted()) return false;
  }
  arena::MessageHeader message = {0, epoch, static_cast<uint16_t>(kind),
                                  arena::kMessageMark};
  for (const auto& part : parts) message.bytes += part.size();
  // The receiver never sees a part of a header: it could neither take it nor
  // know, once this process has been killed, that the rest will not come.
  HAULWAY_TRY(state.AwaitRoom(sizeof(message)));
  HAULWAY_TRY(state.Put(
      std::as_bytes(std::span<const arena::MessageHeader>(&message, 1))));
  for (const auto& part : parts) HAULWAY_TRY(state.Put(part));
  if (is_item) {
    header.items_sent.store(++state.items_sent, std::memory_order_release);
  }
  state.Publish();
  return true;
}

Result<uint32_t> ChannelSender::WaitForPass(uint32_t epoch) {
  const arena::ChannelHeader& header = state_->channel->header;
  HAULWAY_TRY(state_->WaitFor(
      [&] { return header.wanted.load(std::memory_order_acquire) != epoch; }));
  return header.wanted.load(std::memory_order_acquire);
}

uint32_t ChannelSender::wanted() const {
  return state_->channel->header.wanted.load(std::memory_order_acquire);
}

bool ChannelSender::aborted() const {
  return state_->channel->header.aborted.load(std::memory_order_acquire) != 0;
}

bool ChannelSender::parent_alive() const { return state_->PeerAlive(); }

uint64_t ChannelSender::untaken_items() const {
  return state_->items_sent -
         state_->channel->header.items_taken.load(std::memory_order_acquire);
}

bool ChannelSender::CanSend(uint64_t bytes) const {
  const arena::ChannelHeader& header = state_->channel->header;
  const Result<uint64_t> room = state_->Room();
  return room.ok() && *room >= sizeof(arena::MessageHeader) &&
         *room - sizeof(arena::MessageHeader) >= bytes &&
         state_->items_sent -
                 header.items_taken.load(std::memory_order_acquire) <
             state_->channel->facts.max_items;
}

bool ChannelSender::parent_starves() const {
  const arena::ChannelHeader& header = state_->channel->header;
  return header.starving.load(std::memory_order_seq_cst) != 0 &&
         header.tail.load(std::memory_order_acquire) == state_->head;
}

}  // namespace haulway
