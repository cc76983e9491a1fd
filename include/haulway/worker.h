// A Channel carries messages from a worker process to its parent, in order,
// through a ring buffer in shared memory. The parent uses it to tell which pass
// over the data it wants.
//
// Each pass has a number, its epoch. The parent may ask for a new pass at any
// time, even during another one. Messages carry their epoch, so that messages
// of an old pass are recognised.
//
// Death: each side notices within about 20 ms that the other is gone. No locks
// are used, so none can stay locked.
// Threads: one sender and one receiver, each used by one thread at a time.
//
// Messages carry items, in envelopes (items.h).

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/arena.h"
#include "haulway/status.h"

namespace haulway {

struct ChannelOptions {
  uint64_t ring_bytes = uint64_t{1} << 20;
  // How many items the worker may be ahead of the parent.
  uint32_t max_items = 3;
  // A longer message makes the receiver fail with kCorrupt.
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
  Buffer bytes;  // Private memory of the receiver.
};

class ChannelSender;
class ChannelReceiver;

// A peer for OpenSender(): the process that opens the other end, once it has.
inline constexpr int kPeerThatOpens = -2;

class HAULWAY_EXPORT Channel {
 public:
  static Result<std::shared_ptr<Channel>> Create(const ChannelOptions& options);
  // Takes ownership of `fd`, even on failure. Fails with kCorrupt if `fd` is
  // not a channel.
  static Result<std::shared_ptr<Channel>> Attach(int fd);
  ~Channel();

  int fd() const;
  // `peer` is a pidfd of the other process, or -1 to not watch for its death.
  // The pidfd is duplicated; the caller keeps its own. A sender also accepts
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
  // Returns false, and sends nothing, for an item of a pass that is no longer
  // wanted. Fails with kCancelled after Abort() and kUnavailable if the parent
  // is gone.
  Result<bool> Send(MessageKind kind, uint32_t epoch,
                    std::span<const std::span<const std::byte>> parts);
  // Waits for a pass other than `epoch`. Fails with kCancelled and
  // kUnavailable, as Send() does.
  Result<uint32_t> WaitForPass(uint32_t epoch);

  // Returns the pass that is wanted now.
  uint32_t wanted() const;
  bool aborted() const;
  bool parent_alive() const;
  // Returns how many items the parent has not taken yet.
  uint64_t untaken_items() const;
  // Returns whether Send() of an item of this size would not block.
  bool CanSend(uint64_t bytes) const;
  // Returns whether the parent has taken everything and waits for more.
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

  // Returns the next message. Fails with kTimeout, with kUnavailable if the
  // worker is gone and no message can come any more, with kCancelled if it was
  // told to end by Abort(), and with kCorrupt.
  Result<Message> Receive(uint64_t timeout_ns);
  // Waits until one of `receivers` has a message, or its worker may be gone.
  // Returns true if one has a message.
  static bool WaitForAny(std::span<ChannelReceiver* const> receivers,
                         uint64_t timeout_ns);
  // Returns how many bytes have arrived but were not received yet.
  uint64_t waiting_bytes() const;
  // Asks for a new pass and returns its epoch.
  uint32_t StartPass();
  // Tells the worker to end.
  void Abort();
  // Wakes a producer that waits for room in this arena whenever the parent has
  // nothing left to do but wait.
  void WakeWhenStarving(std::shared_ptr<Arena> arena);

 private:
  friend class Channel;
  class State;
  explicit ChannelReceiver(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Returns a pidfd of a process. Fails with kNotFound if there is no such
// process.
HAULWAY_EXPORT Result<int> OpenPidFd(int pid);
HAULWAY_EXPORT bool IsAlive(int pidfd);

// Connects a program to the process that started it. The parent passes it as
// text in the last argument: "channel=3,parent=4,arena=5". The numbers are
// descriptors; -1: none.
struct WorkerLink {
  int channel = -1;
  int parent = -1;  // A pidfd.
  int arena = -1;
};
HAULWAY_EXPORT std::string FormatWorkerLink(const WorkerLink& link);
HAULWAY_EXPORT Result<WorkerLink> ParseWorkerLink(std::string_view text);

// Runs a worker program to its end: calls `produce` for each pass that the
// parent wants, and returns when the parent ends. `arena` is null if there is
// none. Takes ownership of the descriptors in `link`. A failure of `produce` is
// sent to the parent and returned.
HAULWAY_EXPORT Status ServeParent(
    const WorkerLink& link,
    const std::function<Status(ChannelSender& sender, ArenaWriter* arena,
                               uint32_t epoch)>& produce);

// A Worker is a child process that sends items.
class HAULWAY_EXPORT Worker {
 public:
  // Runs in the child, once for each pass, and returns when the pass is over. A
  // failure ends the worker and reaches the parent as a kFailed message.
  using Produce = std::function<Status(ChannelSender& sender, uint32_t epoch)>;

  // Forks a child, which ends when the parent does. Requires: no other thread
  // of this process holds a lock that `produce` needs.
  static Result<std::unique_ptr<Worker>> Start(std::shared_ptr<Channel> channel,
                                               Produce produce);
  // Starts a program and appends the text of a WorkerLink as its last argument.
  // `arena` may be null. If the program cannot be found or run, the exit code
  // is 127.
  static Result<std::unique_ptr<Worker>> Spawn(
      std::shared_ptr<Channel> channel, const std::shared_ptr<Arena>& arena,
      std::vector<std::string> command);
  // Aborts the child, and kills it if it does not end within a second.
  ~Worker();

  int pid() const { return pid_; }
  ChannelReceiver& receiver() HAULWAY_LIFETIME_BOUND { return *receiver_; }
  // Returns the exit code, or minus the signal that ended the child; nullopt
  // while it runs.
  std::optional<int> exit_code();

 private:
  Worker() = default;
  static Result<std::unique_ptr<Worker>> Watch(int pid, Channel& channel);
  int pid_ = -1;
  int pidfd_ = -1;
  std::optional<int> exit_code_;
  std::unique_ptr<ChannelReceiver> receiver_;
};

// Ends this process after the process of `pidfd` has ended: calls `on_death`
// first, and ends the process by force `grace_ms` later. Starts a thread.
HAULWAY_EXPORT Status EndWithPeer(int pidfd, int grace_ms,
                                  std::function<void()> on_death);

// A Broadcast sends the items of one producer to several consumers, each in its
// own process: every consumer in a pass gets every item.
//
// A pass begins when all remaining consumers have asked for a newer one; a
// consumer that asks for a new pass in the middle leaves the current one. The
// slowest consumer sets the pace. A consumer that dies or calls
// ChannelReceiver::Abort() gets nothing from then on. Its memory is free again
// immediately if it died, and otherwise when the consumer releases it.
//
// Threads: one thread at a time.
class HAULWAY_EXPORT Broadcast {
 public:
  // `channels` lead to the arena's consumers, in the order of their numbers,
  // and were opened with kPeerThatOpens. `writer` may be null.
  Broadcast(std::vector<std::unique_ptr<ChannelSender>> channels,
            std::shared_ptr<ArenaWriter> writer);

  // Returns the consumers in the pass, for which to commit units. Empty if the
  // pass was abandoned.
  Audience In(uint32_t epoch);
  // Sends the concatenation of `parts` to each consumer in `audience` that is
  // still in the pass. `units` are the units that the message refers to,
  // committed for the same audience; they are taken back from consumers that
  // the message does not reach. Returns false if it reached no consumer. Fails
  // with kCancelled if no consumer is left.
  Result<bool> Send(MessageKind kind, uint32_t epoch, Audience audience,
                    std::span<const std::span<const std::byte>> parts,
                    std::span<const UnitRef> units);
  // Waits for a pass later than `epoch`. Fails with kCancelled if no consumer
  // is left.
  Result<uint32_t> WaitForPass(uint32_t epoch);

  // Returns whether all consumers in the pass have taken everything, and one of
  // them waits for more. The others may wait for that one before they release
  // what they hold: in one thread, or in processes that keep step.
  bool Starve(uint32_t epoch);
  // Checks which consumers have died or left. Returns false if none is left.
  bool LookAround();

 private:
  struct Member {
    std::unique_ptr<ChannelSender> channel;
    bool gone = false;  // Gets nothing any more.
    bool dead = false;  // Holds nothing any more.
    // Units of items that the consumer may not have taken yet, oldest first.
    std::deque<std::vector<UnitRef>> on_their_way;
  };
  void Trim(Member& member) const;
  // Records that a member has left or died.
  void Leave(uint32_t consumer);

  std::vector<Member> members_;
  std::shared_ptr<ArenaWriter> writer_;
};

}  // namespace haulway
