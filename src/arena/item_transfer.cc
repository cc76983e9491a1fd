#include <algorithm>
#include <span>
#include <utility>

#include "arena/arena_layout.h"
#include "haulway/items.h"
#include "haulway/worker.h"

namespace haulway {

namespace {

using Part = std::span<const std::byte>;

// Smaller parts are sent in the message.
constexpr uint64_t kInlineBytes = 4096;
constexpr uint64_t kSliceNs = 20'000'000;

std::vector<UnitRef> UnitsOf(const Envelope& envelope) {
  std::vector<UnitRef> units;
  for (const EnvelopePart& part : envelope.parts) {
    const UnitRef unit = part.range.unit;
    if (unit.generation != 0 && std::ranges::find(units, unit) == units.end()) {
      units.push_back(unit);
    }
  }
  return units;
}

// Tries once to reserve memory for `rest`. On success a unit is open.
Status Reserve(ArenaWriter& arena, const std::vector<size_t>& rest,
               uint64_t wait_ns, Envelope* envelope) {
  HAULWAY_TRY(arena.Begin(wait_ns));
  for (const size_t i : rest) {
    const auto range = arena.Reserve(envelope->parts[i].range.bytes, 0);
    if (!range.ok()) {
      HAULWAY_TRY(arena.Abort());
      return range.status();
    }
    envelope->parts[i].range = *range;
  }
  return Status();
}

// Copies `rest` into a unit. Returns false if there is no room, or none while
// the consumer is starving.
Result<bool> Place(ChannelSender& channel, ArenaWriter& arena, uint32_t epoch,
                   std::span<const Part> parts, const std::vector<size_t>& rest,
                   Envelope* envelope) {
  bool starved = false;
  while (true) {
    const Status reserved = Reserve(arena, rest, 0, envelope);
    if (reserved.ok()) break;
    if (reserved.code() == Code::kLimit) return false;
    if (reserved.code() != Code::kTimeout) return reserved;
    if (starved) return false;
    arena.AwaitRelease(kSliceNs, [&] {
      return channel.parent_starves() || channel.wanted() != epoch ||
             channel.aborted();
    });
    if (channel.wanted() != epoch || channel.aborted() ||
        !channel.parent_alive()) {
      return Status(Code::kCancelled, "the pass is not wanted any more");
    }
    starved = channel.parent_starves();
  }
  for (const size_t i : rest) {
    arena.Fill(envelope->parts[i].range, parts[i], 2);
  }
  envelope->span = arena.unit_bytes();
  HAULWAY_TRY(arena.Commit().status());
  return true;
}

// Copies `rest` into a unit with its own memory. Returns false if there is
// none.
Result<bool> PlaceApart(ArenaWriter& arena, std::span<const Part> parts,
                        const std::vector<size_t>& rest, Envelope* envelope) {
  std::vector<ArenaRange> ranges;
  for (const size_t i : rest) ranges.push_back({{}, 0, parts[i].size()});
  if (!arena.BeginApart(ranges).ok()) return false;
  for (size_t i = 0; i < rest.size(); ++i) {
    envelope->parts[rest[i]].range = ranges[i];
    arena.Fill(ranges[i], parts[rest[i]], 2);
  }
  envelope->span = arena.unit_bytes();
  HAULWAY_TRY(arena.Commit().status());
  return true;
}

// Returns the message: the head, the body, and the inlined parts, aligned.
std::vector<Part> LayOut(std::span<const Part> parts, Envelope* envelope,
                         std::vector<std::byte>* head) {
  static constexpr std::byte kZeros[arena::kAlignment] = {};
  // The first call only determines the length.
  AppendEnvelopeHead(*envelope, head);
  const uint64_t start = head->size() + envelope->body.size();
  std::vector<Part> message = {Part(), envelope->body};
  uint64_t at = start;
  for (size_t i = 0; i < parts.size(); ++i) {
    EnvelopePart& placed = envelope->parts[i];
    if (!placed.is_inline()) continue;
    const uint64_t gap =
        (arena::kAlignment - at % arena::kAlignment) % arena::kAlignment;
    message.push_back(Part(kZeros).first(gap));
    message.push_back(parts[i]);
    placed.range.offset = at + gap - start;
    at += gap + parts[i].size();
  }
  head->clear();
  AppendEnvelopeHead(*envelope, head);
  message[0] = *head;
  return message;
}

}  // namespace

Result<bool> SendItem(ChannelSender& channel, ArenaWriter* arena,
                      uint32_t epoch, const Item& item,
                      std::span<const Part> parts) {
  Envelope envelope;
  envelope.kind = EnvelopeKind::kItem;
  envelope.parts.resize(parts.size());
  std::vector<size_t> rest;
  std::vector<UnitRef> loans;
  for (size_t i = 0; i < parts.size(); ++i) {
    EnvelopePart& placed = envelope.parts[i];
    placed.range.bytes = parts[i].size();
    const ArenaRange loan =
        arena == nullptr ? ArenaRange() : arena->FindLoan(parts[i]);
    if (loan.unit.generation != 0) {
      placed.range = loan;
      if (std::ranges::find(loans, loan.unit) == loans.end()) {
        loans.push_back(loan.unit);
      }
    } else if (arena == nullptr || parts[i].size() < kInlineBytes) {
      placed.flags = EnvelopePart::kInline;
    } else {
      rest.push_back(i);
    }
  }
  if (!rest.empty()) {
    Result<bool> placed = Place(channel, *arena, epoch, parts, rest, &envelope);
    if (placed.status().code() == Code::kCancelled) return false;
    HAULWAY_TRY(placed.status());
    if (!*placed) {
      arena->CountFallback();
      placed = PlaceApart(*arena, parts, rest, &envelope);
      HAULWAY_TRY(placed.status());
    }
    if (!*placed) {
      for (const size_t i : rest) {
        envelope.parts[i].range.unit = {};
        envelope.parts[i].flags = EnvelopePart::kInline;
      }
    }
  }
  for (size_t i = 0; i < loans.size(); ++i) {
    const Status status = arena->Send(loans[i]);
    if (status.ok()) continue;
    // Take back what was handed over before.
    for (const UnitRef unit : UnitsOf(envelope)) {
      const auto unsent = std::span(loans).subspan(i);
      if (std::ranges::find(unsent, unit) == unsent.end()) arena->Unsend(unit);
    }
    return status;
  }
  std::vector<std::byte> body;
  AppendItem(item, &body);
  envelope.body = body;
  std::vector<std::byte> head;
  const std::vector<Part> message = LayOut(parts, &envelope, &head);
  Result<bool> sent = channel.Send(MessageKind::kItem, epoch, message);
  if ((!sent.ok() || !*sent) && arena != nullptr) {
    for (const UnitRef unit : UnitsOf(envelope)) arena->Unsend(unit);
  }
  return sent;
}

Result<ReceivedItem> OpenItem(const Message& message, ArenaReader* arena) {
  HAULWAY_ASSIGN(const Envelope envelope, ParseEnvelope(message.bytes.bytes()));
  // Claim first, so that refused units are released too.
  std::vector<std::pair<UnitRef, std::shared_ptr<const void>>> claims;
  for (const UnitRef unit : UnitsOf(envelope)) {
    if (arena == nullptr) {
      return Status(Code::kCorrupt, "item refers to an arena, without one");
    }
    HAULWAY_ASSIGN(auto claim, arena->Claim(unit));
    claims.emplace_back(unit, std::move(claim));
  }
  if (envelope.kind != EnvelopeKind::kItem) {
    return Status(Code::kUnsafe, "item is a pickle, which is not read");
  }
  ReceivedItem received;
  std::vector<uint64_t> sizes;
  for (const EnvelopePart& part : envelope.parts) {
    const ArenaRange& range = part.range;
    sizes.push_back(range.bytes);
    if (part.is_inline()) {
      const auto offset = static_cast<uint64_t>(envelope.inlined.data() -
                                                message.bytes.data()) +
                          range.offset;
      received.parts.push_back(message.bytes.Slice(offset, range.bytes));
      continue;
    }
    const auto held = std::ranges::find(
        claims, range.unit, [](const auto& claim) { return claim.first; });
    if (held == claims.end()) {
      return Status(Code::kCorrupt, "part of no unit").In("item");
    }
    HAULWAY_ASSIGN(Buffer view,
                   arena->View(held->second, range.offset, range.bytes));
    received.parts.push_back(std::move(view));
  }
  HAULWAY_ASSIGN(received.item, ParseItem(envelope.body, sizes));
  return received;
}

}  // namespace haulway
