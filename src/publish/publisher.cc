// Design: a version is an envelope followed by all its parts, in memory that no
// other process reads or writes yet. The version is written completely and then
// made visible by one store to Header::newest. If the publisher is killed
// before that store, the previous version stays the newest, and the next
// publisher takes over the memory. Parts have their places before the envelope
// is known, so that a file can be loaded directly into them: the envelope ends
// where they begin.
//
// Not used: one file per version, opened by name, because somebody would have
// to remove it, and its reader could be killed; a count of readers, because it
// is wrong forever once a reader was killed.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "arena/copy_crew.h"
#include "base/checked.h"
#include "base/text.h"
#include "haulway/items.h"
#include "haulway/machine.h"
#include "haulway/publish.h"
#include "haulway/worker.h"
#include "publish/name_folder.h"
#include "publish/publication_file.h"
#include "publish/version_memory.h"

namespace haulway {

namespace {

// Versions of at least this size are copied around the caches, which could not
// hold them until a subscriber reads them.
constexpr uint64_t kStreamedBytes = uint64_t{64} << 20;

using publish::kPartAlignment;
using publish::LockByte;
using publish::NameFolder;
using publish::PublicationFile;
using publish::Sharing;

bool IsWithin(std::span<const std::byte> part, std::span<const std::byte> all) {
  const std::less_equal<const std::byte*> no_later;
  return !part.empty() && no_later(all.data(), part.data()) &&
         no_later(part.data() + part.size(), all.data() + all.size());
}

uint64_t Aligned(uint64_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

}  // namespace

class Publisher::State {
 public:
  State(std::string name, std::shared_ptr<PublicationFile> file)
      : name_(std::move(name)),
        file_(std::move(file)),
        memory_(file_),
        owner_(::getpid()) {
    memory_->Recover();
  }

  Result<Buffer> Reserve(uint64_t bytes) {
    HAULWAY_TRY(CheckOpen());
    if (!loan_.expired()) {
      return Status(Code::kInvalidArgument,
                    "memory for the next version is in use already: publish "
                    "it, or let go of it");
    }
    HAULWAY_ASSIGN(lent_slot_, memory_->Take(0, bytes, Keep()));
    auto lent = memory_->Lend(lent_slot_);
    if (!lent.ok()) {
      memory_->Return(lent_slot_);
      return lent;
    }
    loan_ = lent->owner();
    return lent;
  }

  Result<uint64_t> Publish(std::span<const std::byte> body,
                           std::span<const PublishedPart> parts,
                           uint64_t keep) {
    HAULWAY_TRY(CheckOpen());
    if (keep == 0) {
      return Status(Code::kInvalidArgument, "keep is 0: expected at least 1");
    }
    // More cannot be kept, and a sum of a version and `keep` cannot overflow.
    keep = std::min<uint64_t>(keep, publish::kSlots);
    Message message = {body, parts};
    if (const auto loan = loan_.lock(); loan != nullptr) {
      const auto lent = memory_->region(lent_slot_).parts();
      if (std::ranges::any_of(parts, [&](const PublishedPart& part) {
            return IsWithin(part.bytes, lent);
          })) {
        message.in_place = lent;
        // Other parts are placed before the lent memory, with the envelope.
        if (message.front_bytes() <= memory_->region(lent_slot_).front) {
          HAULWAY_TRY(Write(message, lent_slot_));
          loan_.reset();
          return Show(lent_slot_, keep);
        }
        message.in_place = {};
      }
    }
    HAULWAY_ASSIGN(const uint32_t slot,
                   memory_->Take(message.head_bytes(), message.copied_bytes(),
                                 std::max(keep, Keep())));
    const Status written = Write(message, slot);
    memory_->Return(slot);
    HAULWAY_TRY(written);
    return Show(slot, keep);
  }

  uint64_t version() const {
    return file_ == nullptr ? last_
                            : publish::VersionOf(file_->header().newest.load());
  }

  void Close() {
    if (file_ == nullptr || owner_ != ::getpid()) return;
    last_ = version();
    // If the folder cannot be locked, the name's file stays until a sweep.
    const auto folder = NameFolder::Open(NameFolder::Access::kAlone);
    publish::UnlockByte(file_->fd(), publish::kPublisherLock);
    file_->Trim(/*leaves_spare=*/false);
    if (folder.ok() && folder->Read(name_) == static_cast<uint32_t>(owner_)) {
      folder->Remove(name_);
    }
    memory_.reset();
    file_ = nullptr;
  }

  void Leave() {
    if (file_ == nullptr) return;
    last_ = version();
    file_->Close();
    memory_.reset();
    file_ = nullptr;
  }

 private:
  struct Message {
    std::span<const std::byte> body;
    std::span<const PublishedPart> parts;
    // Parts within this range stay where they are.
    std::span<const std::byte> in_place = {};

    bool stays(const PublishedPart& part) const {
      return IsWithin(part.bytes, in_place);
    }
    uint64_t head_bytes() const {
      Envelope empty;
      std::vector<std::byte> head;
      AppendEnvelopeHead(empty, &head);
      return Aligned(head.size() + parts.size() * kPartBytes + body.size());
    }
    uint64_t copied_bytes() const {
      uint64_t bytes = 0;
      for (const PublishedPart& part : parts) {
        if (!stays(part)) bytes += Aligned(part.bytes.size());
      }
      return bytes;
    }
    // Bytes needed before the lent memory, where parts stay in place.
    uint64_t front_bytes() const { return head_bytes() + copied_bytes(); }
  };
  // Size of a part's descriptor in an envelope.
  static constexpr uint64_t kPartBytes = 32;

  Status CheckOpen() const {
    if (owner_ != ::getpid()) {
      return Status(Code::kUnavailable,
                    fmt::format("{} is published by process {}: this is {}",
                                Quote(name_), owner_, ::getpid()));
    }
    if (file_ == nullptr) {
      return Status(Code::kInvalidArgument, "the publication is closed");
    }
    return Status();
  }

  uint64_t Keep() const {
    return std::max<uint64_t>(file_->header().keep.load(), 1);
  }

  // Writes the envelope and the parts that are not in place.
  Status Write(const Message& message, uint32_t slot) {
    const publish::Region& region = memory_->region(slot);
    const bool in_place = !message.in_place.empty();
    const uint64_t front =
        in_place ? message.front_bytes() : message.head_bytes();
    HAULWAY_TRY(memory_->ReserveFront(slot, front));
    // Copied parts go before the lent memory; the others stay in it.
    std::byte* const begin = region.map->data() + region.front - front;
    std::byte* const inlined = begin + message.head_bytes();
    std::byte* at = inlined;
    const auto way = message.copied_bytes() < kStreamedBytes
                         ? arena::CopyWay::kCached
                         : arena::CopyWay::kStreamed;
    const std::byte* end = region.map->data() + region.front;
    Envelope envelope;
    envelope.body = message.body;
    for (const PublishedPart& part : message.parts) {
      EnvelopePart placed;
      placed.flags = part.flags | EnvelopePart::kInline;
      placed.range.bytes = part.bytes.size();
      const std::byte* to = part.bytes.data();
      if (!message.stays(part)) {
        if (!part.bytes.empty()) {
          crew_.Copy({at, part.bytes.size()}, part.bytes, UsableCpus(), way);
        }
        to = at;
        at += Aligned(part.bytes.size());
      }
      placed.range.offset = static_cast<uint64_t>(to - inlined);
      envelope.parts.push_back(placed);
      end = std::max(end, to + part.bytes.size());
    }
    // The body ends where the parts begin. Offsets of parts are relative to
    // this point.
    std::vector<std::byte> head;
    AppendEnvelopeHead(envelope, &head);
    std::byte* const start = inlined - message.body.size() - head.size();
    std::memcpy(start, head.data(), head.size());
    if (!message.body.empty()) {
      std::memcpy(start + head.size(), message.body.data(),
                  message.body.size());
    }
    publish::Slot& words = file_->slot(slot);
    words.message_offset.store(
        region.map->offset() +
        static_cast<uint64_t>(start - region.map->data()));
    words.message_bytes.store(static_cast<uint64_t>(end - start));
    // Higher than the newest version, so that Trim() does not regard the slot
    // as retired.
    words.version.store(version() + 1);
    return Status();
  }

  uint64_t Show(uint32_t slot, uint64_t keep) {
    publish::Header& header = file_->header();
    const uint64_t version = this->version() + 1;
    header.keep.store(keep);
    header.newest.store(version << publish::kSlotBits | slot);
    header.rings.fetch_add(1);
    arena::FutexWakeAll(header.rings);
    file_->Trim(/*leaves_spare=*/true);
    return version;
  }

  const std::string name_;
  std::shared_ptr<PublicationFile> file_;  // Null after closing.
  std::optional<publish::VersionMemory> memory_;
  arena::CopyCrew crew_;
  const pid_t owner_;
  uint64_t last_ = 0;               // The last version, set on closing.
  std::weak_ptr<const void> loan_;  // Owner of the memory that Reserve() lent.
  uint32_t lent_slot_ = 0;          // The slot of that memory.
};

Publisher::Publisher(std::unique_ptr<State> state) : state_(std::move(state)) {}
Publisher::~Publisher() { state_->Close(); }

Result<std::unique_ptr<Publisher>> Publisher::Open(std::string_view name) {
  HAULWAY_TRY(publish::CheckName(name));
  HAULWAY_ASSIGN(const NameFolder folder,
                 NameFolder::Open(NameFolder::Access::kAlone));
  const std::string text(name);
  auto found = PublicationFile::Find(name, folder.Read(text).value_or(0),
                                     /*writable=*/true);
  if (!found.ok()) {
    const Code code = found.status().code();
    // A publication of another user with this name does not matter.
    if (code != Code::kNotFound && code != Code::kPermissionDenied) {
      return std::move(found).status().Of(Quote(name));
    }
    found = PublicationFile::Create(name);
    if (!found.ok()) return std::move(found).status().Of(Quote(name));
  }
  const std::shared_ptr<PublicationFile> file = std::move(found).value();
  if (!LockByte(file->fd(), publish::kPublisherLock, Sharing::kAlone)) {
    return Status(Code::kUnavailable,
                  fmt::format("{} is published already: by process {}",
                              Quote(name), file->header().publisher.load()));
  }
  const auto pid = static_cast<uint32_t>(::getpid());
  file->header().publisher.store(pid);
  HAULWAY_TRY(folder.Write(text, pid));
  (void)publish::RemoveDeadNames(folder, name);
  return std::unique_ptr<Publisher>(
      new Publisher(std::make_unique<State>(text, file)));
}

Result<Buffer> Publisher::Reserve(uint64_t bytes) {
  return state_->Reserve(bytes);
}

Result<uint64_t> Publisher::Publish(std::span<const std::byte> body,
                                    std::span<const PublishedPart> parts,
                                    uint64_t keep) {
  return state_->Publish(body, parts, keep);
}

uint64_t Publisher::version() const { return state_->version(); }
void Publisher::Close() { state_->Close(); }
void Publisher::Leave() { state_->Leave(); }

}  // namespace haulway
