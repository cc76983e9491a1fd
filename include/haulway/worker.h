// A Channel carries messages from a worker process to its parent, in order,
// through a ring of bytes in shared memory; beside it the parent says which
// pass over its data it wants.
//
// A pass has a number, its epoch. The parent asks for a new one at any time,
// also in the middle of another; messages carry their epoch, so that what was
// on its way for an old pass is known as such.
//
// Death: either side notices within some 20 ms that the other is gone. No
// lock is held by anybody, so none can stay locked.
// Threads: one sender and one receiver, each used by one thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/arena.h"
#include "haulway/export.h"
#include "haulway/status.h"

namespace haulway {

struct ChannelOptions {
  uint64_t ring_bytes = uint64_t{1} << 20;
  // How many items the worker may be ahead of the parent.
  uint32_t max_items = 3;
  // Longer messages are kCorrupt to the receiver.
  uint64_t max_message_bytes = uint64_t{1} << 38;
};

enum class MessageKind : uint16_t {
  kItem = 1,      // The only kind that max_items counts.
  kReady = 2,     // The worker is set up.
  kRefused = 3,   // The worker could not be set up; text follows.
  kFinished = 4,  // The pass is over.
  kFailed = 5,    // The pass failed; text follows.
};

struct Message {
  MessageKind kind = MessageKind::kItem;
  uint32_t epoch = 0;
  Buffer bytes;  // Private memory of the receiver's.
};

class ChannelSender;
class ChannelReceiver;

// In place of a peer: the process that opens the other end, once it has.
inline constexpr int kPeerThatOpens = -2;

class HAULWAY_EXPORT Channel {
 public:
  static Result<std::shared_ptr<Channel>> Create(const ChannelOptions& options);
  // Owns `fd` from here on, also if it fails. kCorrupt if it is no channel.
  static Result<std::shared_ptr<Channel>> Attach(int fd);
  ~Channel();

  int fd() const;
  // `peer` is a pidfd of the other process, or -1 if its death is not to be
  // watched; it stays the caller's and is duplicated. A sender also takes
  // kPeerThatOpens.
  Result<std::unique_ptr<ChannelSender>> OpenSender(int peer);
  Result<std::unique_ptr<ChannelReceiver>> OpenReceiver(int peer);
  // Tells the sender to end.
  void Abort();

  class State;

 private:
  explicit Channel(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// The worker's end.
class HAULWAY_EXPORT ChannelSender {
 public:
  ~ChannelSender();

  // Sends the concatenation of `parts`. Blocks while the parent is behind.
  // False, with nothing sent, if it is an item of a pass that is not wanted
  // any more. kCancelled after Abort(), kUnavailable if the parent is gone.
  Result<bool> Send(MessageKind kind, uint32_t epoch,
                    std::span<const std::span<const std::byte>> parts);
  // Waits for a pass other than `epoch`. kCancelled, kUnavailable.
  Result<uint32_t> WaitForPass(uint32_t epoch);

  // The pass that is wanted now.
  uint32_t wanted() const;
  bool aborted() const;
  bool parent_alive() const;
  // How many items the parent has not taken yet.
  uint64_t untaken_items() const;
  // Whether Send() of an item of so many bytes would not block.
  bool CanSend(uint64_t bytes) const;
  // Whether the parent has taken all that was sent and waits for more.
  bool parent_starves() const;

 private:
  friend class Channel;
  class State;
  explicit ChannelSender(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The parent's end.
class HAULWAY_EXPORT ChannelReceiver {
 public:
  ~ChannelReceiver();

  // The next message. kTimeout; kUnavailable if none can come any more, since
  // the worker is gone; kCorrupt.
  Result<Message> Receive(uint64_t timeout_ns);
  // Waits until one of `receivers` has a message, or its worker may be gone.
  // True if one has.
  static bool WaitForAny(std::span<ChannelReceiver* const> receivers,
                         uint64_t timeout_ns);
  // How many bytes have come and were not received yet.
  uint64_t waiting_bytes() const;
  // Asks for a new pass; returns its epoch.
  uint32_t StartPass();
  // Tells the worker to end.
  void Abort();
  // A producer that waits for room in this arena is told when the parent has
  // nothing left to do but wait.
  void WakeWhenStarving(std::shared_ptr<Arena> arena);

 private:
  friend class Channel;
  class State;
  explicit ChannelReceiver(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A pidfd of a process; kNotFound if there is none such.
HAULWAY_EXPORT Result<int> OpenPidFd(int pid);
HAULWAY_EXPORT bool IsAlive(int pidfd);

// What joins a program to the process that started it, which passes the text
// of it as the last argument: "channel=3,parent=4,arena=5". Numbers of
// descriptors; -1 for none.
struct WorkerLink {
  int channel = -1;
  int parent = -1;  // A pidfd.
  int arena = -1;
};
HAULWAY_EXPORT std::string FormatWorkerLink(const WorkerLink& link);
HAULWAY_EXPORT Result<WorkerLink> ParseWorkerLink(std::string_view text);

// The whole life of a program that is a worker: calls `produce` for each pass
// that the parent wants, and ends when the parent does. `arena` is null if
// there is none. Owns the descriptors of the link. A failure of `produce`
// reaches the parent, and is returned.
HAULWAY_EXPORT Status ServeParent(
    const WorkerLink& link,
    const std::function<Status(ChannelSender& sender, ArenaWriter* arena,
                               uint32_t epoch)>& produce);

// A Worker is a child process that sends items.
class HAULWAY_EXPORT Worker {
 public:
  // Runs in the child, for each pass; returns when the pass is over. A failure
  // ends the worker and reaches the parent as a kFailed message.
  using Produce = std::function<Status(ChannelSender& sender, uint32_t epoch)>;

  // The child ends when the parent does. Requires: no other thread of this
  // process holds a lock that `produce` needs.
  static Result<std::unique_ptr<Worker>> Start(std::shared_ptr<Channel> channel,
                                               Produce produce);
  // Runs a program, whose last argument becomes the text of a WorkerLink.
  // `arena` may be null. Not to be found or not to be run is exit code 127.
  static Result<std::unique_ptr<Worker>> Spawn(
      std::shared_ptr<Channel> channel, const std::shared_ptr<Arena>& arena,
      std::vector<std::string> command);
  // Aborts, and kills if the child does not end within a second.
  ~Worker();

  int pid() const { return pid_; }
  ChannelReceiver& receiver() HAULWAY_LIFETIME_BOUND { return *receiver_; }
  // The exit code, or minus the signal that ended it; nullopt while it runs.
  std::optional<int> exit_code();

 private:
  Worker() = default;
  static Result<std::unique_ptr<Worker>> Watch(int pid, Channel& channel);
  int pid_ = -1;
  int pidfd_ = -1;
  std::optional<int> exit_code_;
  std::unique_ptr<ChannelReceiver> receiver_;
};

// Ends this process once the process behind `pidfd` has ended: politely first,
// by calling `on_death`, then, `grace_ms` later, at once. Starts a thread.
HAULWAY_EXPORT Status EndWithPeer(int pidfd, int grace_ms,
                                  std::function<void()> on_death);

}  // namespace haulway
