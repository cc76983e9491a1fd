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

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "haulway/arena.h"
#include "haulway/export.h"
#include "haulway/status.h"
#include "haulway/worker.h"

namespace haulway {

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

}  // namespace haulway
