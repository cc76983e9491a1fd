// Simulates a peer that writes arbitrary data into shared memory.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "arena/arena_layout.h"
#include "arena/channel_state.h"
#include "haulway/items.h"
#include "haulway/worker.h"

namespace haulway {
namespace {

constexpr uint64_t kPayload = 64 << 10;

// HAULWAY_HOSTILE_ROUNDS, or a number small enough for every test run.
uint64_t Rounds() {
  const char* wanted = std::getenv("HAULWAY_HOSTILE_ROUNDS");
  return wanted == nullptr ? 20'000 : std::strtoull(wanted, nullptr, 10);
}

// The peer's own mapping of a descriptor.
class PeerView {
 public:
  PeerView(int fd, uint64_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(::mmap(
            nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0))) {}
  ~PeerView() { ::munmap(data_, bytes_); }
  template <class T>
  void Put(uint64_t offset, T value) {
    std::memcpy(data_ + offset, &value, sizeof(value));
  }
  std::byte* data() { return data_; }

 private:
  uint64_t bytes_;
  std::byte* data_;
};

class Chance {
 public:
  uint64_t Below(uint64_t end) { return random_() % end; }
  // Returns numbers of every size, and numbers around powers of two.
  uint64_t Any() {
    switch (Below(4)) {
      case 0:
        return Below(8);
      case 1:
        return Below(kPayload);
      case 2:
        return (uint64_t{1} << Below(64)) + Below(3) - 1;
      default:
        return random_();
    }
  }

 private:
  std::mt19937_64 random_{17};
};

uint64_t Touch(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes.size(); i += 61) {
    sum += static_cast<uint64_t>(bytes[i]);
  }
  if (!bytes.empty()) sum += static_cast<uint64_t>(bytes.back());
  return sum;
}

// Reads every element of every tensor, like a consumer.
uint64_t TouchAll(const Item& item, const std::vector<Buffer>& parts) {
  uint64_t sum = 0;
  if (item.kind == Item::Kind::kBytes) sum += Touch(parts[item.part].bytes());
  if (item.kind == Item::Kind::kTensor) {
    const ItemTensor& tensor = item.tensor;
    uint64_t last = tensor.offset;
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      if (tensor.shape[i] == 0) return sum;
      last +=
          (tensor.shape[i] - 1) * tensor.strides[i] * ItemBytes(tensor.dtype);
    }
    const std::span<const std::byte> bytes = parts[tensor.part].bytes();
    sum += Touch(bytes.subspan(last, ItemBytes(tensor.dtype)));
    sum += Touch(bytes.subspan(tensor.offset, last - tensor.offset));
  }
  for (const Item& each : item.items) sum += TouchAll(each, parts);
  return sum;
}

struct Peers {
  Peers() {
    ArenaOptions options;
    options.max_bytes = kPayload;
    options.max_units = 16;
    arena = Arena::Create(options).value();
    writer = std::move(arena->OpenWriter()).value();
    reader = std::move(arena->OpenReader()).value();
    ChannelOptions small;
    small.ring_bytes = 1 << 16;
    small.max_message_bytes = 1 << 20;
    channel = Channel::Create(small).value();
    sender = std::move(channel->OpenSender(-1)).value();
    receiver = std::move(channel->OpenReceiver(-1)).value();
    epoch = receiver->StartPass();
  }
  std::shared_ptr<Arena> arena;
  std::shared_ptr<ArenaWriter> writer;
  std::unique_ptr<ArenaReader> reader;
  std::shared_ptr<Channel> channel;
  std::unique_ptr<ChannelSender> sender;
  std::unique_ptr<ChannelReceiver> receiver;
  uint32_t epoch = 0;
};

// Returns a well-formed message with random changes: to its descriptors, then
// to its body, then to single bits.
std::vector<std::byte> Forge(Chance& chance, const ArenaRange& real) {
  Envelope envelope;
  envelope.kind = EnvelopeKind::kItem;
  envelope.span = chance.Any();
  Item item = Item::List({});
  const uint64_t parts = chance.Below(4);
  for (uint64_t i = 0; i < parts; ++i) {
    EnvelopePart part;
    part.range = real;
    if (chance.Below(2) == 0) part.range.offset = chance.Any();
    if (chance.Below(2) == 0) part.range.bytes = chance.Any();
    if (chance.Below(4) == 0) {
      part.range.unit.slot = static_cast<uint32_t>(chance.Any());
    }
    if (chance.Below(4) == 0) {
      part.range.unit.generation = static_cast<uint32_t>(chance.Any());
    }
    if (chance.Below(4) == 0) {
      part.flags = static_cast<uint32_t>(chance.Below(16));
    }
    envelope.parts.push_back(part);
    Item tensor = Item::Tensor(
        static_cast<uint32_t>(chance.Below(parts + (chance.Below(8) == 0))),
        static_cast<DType>(chance.Below(kDTypeCount)),
        {chance.Any(), chance.Any()});
    if (chance.Below(2) == 0) tensor.tensor.shape = {chance.Below(90), 3};
    if (chance.Below(2) == 0) {
      tensor.tensor.strides = {chance.Any(), chance.Any()};
    }
    if (chance.Below(2) == 0) tensor.tensor.offset = chance.Any();
    item.items.push_back(tensor);
  }
  std::vector<std::byte> body;
  AppendItem(item, &body);
  envelope.body = body;
  std::vector<std::byte> bytes;
  AppendEnvelopeHead(envelope, &bytes);
  bytes.insert(bytes.end(), body.begin(), body.end());
  bytes.resize(bytes.size() + chance.Below(200));
  if (chance.Below(4) == 0) {
    for (uint64_t flips = chance.Below(4); flips > 0; --flips) {
      bytes[chance.Below(bytes.size())] ^= std::byte(1 << chance.Below(8));
    }
  }
  if (chance.Below(16) == 0) bytes.resize(chance.Below(bytes.size()));
  return bytes;
}

TEST(HostilePeer, DescriptorsLeadNowhereOutsideTheArena) {
  Peers ends;
  Chance chance;
  uint64_t sum = 0;
  uint64_t accepted = 0;
  for (uint64_t round = 0; round < Rounds(); ++round) {
    ArenaRange real;
    if (round % 64 == 0) {
      real.bytes = (1 << 20) + chance.Below(4096);
      ASSERT_TRUE(ends.writer->BeginApart({&real, 1}).ok());
    } else {
      ASSERT_TRUE(ends.writer->Begin(0).ok());
      real = ends.writer->Reserve(1 + chance.Below(4096), 0).value();
    }
    ASSERT_TRUE(ends.writer->Commit().ok());
    const std::vector<std::byte> bytes = Forge(chance, real);
    const std::span<const std::byte> part = bytes;
    ASSERT_TRUE(
        ends.sender->Send(MessageKind::kItem, ends.epoch, {&part, 1}).value());
    const Message message = ends.receiver->Receive(0).value();
    const Result<ReceivedItem> received = OpenItem(message, ends.reader.get());
    if (received.ok()) {
      ++accepted;
      sum += TouchAll(received->item, received->parts);
      for (const Buffer& view : received->parts) sum += Touch(view.bytes());
    }
    // The honest item that follows is not damaged.
    if (const auto held = ends.reader->Claim(real.unit); held.ok()) {
      sum += Touch(
          ends.reader->View(*held, real.offset, real.bytes).value().bytes());
    }
    ends.writer->Unsend(real.unit);
  }
  EXPECT_GT(accepted, Rounds() / 100);
  EXPECT_NE(sum, 1u);
}

// A worker that overwrites the words that the parent reads.
TEST(HostilePeer, TheParentSurvivesItsWorker) {
  Chance chance;
  uint64_t sum = 0;
  const uint64_t rounds = Rounds();
  for (uint64_t done = 0; done < rounds;) {
    Peers ends;
    PeerView arena(ends.arena->fd(), arena::kHeaderBytes);
    PeerView channel(ends.channel->fd(), arena::kHeaderBytes + (1 << 16));
    for (int i = 0; i < 200 && done < rounds; ++i, ++done) {
      // A meaningless message header and body, then a random `head`.
      using Header = arena::ChannelHeader;
      const uint64_t at = arena::kHeaderBytes + 8 * chance.Below(1000);
      channel.Put(at, chance.Any());
      const uint64_t head = offsetof(Header, head);
      uint64_t moved = 0;
      std::memcpy(&moved, channel.data() + head, sizeof(moved));
      channel.Put(head, chance.Below(3) == 0 ? chance.Any()
                                             : moved + chance.Below(100));
      channel.Put(offsetof(Header, items_sent), chance.Any());
      channel.Put(offsetof(Header, to_parent), chance.Any());
      const Result<Message> message = ends.receiver->Receive(0);
      if (message.ok()) sum += Touch(message->bytes.bytes());
      sum += ends.receiver->waiting_bytes();

      const uint64_t slots = arena::kHeaderBytes;
      PeerView units(ends.arena->fd(), slots + 4096);
      for (int words = 0; words < 4; ++words) {
        units.Put(slots + 4 * chance.Below(1000), chance.Any());
      }
      arena.Put(offsetof(arena::ArenaHeader, committed_units), chance.Any());
      const Result<UnitRef> next = ends.reader->Next();
      const UnitRef unit =
          next.ok() ? *next
                    : UnitRef{static_cast<uint32_t>(chance.Below(20)),
                              static_cast<uint32_t>(chance.Any())};
      if (const auto claim = ends.reader->Claim(unit); claim.ok()) {
        const auto view = ends.reader->View(*claim, chance.Any(), chance.Any());
        if (view.ok()) sum += Touch(view->bytes());
      }
      sum += ends.arena->stats().used;
      // The facts are not read again.
      arena.Put(8 * chance.Below(8), chance.Any());
      channel.Put(8 * chance.Below(6), chance.Any());
    }
  }
  EXPECT_NE(sum, 1u);
}

// A parent that overwrites the words that the worker reads.
TEST(HostilePeer, TheWorkerSurvivesItsParent) {
  Chance chance;
  const uint64_t rounds = Rounds();
  const std::vector<std::byte> payload(3000, std::byte{7});
  for (uint64_t done = 0; done < rounds;) {
    Peers ends;
    PeerView arena(ends.arena->fd(), arena::kHeaderBytes + 4096);
    PeerView channel(ends.channel->fd(), arena::kHeaderBytes);
    for (int i = 0; i < 200 && done < rounds; ++i, ++done) {
      using Header = arena::ChannelHeader;
      arena.Put(offsetof(arena::ArenaHeader, releases), chance.Any());
      arena.Put(offsetof(arena::ArenaHeader, released_bytes), chance.Any());
      arena.Put(arena::kHeaderBytes + 8 * chance.Below(500), chance.Any());
      arena.Put(offsetof(arena::ArenaHeader, used), chance.Any());
      arena.Put(offsetof(arena::ArenaHeader, high_water), chance.Any());
      if (ends.writer->Begin(0).ok()) {
        const auto range = ends.writer->Write(payload, 0);
        if (range.ok()) {
          // Within the arena, and without overlap with another open unit.
          ASSERT_LE(range->offset + range->bytes, kPayload);
          ASSERT_TRUE(ends.writer->Commit().ok());
        } else {
          ASSERT_TRUE(ends.writer->Abort().ok());
        }
      }
      if (const auto loan = ends.writer->Lend(100, 0); loan.ok()) {
        std::memset(ends.writer->At(*loan).data(), 1, 100);
        ASSERT_TRUE(ends.writer->Send(loan->unit).ok());
        ends.writer->DropLoan(loan->unit);
      }
      channel.Put(offsetof(Header, tail), chance.Any());
      channel.Put(offsetof(Header, items_taken), chance.Any());
      channel.Put(offsetof(Header, to_worker), chance.Any());
      channel.Put(offsetof(Header, starving), chance.Any());
      channel.Put(offsetof(Header, wanted), static_cast<uint32_t>(2));
      const std::span<const std::byte> part = payload;
      // Only if it would not block: the parent controls how long it blocks.
      if (ends.sender->CanSend(payload.size())) {
        (void)ends.sender->Send(MessageKind::kItem, 2, {&part, 1});
      }
      (void)ends.sender->parent_starves();
      arena.Put(8 * chance.Below(8), chance.Any());
      channel.Put(8 * chance.Below(6), chance.Any());
    }
  }
}

}  // namespace
}  // namespace haulway
