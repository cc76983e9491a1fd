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
//
// The messages are items, and the envelopes that they are in. docs/arena.md has
// the layouts.

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
#include "haulway/dtype.h"
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

// A Broadcast sends what one producer makes to several consumers, each in a
// process of its own: every consumer in a pass gets every item of it.
//
// A pass begins when all consumers that are left have asked for one that is
// newer; those that ask anew in the middle of it leave it. The slowest
// consumer sets the pace. One that dies, or calls ChannelReceiver::Abort(), is
// left out from then on, and what it had is free again: at once if it died,
// else when it releases it.
//
// Threads: one at a time.
class HAULWAY_EXPORT Broadcast {
 public:
  // `channels` are those to the arena's consumers, in the order of their
  // numbers, opened with kPeerThatOpens. `writer` may be null.
  Broadcast(std::vector<std::unique_ptr<ChannelSender>> channels,
            std::shared_ptr<ArenaWriter> writer);

  // Who is in the pass now: whom to commit units for. Empty if it is over
  // before its end.
  Audience In(uint32_t epoch);
  // Sends the concatenation of `parts` to each of `audience` that is still in
  // the pass. `units` are those the message refers to, committed for the same
  // audience: they are taken back from whom it does not reach. False if it
  // reached nobody. kCancelled if no consumer is left.
  Result<bool> Send(MessageKind kind, uint32_t epoch, Audience audience,
                    std::span<const std::span<const std::byte>> parts,
                    std::span<const UnitRef> units);
  // Waits for a pass later than `epoch`. kCancelled if no consumer is left.
  Result<uint32_t> WaitForPass(uint32_t epoch);

  // Whether all in the pass have taken everything and wait for more.
  bool Starve(uint32_t epoch);
  // Looks who has died or left; false if nobody is left.
  bool LookAround();

 private:
  struct Member {
    std::unique_ptr<ChannelSender> channel;
    bool gone = false;  // Gets nothing any more.
    bool dead = false;  // Holds nothing any more.
    // Units of the items that it may not have taken yet, oldest first.
    std::deque<std::vector<UnitRef>> on_their_way;
  };
  void Trim(Member& member) const;
  // Notes that a member has left, or died.
  void Leave(uint32_t consumer);

  std::vector<Member> members_;
  std::shared_ptr<ArenaWriter> writer_;
};

enum class EnvelopeKind : uint16_t {
  kPickle = 1,  // The body is a pickle; parts are its out-of-band buffers.
  kItem = 2,    // The body is an Item, without a pickle.
};

struct EnvelopePart {
  // A part is where `range` says in the arena, or, if inlined, in the
  // envelope, `range.offset` bytes after the body.
  enum Flags : uint32_t {
    kInline = 1,
    kBytes = 2,      // It was a bytes object,
    kByteArray = 4,  // or a bytearray,
    kExact = 8,      // and must be one again, not a view.
  };
  ArenaRange range;
  uint32_t flags = 0;

  bool is_inline() const { return (flags & kInline) != 0; }
};

// An Envelope is the small part of an item that is handed over: how its large
// parts lie in an arena, and the rest of it.
struct Envelope {
  EnvelopeKind kind = EnvelopeKind::kPickle;
  uint64_t span = 0;  // Bytes of the arena that the item takes.
  std::vector<EnvelopePart> parts;
  std::span<const std::byte> body;
  std::span<const std::byte> inlined;  // All that follows the body.
};

// The bytes of an envelope up to its body. What `envelope.body` and
// `envelope.inlined` point to is to follow.
HAULWAY_EXPORT void AppendEnvelopeHead(const Envelope& envelope,
                                       std::vector<std::byte>* out);
// Views into `bytes`. kCorrupt, kTruncated, or kUnsupported for another
// version. Inlined parts lie within the envelope; whether the others lie in
// the arena is for the ArenaReader to say.
HAULWAY_EXPORT Result<Envelope> ParseEnvelope(std::span<const std::byte> bytes);

// A tensor's elements lie in a part of the item.
struct ItemTensor {
  enum Flags : uint8_t {
    kOfNumpy = 1,  // What it was made by, if that is known.
    kOfTorch = 2,
    kReadOnly = 4,
    kRequiresGrad = 8,
  };
  uint32_t part = 0;
  DType dtype = DType::kF32;
  uint8_t flags = 0;
  uint64_t offset = 0;  // Of the first element, in the part.
  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;  // In elements.
};

// An Item is what is handed over without a pickle: tensors, numbers, text and
// bytes, in lists, tuples and dicts. Any language can read it; reading it runs
// nothing.
struct Item {
  enum class Kind : uint8_t {
    kNone = 0,
    kFalse = 1,
    kTrue = 2,
    kInteger = 3,
    kFloat = 4,
    kText = 5,
    kBytes = 6,
    kList = 7,
    kTuple = 8,
    kDict = 9,
    kTensor = 10,
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;
  double number = 0;
  std::string text;   // UTF-8.
  uint32_t part = 0;  // Of bytes: all of it.
  ItemTensor tensor;
  std::vector<Item> keys;   // Of a dict; parallel to `items`.
  std::vector<Item> items;  // Of a list, tuple or dict.

  // The value under a text key of a dict; null if there is none.
  HAULWAY_EXPORT const Item* Find(std::string_view key) const;

  HAULWAY_EXPORT static Item Integer(int64_t value);
  HAULWAY_EXPORT static Item Text(std::string_view value);
  HAULWAY_EXPORT static Item List(std::vector<Item> items);
  HAULWAY_EXPORT static Item Dict(
      std::vector<std::pair<std::string, Item>> items);
  // A dense tensor in row-major order that fills a part.
  HAULWAY_EXPORT static Item Tensor(uint32_t part, DType dtype,
                                    std::vector<uint64_t> shape);
};

// The body of an envelope of kind kItem.
HAULWAY_EXPORT void AppendItem(const Item& item, std::vector<std::byte>* out);
// `part_bytes` are the sizes of the envelope's parts; tensors lie within them.
// kCorrupt, kTruncated, kLimit: more than 1,000,000 values, or 100 deep.
HAULWAY_EXPORT Result<Item> ParseItem(std::span<const std::byte> body,
                                      std::span<const uint64_t> part_bytes);

// Sends an item and its parts: through the arena what is large and has room
// there, all else along with it. Parts within a loan are not copied. `arena`
// may be null. False, with nothing sent, if the pass is not wanted any more.
HAULWAY_EXPORT Result<bool> SendItem(
    ChannelSender& channel, ArenaWriter* arena, uint32_t epoch,
    const Item& item, std::span<const std::span<const std::byte>> parts);

struct ReceivedItem {
  Item item;
  std::vector<Buffer> parts;  // Hold their memory in the arena.
};
// What is in a message of kind kItem. `arena` may be null if nothing can be
// in one. kUnsafe if it holds a pickle; else as ParseItem() and
// ArenaReader::View().
HAULWAY_EXPORT Result<ReceivedItem> OpenItem(const Message& message,
                                             ArenaReader* arena);

}  // namespace haulway
