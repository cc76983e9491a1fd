#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "arena/channel_ends.h"
#include "haulway/arena.h"

namespace haulway {

namespace {

// First allocation for a message. Memory then grows with the bytes that have
// arrived, not with the size that the header announces.
constexpr uint64_t kFirstBody = uint64_t{1} << 20;

// Allocates cache-line-aligned memory, so that parts at multiples of a cache
// line from the message's start are aligned too.
std::shared_ptr<std::byte[]> AlignedBytes(uint64_t bytes) {
  constexpr std::align_val_t kAlign{arena::kAlignment};
  return std::shared_ptr<std::byte[]>(
      static_cast<std::byte*>(::operator new[](bytes, kAlign)),
      [](std::byte* memory) { ::operator delete[](memory, kAlign); });
}

bool KnownKind(uint16_t kind) {
  return kind >= static_cast<uint16_t>(MessageKind::kItem) &&
         kind <= static_cast<uint16_t>(MessageKind::kFailed);
}

}  // namespace

Result<uint64_t> ChannelReceiver::State::Waiting() const {
  return channel->BytesBetween(
      tail, channel->header.head.load(std::memory_order_acquire));
}

Status ChannelReceiver::State::Await(uint64_t bytes, uint64_t timeout_ns) {
  const auto ready = [&] {
    const Result<uint64_t> waiting = Waiting();
    return !waiting.ok() || *waiting >= bytes;
  };
  if (ready()) return Waiting().status();
  arena::ChannelHeader& header = channel->header;
  header.starving.store(1, std::memory_order_seq_cst);
  if (arena != nullptr) arena->Wake();
  const auto start = std::chrono::steady_clock::now();
  uint64_t waited = 0;
  bool arrived = false;
  while (true) {
    const uint64_t slice = std::min(timeout_ns - waited, arena::kLivenessNs);
    arrived = arena::WaitOnBell(header.to_parent, spinner, slice, ready);
    if (arrived) break;
    if (!IsAlive(worker.get())) {
      arrived = ready();  // The worker may have sent something before it ended.
      if (arrived) break;
      header.starving.store(0, std::memory_order_relaxed);
      return Status(Code::kUnavailable, "the worker process is gone");
    }
    if (header.aborted.load(std::memory_order_acquire) != 0) {
      header.starving.store(0, std::memory_order_relaxed);
      return Status(Code::kCancelled, "the worker was told to end");
    }
    // By the clock: a signal ends a slice early.
    waited = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::steady_clock::now() - start)
            .count());
    if (waited >= timeout_ns) break;
    // Again: a WaitForAny() of another thread, whose caller has given it up,
    // may have ended meanwhile.
    header.starving.store(1, std::memory_order_seq_cst);
  }
  header.starving.store(0, std::memory_order_relaxed);
  if (!arrived) return Status(Code::kTimeout, "no message came");
  return Waiting().status();
}

void ChannelReceiver::State::Take(std::span<std::byte> out) {
  const uint64_t ring_bytes = channel->facts.ring_bytes;
  const uint64_t at = tail % ring_bytes;
  const uint64_t first = std::min<uint64_t>(out.size(), ring_bytes - at);
  CopyBytes(out.first(first), {channel->ring + at, first});
  CopyBytes(out.subspan(first), {channel->ring, out.size() - first});
  tail += out.size();
}

void ChannelReceiver::State::Publish() {
  channel->header.tail.store(tail, std::memory_order_release);
  channel->header.to_worker.Ring();
}

ChannelReceiver::ChannelReceiver(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
ChannelReceiver::~ChannelReceiver() = default;

Result<Message> ChannelReceiver::Receive(uint64_t timeout_ns) {
  State& state = *state_;
  arena::MessageHeader& message = state.message;
  if (!state.in_message) {
    HAULWAY_TRY(state.Await(sizeof(message), timeout_ns));
    state.Take(std::as_writable_bytes(std::span(&message, 1)));
    if (message.mark != arena::kMessageMark || !KnownKind(message.kind) ||
        message.bytes > state.channel->facts.max_message_bytes) {
      return Status(Code::kCorrupt, "message without a header").In("channel");
    }
    state.in_message = true;
    state.done = 0;
  }
  while (state.done < message.bytes) {
    Result<uint64_t> waiting = state.Waiting();
    if (waiting.ok() && *waiting == 0) {
      state.Publish();
      HAULWAY_TRY(state.Await(1, timeout_ns));
      waiting = state.Waiting();
    }
    HAULWAY_TRY(waiting.status());
    const uint64_t length = std::min(*waiting, message.bytes - state.done);
    const bool kept = state.body != nullptr && state.body.use_count() > 1;
    if (kept || state.done + length > state.body_bytes) {
      const uint64_t wanted = std::max({state.done + length, 2 * state.done,
                                        std::min(message.bytes, kFirstBody)});
      auto larger = AlignedBytes(wanted);
      if (state.done > 0) {
        std::memcpy(larger.get(), state.body.get(), state.done);
      }
      state.body = std::move(larger);
      state.body_bytes = wanted;
    }
    state.Take({state.body.get() + state.done, length});
    state.done += length;
    if (state.done < message.bytes) state.Publish();
  }
  state.in_message = false;
  arena::ChannelHeader& header = state.channel->header;
  const auto kind = static_cast<MessageKind>(message.kind);
  if (kind == MessageKind::kItem) {
    header.items_taken.store(++state.items_taken, std::memory_order_release);
  }
  state.Publish();
  return Message{kind, message.epoch,
                 Buffer(state.body, {state.body.get(), message.bytes}, true)};
}

bool ChannelReceiver::WaitForAny(std::span<ChannelReceiver* const> receivers,
                                 uint64_t timeout_ns) {
  const auto any_has = [&] {
    return std::ranges::any_of(receivers, [](const ChannelReceiver* receiver) {
      return receiver->waiting_bytes() != 0;
    });
  };
  arena::Spinner spinner;
  if (any_has() || spinner.Poll(any_has)) return true;
  std::vector<arena::WordWait> waits;
  for (const ChannelReceiver* receiver : receivers) {
    arena::ChannelHeader& header = receiver->state_->channel->header;
    header.starving.store(1, std::memory_order_seq_cst);
    if (receiver->state_->arena != nullptr) receiver->state_->arena->Wake();
    header.to_parent.sleepers.fetch_add(1, std::memory_order_acq_rel);
    waits.push_back({&header.to_parent.rings,
                     header.to_parent.rings.load(std::memory_order_acquire)});
  }
  if (!any_has()) {
    arena::FutexWaitAny(waits, std::min(timeout_ns, arena::kLivenessNs));
  }
  for (const ChannelReceiver* receiver : receivers) {
    arena::ChannelHeader& header = receiver->state_->channel->header;
    header.starving.store(0, std::memory_order_relaxed);
    header.to_parent.sleepers.fetch_sub(1, std::memory_order_acq_rel);
  }
  return any_has();
}

uint64_t ChannelReceiver::waiting_bytes() const {
  const Result<uint64_t> waiting = state_->Waiting();
  return waiting.ok() ? *waiting : 0;
}

uint32_t ChannelReceiver::StartPass() {
  arena::ChannelHeader& header = state_->channel->header;
  const uint32_t epoch =
      header.wanted.fetch_add(1, std::memory_order_seq_cst) + 1;
  header.to_worker.Ring();
  if (state_->arena != nullptr) state_->arena->Wake();
  return epoch;
}

void ChannelReceiver::Abort() {
  arena::ChannelHeader& header = state_->channel->header;
  header.aborted.store(1, std::memory_order_seq_cst);
  header.to_worker.Ring();
  if (state_->arena != nullptr) state_->arena->Wake();
}

void ChannelReceiver::WakeWhenStarving(std::shared_ptr<Arena> arena) {
  state_->arena = std::move(arena);
}

}  // namespace haulway
