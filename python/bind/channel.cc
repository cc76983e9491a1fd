// Design: both ends of a channel are classes over the library's. Every wait
// runs without the GIL in slices, with a check for signals after each, so that
// Ctrl-C ends it. Messages are encoded and decoded without Python's pickle
// where possible (item_encoder.cc, item_decoder.cc).
//
// A thread that receives ahead and passes items on through a queue was left
// out: each item would wake two threads, and the second would need the GIL.

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "bind/bindings.h"
#include "haulway/items.h"
#include "haulway/worker.h"
#include "items/arena_objects.h"
#include "items/item_decoder.h"
#include "items/item_encoder.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

using Part = std::span<const std::byte>;

constexpr uint64_t kAlign = 64;
// How long to wait for room in a full arena between checks of the parent.
constexpr uint64_t kSliceNs = 20'000'000;

struct ChannelObject {
  std::shared_ptr<Channel> channel;
};

// What to do with an item for which the arena has no room.
enum class WhenFull {
  kWait,   // Wait while the parent may release memory, then kApart.
  kApart,  // Use separate memory, or else send through the channel.
  kBlock,  // Wait for room. An item larger than the arena: kLimit.
};

// A message that is not an item.
struct Signal {
  int kind;
  uint32_t epoch;
  nb::object payload;
};

nb::bytes ToBytes(Part bytes) {
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// The worker's end. Encodes items and puts their parts into the arena.
class ItemSender {
 public:
  // Sends to several consumers of one arena.
  ItemSender(nb::list channels, nb::object encoder, ArenaObject& arena,
             int copy_threads)
      : encoder_object_(std::move(encoder)),
        encoder_(nb::cast<ItemEncoder&>(encoder_object_)),
        arena_(arena.arena),
        writer_(arena.OpenWriter()),
        lends_(arena_->stats().kind != ArenaKind::kRing),
        copy_threads_(copy_threads) {
    std::vector<std::unique_ptr<ChannelSender>> senders;
    for (const nb::handle channel : channels) {
      senders.push_back(
          Unwrap(nb::cast<ChannelObject&>(channel).channel->OpenSender(
              kPeerThatOpens)));
    }
    broadcast_ = std::make_unique<Broadcast>(std::move(senders), writer_);
  }
  ItemSender(const ChannelObject& channel, int parent, nb::object encoder,
             ArenaObject* arena, int copy_threads, WhenFull when_full)
      : sender_(Unwrap(channel.channel->OpenSender(parent))),
        encoder_object_(std::move(encoder)),
        encoder_(nb::cast<ItemEncoder&>(encoder_object_)),
        when_full_(when_full),
        copy_threads_(copy_threads) {
    if (arena == nullptr) return;
    arena_ = arena->arena;
    writer_ = arena->OpenWriter();
    lends_ = arena_->stats().kind != ArenaKind::kRing;
  }

  ItemSender(const ItemSender&) = delete;
  ItemSender& operator=(const ItemSender&) = delete;

  // Returns false if the pass is no longer wanted.
  bool Send(nb::handle item, uint32_t epoch) {
    if (broadcast_ != nullptr) {
      audience_ = broadcast_->In(epoch);
      if (audience_ == 0) return false;
    }
    encoder_.Encode(item);
    Envelope envelope;
    if (encoder_.writes_items()) envelope.kind = EnvelopeKind::kItem;
    envelope.body = encoder_.stream();
    std::vector<Part> inlined;
    if (!encoder_.parts().empty() && !Place(epoch, &envelope, &inlined)) {
      encoder_.Clear();
      return false;
    }
    head_.clear();
    AppendEnvelopeHead(envelope, &head_);
    std::vector<Part> message = {Part(head_), envelope.body};
    message.insert(message.end(), inlined.begin(), inlined.end());
    const bool sent = broadcast_ != nullptr
                          ? SendToAll(epoch, envelope, message)
                          : Transmit(MessageKind::kItem, epoch, message);
    if (!sent && broadcast_ == nullptr) TakeBack(envelope);
    encoder_.Clear();
    return sent;
  }

  bool SendBytes(int kind, uint32_t epoch, nb::bytes text) {
    const Part part(reinterpret_cast<const std::byte*>(text.c_str()),
                    text.size());
    return Transmit(static_cast<MessageKind>(kind), epoch, {&part, 1});
  }

  // Returns the number of the next pass, or 0 if the worker should end.
  uint32_t WaitForPass(uint32_t epoch) {
    const Result<uint32_t> next = WithoutGil([&] {
      return broadcast_ != nullptr ? broadcast_->WaitForPass(epoch)
                                   : sender_->WaitForPass(epoch);
    });
    if (!next.ok() && (next.status().code() == Code::kCancelled ||
                       next.status().code() == Code::kUnavailable)) {
      return 0;
    }
    return Unwrap(next);
  }

  bool Wants(uint32_t epoch) const {
    return broadcast_ != nullptr ? broadcast_->In(epoch) != 0
                                 : sender_->wanted() == epoch;
  }
  bool aborted() const {
    return broadcast_ != nullptr ? !broadcast_->LookAround()
                                 : sender_->aborted();
  }

 private:
  // Returns whether no consumer wants the pass any more.
  bool Unwanted(uint32_t epoch) const {
    if (broadcast_ != nullptr) {
      return !broadcast_->LookAround() || broadcast_->In(epoch) == 0;
    }
    return sender_->wanted() != epoch || sender_->aborted();
  }
  bool Starves(uint32_t epoch) const {
    return broadcast_ != nullptr ? broadcast_->Starve(epoch)
                                 : sender_->parent_starves();
  }

  bool SendToAll(uint32_t epoch, const Envelope& envelope,
                 std::span<const Part> parts) {
    const std::vector<UnitRef> units = UnitsOf(envelope);
    const Result<bool> sent = WithoutGil([&] {
      return broadcast_->Send(MessageKind::kItem, epoch, audience_, parts,
                              units);
    });
    if (sent.status().code() == Code::kCancelled) return false;
    return Unwrap(sent);
  }

  bool Transmit(MessageKind kind, uint32_t epoch, std::span<const Part> parts) {
    if (broadcast_ != nullptr) {
      const Audience all =
          kind == MessageKind::kFailed ? kEveryone : broadcast_->In(epoch);
      const Result<bool> sent = WithoutGil(
          [&] { return broadcast_->Send(kind, epoch, all, parts, {}); });
      if (sent.status().code() == Code::kCancelled) return false;
      return Unwrap(sent);
    }
    uint64_t bytes = 0;
    for (const Part& part : parts) bytes += part.size();
    // Small messages that fit keep the GIL: after a release, getting the GIL
    // back can take long.
    if (bytes < kLongCopy && sender_->CanSend(bytes)) {
      return Unwrap(sender_->Send(kind, epoch, parts));
    }
    return Unwrap(
        WithoutGil([&] { return sender_->Send(kind, epoch, parts); }));
  }

  // Puts the parts into the arena, or leaves them to follow the body. Returns
  // false if the pass is no longer wanted.
  bool Place(uint32_t epoch, Envelope* envelope, std::vector<Part>* inlined) {
    const std::vector<ItemPart>& parts = encoder_.parts();
    envelope->parts.resize(parts.size());
    std::vector<size_t> rest;
    for (size_t i = 0; i < parts.size(); ++i) {
      EnvelopePart& placed = envelope->parts[i];
      placed.flags = parts[i].flags();
      placed.range.bytes = parts[i].bytes().size();
      if (writer_ != nullptr && lends_) {
        const ArenaRange loan = writer_->FindLoan(parts[i].bytes());
        if (loan.unit.generation != 0) {
          placed.range = loan;
          continue;
        }
      }
      // Only items without a pickle have small parts.
      if (placed.range.bytes < encoder_.threshold()) {
        placed.flags |= EnvelopePart::kInline;
        continue;
      }
      rest.push_back(i);
    }
    const bool wanted = rest.empty() || PlaceInUnit(epoch, rest, envelope);
    if (!wanted) return false;
    Inline(envelope, inlined);
    SendLoans(*envelope, rest);
    return true;
  }

  // Lays out the inlined parts after the body, aligned within the message.
  void Inline(Envelope* envelope, std::vector<Part>* inlined) {
    static constexpr std::byte kZeros[kAlign] = {};
    head_.clear();
    AppendEnvelopeHead(*envelope, &head_);
    const uint64_t start = head_.size() + envelope->body.size();
    uint64_t at = start;
    for (size_t i = 0; i < envelope->parts.size(); ++i) {
      EnvelopePart& placed = envelope->parts[i];
      if (!placed.is_inline()) continue;
      const uint64_t gap = (kAlign - at % kAlign) % kAlign;
      inlined->push_back(Part(kZeros).first(gap));
      inlined->push_back(encoder_.parts()[i].bytes());
      placed.range.offset = at + gap - start;
      at += gap + placed.range.bytes;
    }
  }

  // Sends each loan once, even if the item has several parts in it.
  void SendLoans(const Envelope& envelope, const std::vector<size_t>& rest) {
    std::vector<UnitRef> seen;
    for (size_t i = 0; i < envelope.parts.size(); ++i) {
      const UnitRef unit = envelope.parts[i].range.unit;
      if (unit.generation == 0 || std::ranges::find(rest, i) != rest.end() ||
          std::ranges::find(seen, unit) != seen.end()) {
        continue;
      }
      seen.push_back(unit);
      Check(writer_->Send(unit, audience_));
    }
  }

  bool PlaceInUnit(uint32_t epoch, const std::vector<size_t>& rest,
                   Envelope* envelope) {
    Result<bool> placed = writer_ == nullptr
                              ? Result<bool>(false)
                              : ReserveAll(epoch, rest, envelope);
    if (!placed.ok() && placed.status().code() == Code::kCancelled) {
      return false;
    }
    bool has_room = Unwrap(std::move(placed));
    if (!has_room && writer_ != nullptr) {
      writer_->CountFallback();
      has_room = ReserveApart(rest, envelope);
    }
    if (!has_room) {
      for (const size_t i : rest) {
        envelope->parts[i].range.unit = {};
        envelope->parts[i].flags |= EnvelopePart::kInline;
      }
      return true;
    }
    uint64_t bytes = 0;
    for (const size_t i : rest) bytes += envelope->parts[i].range.bytes;
    const auto copy = [&] {
      for (const size_t i : rest) {
        writer_->Fill(envelope->parts[i].range, encoder_.parts()[i].bytes(),
                      copy_threads_);
      }
    };
    if (bytes < kLongCopy) {
      copy();
    } else {
      WithoutGil(copy);
    }
    envelope->span = writer_->unit_bytes();
    (void)Unwrap(writer_->Commit(audience_));
    return true;
  }

  // Takes separate memory for the unit. Returns false if there is none.
  bool ReserveApart(const std::vector<size_t>& rest, Envelope* envelope) {
    std::vector<ArenaRange> ranges;
    for (const size_t i : rest) ranges.push_back(envelope->parts[i].range);
    const Status begun =
        WithoutGil([&] { return writer_->BeginApart(ranges); });
    if (!begun.ok()) return false;
    for (size_t i = 0; i < rest.size(); ++i) {
      envelope->parts[rest[i]].range = ranges[i];
    }
    return true;
  }

  // Takes room for all parts, waiting as `when_full_` says. Returns false if
  // there is no room and waiting is useless: the parent keeps what it has and
  // waits for more, or the item is too large. Returns kCancelled if the pass is
  // no longer wanted.
  Result<bool> ReserveAll(uint32_t epoch, const std::vector<size_t>& rest,
                          Envelope* envelope) {
    const bool blocks = when_full_ == WhenFull::kBlock;
    bool starved = false;
    bool lends_all = false;
    while (true) {
      const Status reserved = TryReserveAll(rest, envelope);
      if (reserved.ok()) return true;
      if (reserved.code() == Code::kLimit && !blocks) return false;
      if (reserved.code() != Code::kTimeout) return reserved;
      // Both were read before this last attempt, so no release was missed.
      if (lends_all) return NoRoomBesideLoans(*envelope);
      if (starved || when_full_ == WhenFull::kApart) return false;
      const auto look_up = [&] {
        return (!blocks && Starves(epoch)) || Unwanted(epoch);
      };
      WithoutGil([&] { writer_->AwaitRelease(kSliceNs, look_up); });
      if (Unwanted(epoch) || (sender_ != nullptr && !sender_->parent_alive())) {
        return Status(Code::kCancelled, "the pass is not wanted any more");
      }
      starved = !blocks && Starves(epoch);
      lends_all = blocks && writer_->LendsAll();
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

  // Returns the error for an item of which the arena already has the parts that
  // were made in it, and no room for the others.
  Status NoRoomBesideLoans(const Envelope& envelope) const {
    uint64_t bytes = 0;
    for (const EnvelopePart& part : envelope.parts) bytes += part.range.bytes;
    const ArenaStats stats = arena_->stats();
    return Status(Code::kLimit,
                  fmt::format("item of {} bytes is too large for its arena of "
                              "{}, of which the worker itself holds {}",
                              bytes, stats.bytes, stats.used));
  }

  Status TryReserveAll(const std::vector<size_t>& rest, Envelope* envelope) {
    HAULWAY_TRY(writer_->Begin(0));
    for (const size_t i : rest) {
      Result<ArenaRange> range =
          writer_->Reserve(envelope->parts[i].range.bytes, 0);
      if (!range.ok()) {
        HAULWAY_TRY(writer_->Abort());
        return std::move(range).status();
      }
      envelope->parts[i].range = *range;
    }
    return Status();
  }

  // Takes units back that no consumer will read.
  void TakeBack(const Envelope& envelope) {
    for (const UnitRef unit : UnitsOf(envelope)) writer_->Unsend(unit);
  }

  static std::vector<UnitRef> UnitsOf(const Envelope& envelope) {
    std::vector<UnitRef> units;
    for (const EnvelopePart& part : envelope.parts) {
      const UnitRef unit = part.range.unit;
      if (unit.generation != 0 &&
          std::ranges::find(units, unit) == units.end()) {
        units.push_back(unit);
      }
    }
    return units;
  }

  std::unique_ptr<ChannelSender> sender_;  // Null if broadcast_ is set.
  std::unique_ptr<Broadcast> broadcast_;
  Audience audience_ = kEveryone;
  nb::object encoder_object_;
  ItemEncoder& encoder_;
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<ArenaWriter> writer_;
  bool lends_ = false;
  WhenFull when_full_ = WhenFull::kWait;
  int copy_threads_;
  std::vector<std::byte> head_;
};

// The parent's end.
class ItemReceiver {
 public:
  ItemReceiver(const ChannelObject& channel, int worker, ArenaObject* arena,
               bool copy, bool read_only, bool bytes_as_views, bool raw,
               uint32_t consumer, bool no_pickle)
      : receiver_(Unwrap(channel.channel->OpenReceiver(worker))),
        decoder_(arena == nullptr ? nullptr
                                  : Unwrap(arena->arena->OpenReader(consumer)),
                 {copy, read_only, bytes_as_views, no_pickle}),
        raw_(raw) {
    if (arena != nullptr) receiver_->WakeWhenStarving(arena->arena);
  }

  ChannelReceiver& receiver() { return *receiver_; }
  uint32_t StartPass() { return receiver_->StartPass(); }
  void Abort() { receiver_->Abort(); }

  // Returns an item of the pass, or a Signal. Releases items of earlier passes.
  nb::object Receive(uint32_t epoch, double seconds) {
    while (true) {
      Message message = Next(seconds);
      if (message.kind != MessageKind::kItem) {
        return nb::cast(Signal{static_cast<int>(message.kind), message.epoch,
                               ToBytes(message.bytes.bytes())});
      }
      if (raw_) {
        return nb::cast(Signal{static_cast<int>(message.kind), message.epoch,
                               ToBytes(message.bytes.bytes())});
      }
      if (message.epoch == epoch) return decoder_.Decode(message.bytes);
      decoder_.Discard(message.bytes);
    }
  }

  // Returns whether Receive() would return, or fail, without waiting. Releases
  // what earlier passes left. Another package's arena must do that itself, so
  // there any item counts.
  bool HasArrived(uint32_t epoch) {
    while (true) {
      if (!arrived_.has_value()) {
        Result<Message> message =
            WithoutGil([&] { return receiver_->Receive(0); });
        if (!message.ok()) return message.status().code() != Code::kTimeout;
        arrived_ = std::move(message).value();
      }
      const bool is_item = arrived_->kind == MessageKind::kItem;
      if (arrived_->epoch == epoch || (is_item && raw_) ||
          (!is_item && arrived_->kind != MessageKind::kFinished)) {
        return true;
      }
      if (is_item) decoder_.Discard(arrived_->bytes);
      arrived_.reset();
    }
  }

 private:
  Message Next(double seconds) {
    if (arrived_.has_value()) {
      Message message = *std::move(arrived_);
      arrived_.reset();
      return message;
    }
    const uint64_t waiting = receiver_->waiting_bytes();
    if (waiting > 0 && waiting < kLongCopy) {
      // A message that has already arrived is read without releasing the GIL.
      Result<Message> message = receiver_->Receive(0);
      if (message.ok() || message.status().code() != Code::kTimeout) {
        return Unwrap(std::move(message));
      }
    }
    std::optional<Message> message;
    const Status status = AttemptWithoutGil(seconds, &message);
    Check(status);
    return *std::move(message);
  }

  Status AttemptWithoutGil(double seconds, std::optional<Message>* message) {
    constexpr uint64_t kSlice = 100'000'000;
    uint64_t left = Nanoseconds(seconds);
    while (true) {
      const uint64_t slice = std::min(left, kSlice);
      Result<Message> received =
          WithoutGil([&] { return receiver_->Receive(slice); });
      if (received.ok()) {
        *message = std::move(received).value();
        return Status();
      }
      if (received.status().code() != Code::kTimeout || left <= slice) {
        return std::move(received).status();
      }
      if (left != UINT64_MAX) left -= slice;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

  std::unique_ptr<ChannelReceiver> receiver_;
  ItemDecoder decoder_;
  bool raw_;
  std::optional<Message> arrived_;  // Taken by HasArrived().
};

// Encodes an item as a pickle and its parts, for use without a channel.
nb::tuple EncodeItem(ItemEncoder& encoder, nb::handle item) {
  encoder.Encode(item);
  nb::list parts;
  for (const ItemPart& part : encoder.parts()) {
    parts.append(nb::make_tuple(
        nb::steal(PyMemoryView_FromMemory(
            const_cast<char*>(
                reinterpret_cast<const char*>(part.bytes().data())),
            static_cast<Py_ssize_t>(part.bytes().size()), PyBUF_READ)),
        part.flags()));
  }
  return nb::make_tuple(ToBytes(encoder.stream()), parts);
}

nb::bytes JoinEnvelope(uint64_t span, nb::bytes body, nb::list parts) {
  Envelope envelope;
  envelope.span = span;
  envelope.body =
      Part(reinterpret_cast<const std::byte*>(body.c_str()), body.size());
  for (const nb::handle item : parts) {
    const auto part = nb::cast<nb::tuple>(item);
    envelope.parts.push_back(
        {{{nb::cast<uint32_t>(part[2]), nb::cast<uint32_t>(part[3])},
          nb::cast<uint64_t>(part[0]),
          nb::cast<uint64_t>(part[1])},
         nb::cast<uint32_t>(part[4])});
  }
  std::vector<std::byte> bytes;
  AppendEnvelopeHead(envelope, &bytes);
  bytes.insert(bytes.end(), envelope.body.begin(), envelope.body.end());
  return ToBytes(bytes);
}

nb::tuple SplitEnvelope(nb::bytes bytes) {
  const Envelope envelope = Unwrap(ParseEnvelope(
      Part(reinterpret_cast<const std::byte*>(bytes.c_str()), bytes.size())));
  nb::list parts;
  for (const EnvelopePart& part : envelope.parts) {
    parts.append(nb::make_tuple(part.range.offset, part.range.bytes,
                                part.range.unit.slot,
                                part.range.unit.generation, part.flags));
  }
  return nb::make_tuple(envelope.span, ToBytes(envelope.body), parts,
                        ToBytes(envelope.inlined));
}

}  // namespace

void BindChannel(nb::module_& module) {
  static PyType_Slot slots[] = {
      {Py_tp_traverse, reinterpret_cast<void*>(ItemEncoder::Traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(ItemEncoder::Unlink)},
      {0, nullptr}};
  nb::class_<ItemEncoder>(module, "ItemEncoder", nb::type_slots(slots))
      .def(nb::init<nb::object, nb::dict, uint64_t, bool>())
      .def("set_pickler", &ItemEncoder::SetPickler)
      .def("write_items", &ItemEncoder::WriteItems)
      .def("add_part", &ItemEncoder::AddPart)
      .def("append", &ItemEncoder::Append)
      .def("write", &ItemEncoder::Write)
      .def("take_buffer", &ItemEncoder::TakeBuffer)
      .def("reduce", &ItemEncoder::Reduce, nb::arg("object").none())
      .def("encode", &EncodeItem, nb::arg("item").none())
      .def("clear", &ItemEncoder::Clear);
  module.def("join_envelope", &JoinEnvelope);
  module.def("split_envelope", &SplitEnvelope);

  nb::class_<ChannelObject>(module, "Channel")
      .def_static("create",
                  [](uint64_t ring_bytes, uint32_t max_items) {
                    return ChannelObject{Unwrap(Channel::Create(
                        {.ring_bytes = ring_bytes, .max_items = max_items}))};
                  })
      .def_static(
          "attach",
          [](int fd) { return ChannelObject{Unwrap(Channel::Attach(fd))}; })
      .def("abort", [](ChannelObject& self) { self.channel->Abort(); })
      .def_prop_ro(
          "fd", [](const ChannelObject& self) { return self.channel->fd(); });
  nb::class_<Signal>(module, "Signal")
      .def_ro("kind", &Signal::kind)
      .def_ro("epoch", &Signal::epoch)
      .def_ro("payload", &Signal::payload);
  nb::enum_<WhenFull>(module, "WhenFull")
      .value("WAIT", WhenFull::kWait)
      .value("APART", WhenFull::kApart)
      .value("BLOCK", WhenFull::kBlock);
  nb::class_<ItemSender>(module, "ItemSender")
      .def(nb::init<const ChannelObject&, int, nb::object, ArenaObject*, int,
                    WhenFull>(),
           nb::arg("channel"), nb::arg("parent"), nb::arg("encoder"),
           nb::arg("arena").none(), nb::arg("copy_threads"),
           nb::arg("when_full") = WhenFull::kWait)
      .def(nb::init<nb::list, nb::object, ArenaObject&, int>(),
           nb::arg("channels"), nb::arg("encoder"), nb::arg("arena"),
           nb::arg("copy_threads"))
      .def("send", &ItemSender::Send, nb::arg("item").none(), nb::arg("epoch"))
      .def("send_bytes", &ItemSender::SendBytes)
      .def("wait_for_pass", &ItemSender::WaitForPass)
      .def("wants", &ItemSender::Wants)
      .def_prop_ro("aborted", &ItemSender::aborted);
  nb::class_<ItemReceiver>(module, "ItemReceiver")
      .def(nb::init<const ChannelObject&, int, ArenaObject*, bool, bool, bool,
                    bool, uint32_t, bool>(),
           nb::arg("channel"), nb::arg("worker"), nb::arg("arena").none(),
           nb::arg("copy"), nb::arg("read_only"), nb::arg("bytes_as_views"),
           nb::arg("raw"), nb::arg("consumer") = 0,
           nb::arg("no_pickle") = false)
      .def("start_pass", &ItemReceiver::StartPass)
      .def("abort", &ItemReceiver::Abort)
      .def_prop_ro(
          "waiting_bytes",
          [](ItemReceiver& self) { return self.receiver().waiting_bytes(); })
      .def("has_arrived", &ItemReceiver::HasArrived)
      .def("receive", &ItemReceiver::Receive);
  module.def("wait_for_any", [](nb::list items, double seconds) {
    std::vector<ChannelReceiver*> receivers;
    for (const nb::handle item : items) {
      receivers.push_back(&nb::cast<ItemReceiver&>(item).receiver());
    }
    const uint64_t wait_ns = Nanoseconds(seconds);
    return WithoutGil(
        [&] { return ChannelReceiver::WaitForAny(receivers, wait_ns); });
  });

  module.def("open_pidfd", [](int pid) { return Unwrap(OpenPidFd(pid)); });
  module.def("is_alive", &IsAlive);
  module.def("end_with_peer", [](int pidfd, int grace_ms) {
    Check(EndWithPeer(pidfd, grace_ms, {}));
  });
}

}  // namespace haulway::python
