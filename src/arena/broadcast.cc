#include <algorithm>
#include <utility>
#include <vector>

#include "haulway/worker.h"

namespace haulway {

namespace {

constexpr Audience Bit(uint32_t consumer) { return Audience{1} << consumer; }

Status NobodyLeft() { return Status(Code::kCancelled, "no consumer is left"); }

}  // namespace

Broadcast::Broadcast(std::vector<std::unique_ptr<ChannelSender>> channels,
                     std::shared_ptr<ArenaWriter> writer)
    : writer_(std::move(writer)) {
  for (auto& channel : channels) {
    members_.emplace_back().channel = std::move(channel);
  }
}

void Broadcast::Trim(Member& member) const {
  const uint64_t untaken = member.channel->untaken_items();
  while (member.on_their_way.size() > untaken) {
    member.on_their_way.pop_front();
  }
}

void Broadcast::Leave(uint32_t consumer) {
  Member& member = members_[consumer];
  if (!member.gone) {
    // The consumer releases the items it took. It never will release those it
    // did not take.
    Trim(member);
    for (const auto& units : member.on_their_way) {
      for (const UnitRef unit : units) writer_->Unsend(unit, Bit(consumer));
    }
    member.on_their_way.clear();
    member.gone = true;
  }
  if (!member.dead && !member.channel->parent_alive()) {
    member.dead = true;
    if (writer_ != nullptr) writer_->Forget(consumer);
  }
}

bool Broadcast::LookAround() {
  bool any = false;
  for (uint32_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (member.dead) continue;
    if (member.gone || member.channel->aborted() ||
        !member.channel->parent_alive()) {
      Leave(i);
    }
    any = any || !member.gone;
  }
  return any;
}

Audience Broadcast::In(uint32_t epoch) {
  Audience audience = 0;
  for (uint32_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    if (!member.gone && !member.channel->aborted() &&
        member.channel->wanted() == epoch) {
      audience |= Bit(i);
    }
  }
  return audience;
}

Result<bool> Broadcast::Send(MessageKind kind, uint32_t epoch,
                             Audience audience,
                             std::span<const std::span<const std::byte>> parts,
                             std::span<const UnitRef> units) {
  // Those that are full come last: a thread that iterates over several
  // consumers makes room at one when it has got an item from another.
  uint64_t bytes = 0;
  for (const auto& part : parts) bytes += part.size();
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < members_.size(); ++i) {
    if ((audience & Bit(i)) != 0) order.push_back(i);
  }
  std::ranges::stable_partition(order, [&](uint32_t i) {
    const Member& member = members_[i];
    return member.gone || member.channel->CanSend(bytes);
  });
  bool reached = false;
  for (const uint32_t i : order) {
    Member& member = members_[i];
    Result<bool> sent = member.gone ? Result<bool>(false)
                                    : member.channel->Send(kind, epoch, parts);
    if (sent.ok() && *sent) {
      reached = true;
      if (kind == MessageKind::kItem) {
        member.on_their_way.emplace_back(units.begin(), units.end());
        Trim(member);
      }
      continue;
    }
    for (const UnitRef unit : units) writer_->Unsend(unit, Bit(i));
    if (sent.ok()) continue;
    const Code code = sent.status().code();
    if (code != Code::kCancelled && code != Code::kUnavailable &&
        code != Code::kCorrupt) {
      return std::move(sent).status();
    }
    // If the channel of a consumer is damaged, nothing is known about the
    // consumer: the consumer gets no more units.
    Leave(i);
  }
  if (!reached && !LookAround()) return NobodyLeft();
  return reached;
}

Result<uint32_t> Broadcast::WaitForPass(uint32_t epoch) {
  while (true) {
    if (!LookAround()) return NobodyLeft();
    uint32_t next = UINT32_MAX;
    ChannelSender* behind = nullptr;
    for (Member& member : members_) {
      if (member.gone) continue;
      // Read once: WaitForPass() below must wait for a change of this value.
      const uint32_t wanted = member.channel->wanted();
      next = std::min(next, wanted);
      if (wanted <= epoch) {
        behind = member.channel.get();
        break;
      }
    }
    if (behind == nullptr) return next;
    const Status begun = behind->WaitForPass(next).status();
    if (!begun.ok() && begun.code() != Code::kCancelled &&
        begun.code() != Code::kUnavailable) {
      return begun;
    }
  }
}

bool Broadcast::Starve(uint32_t epoch) {
  const Audience audience = In(epoch);
  bool any_waits = audience == 0;
  for (uint32_t i = 0; i < members_.size(); ++i) {
    if ((audience & Bit(i)) == 0) continue;
    const ChannelSender& channel = *members_[i].channel;
    if (channel.untaken_items() != 0) return false;
    any_waits = any_waits || channel.parent_starves();
  }
  return any_waits;
}

}  // namespace haulway
