// Design: a chain of stages, one for each transform, each of which pulls the
// bytes that it needs from the stage before it, and the first one from the
// file. So an item is decoded only as far as somebody reads it, into the
// reader's own memory, and what a frame claims to hold is never allocated.
//
// Alternative not taken: decode whole items into memory. An item can be as
// large as the model.

#include "dcp/dcp_item.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/checked.h"
#include "base/digest.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "base/zstd.h"

namespace haulway::dcp {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;

// Transforms of one item. Nobody compresses twice; tests do.
constexpr size_t kMostTransforms = 8;
// How much longer than its tensor an archive may be: names, the pickle, and the
// directory.
constexpr uint64_t kMostAround = 64 * kKiB;
// How much longer than its content a compressed stream may be: headers of
// frames, also empty ones.
constexpr uint64_t kMostFraming = 1 * kMiB;
// Objects of up to this size are accepted however well they were compressed.
constexpr uint64_t kSmallObject = 16 * kMiB;
// Stored bytes read at once.
constexpr uint64_t kPiece = 256 * kKiB;
constexpr uint64_t kServerPiece = 8 * kMiB;
// Most bytes that are kept because nobody asked for them yet.
constexpr uint64_t kMostKept = 64 * kMiB;
constexpr uint64_t kSkippedAtATime = 256 * kKiB;
// Decoded items of up to this size stay in memory.
constexpr uint64_t kHeldItem = 4 * kMiB;

bool IsZstd(std::string_view transform) {
  const size_t slash = transform.find('/');
  if (slash == transform.npos) return false;
  std::string_view version = transform.substr(slash + 1);
  version = version.substr(0, version.find('.'));
  return transform.substr(0, slash) == "stream.zstd" && version == "1";
}

Status CutShort() {
  return Status(Code::kTruncated, "zstd frame of the item ends early");
}

}  // namespace

Status CheckTransforms(std::span<const std::string_view> transforms) {
  for (const std::string_view transform : transforms) {
    if (IsZstd(transform)) continue;
    return Status(Code::kUnsupported,
                  fmt::format("extension {} transformed the item: expected "
                              "stream.zstd of version 1",
                              Quote(transform)));
  }
  if (transforms.size() <= kMostTransforms) return Status();
  return Status(Code::kUnsupported,
                fmt::format("{} extensions transformed the item: expected at "
                            "most {}",
                            transforms.size(), kMostTransforms));
}

MostDecoded MostOfTensor(uint64_t nbytes) {
  uint64_t bytes = 0;
  if (!CheckedAdd(nbytes, kMostAround, &bytes)) bytes = UINT64_MAX;
  return {.bytes = bytes, .is_limit = false};
}

MostDecoded MostOfObject(const StoredItem& item, const ParseLimits& limits) {
  uint64_t bytes = 0;
  if (!CheckedMultiply(item.length, limits.max_inflate_ratio, &bytes)) {
    bytes = UINT64_MAX;
  }
  return {.bytes = std::min(std::max(bytes, kSmallObject),
                            limits.max_inflated_bytes),
          .is_limit = true};
}

struct ItemDecoder::Stage {
  Stage(ZstdDecoder made, size_t buffer_bytes)
      : decoder(std::move(made)), buffer(buffer_bytes) {}

  ZstdDecoder decoder;
  std::vector<std::byte> buffer;
  std::span<const std::byte> rest;  // Bytes of `buffer` not decoded yet.
  bool is_last = false;             // No more bytes come after `rest`.
  bool has_frame = false;
  uint64_t made = 0;  // Bytes decoded so far.
};

ItemDecoder::ItemDecoder() = default;
ItemDecoder::ItemDecoder(ItemDecoder&&) noexcept = default;
ItemDecoder& ItemDecoder::operator=(ItemDecoder&&) noexcept = default;
ItemDecoder::~ItemDecoder() = default;

Result<ItemDecoder> ItemDecoder::Open(SourcePtr file, const StoredItem& item,
                                      MostDecoded most) {
  HAULWAY_TRY(CheckTransforms(item.transforms));
  if (!RangeFits(item.offset, item.length, file->size())) {
    return Status(Code::kTruncated,
                  fmt::format("item of {} bytes ends past its file of {}",
                              item.length, file->size()))
        .At(item.offset);
  }
  ItemDecoder decoder;
  const uint64_t piece = file->Look({}).is_server() ? kServerPiece : kPiece;
  decoder.file_ = std::move(file);
  decoder.at_ = item.offset;
  decoder.end_ = item.offset + item.length;
  decoder.most_ = most;
  for (size_t i = 0; i < item.transforms.size(); ++i) {
    HAULWAY_ASSIGN(ZstdDecoder made, ZstdDecoder::Make());
    decoder.stages_.push_back(std::make_unique<Stage>(
        std::move(made), std::min(i == 0 ? piece : kPiece, item.length)));
  }
  return decoder;
}

Result<size_t> ItemDecoder::ReadStored(std::span<std::byte> out) {
  const auto part = out.first(std::min<uint64_t>(out.size(), end_ - at_));
  HAULWAY_TRY(file_->ReadAt(at_, part));
  at_ += part.size();
  return part.size();
}

Result<size_t> ItemDecoder::ReadStage(size_t stage, std::span<std::byte> out) {
  if (stage == 0) return ReadStored(out);
  Stage& own = *stages_[stage - 1];
  std::span<std::byte> left = out;
  while (!left.empty()) {
    if (own.rest.empty() && !own.is_last) {
      HAULWAY_ASSIGN(const size_t read, ReadStage(stage - 1, own.buffer));
      own.rest = std::span(own.buffer).first(read);
      own.is_last = read < own.buffer.size();
    }
    const bool is_between = own.decoder.is_between_frames();
    if (own.rest.empty() && is_between) break;
    const size_t taken_before = own.rest.size();
    const size_t left_before = left.size();
    Status status = own.decoder.Next(&own.rest, &left);
    if (!status.ok()) {
      const bool is_junk = is_between && !BeginsAsZstdFrame(own.rest);
      if (!is_junk) return std::move(status).At(at_);
      return Status(Code::kCorrupt,
                    own.has_frame
                        ? "bytes that are no zstd frame follow the item's last"
                        : "no zstd frame: expected the signature 28 b5 2f fd")
          .At(at_);
    }
    own.has_frame = true;
    own.made += left_before - left.size();
    if (own.made > MostOf(stage)) return TooLong().At(at_);
    const bool is_stuck =
        own.rest.size() == taken_before && left.size() == left_before;
    if (is_stuck) return CutShort().At(at_);
  }
  return out.size() - left.size();
}

// Returns the most bytes that a stage may decode to. What a stage hands to the
// next one is compressed, so it is hardly longer than the end result.
uint64_t ItemDecoder::MostOf(size_t stage) const {
  uint64_t most = most_.bytes;
  if (stage == stages_.size()) return most;
  const uint64_t more = most / 128 + kMostFraming;
  return CheckedAdd(most, more, &most) ? most : UINT64_MAX;
}

Status ItemDecoder::TooLong() const {
  if (most_.is_limit) {
    return Status(Code::kLimit,
                  fmt::format("item decompresses to more than {} bytes: see "
                              "max_inflate_ratio and max_inflated_bytes",
                              most_.bytes));
  }
  return Status(Code::kCorrupt,
                fmt::format("item decompresses to more than the {} bytes that "
                            "an archive of its tensor can have",
                            most_.bytes));
}

Result<size_t> ItemDecoder::Read(std::span<std::byte> out) {
  size_t done = 0;
  while (done < out.size()) {
    if (CancelScope::IsCancelled()) {
      return Status(Code::kCancelled, "cancelled");
    }
    const auto part =
        out.subspan(done, std::min<uint64_t>(out.size() - done, kServerPiece));
    HAULWAY_ASSIGN(const size_t read, ReadStage(stages_.size(), part));
    done += read;
    if (read < part.size()) break;
  }
  return done;
}

Status ItemCursor::Restart() {
  HAULWAY_ASSIGN(decoder_, ItemDecoder::Open(file_, item_, most_));
  position_ = 0;
  crc32_ = 0;
  return Status();
}

Result<size_t> ItemCursor::Decode(std::span<std::byte> out) {
  if (!decoder_.has_value()) HAULWAY_TRY(Restart());
  auto read = decoder_->Read(out);
  if (!read.ok()) {
    // Some bytes may be lost, and the caller may try again.
    decoder_.reset();
    position_ = 0;
    return read;
  }
  const uint64_t begin = std::clamp(position_, watched_begin_, watched_end_);
  const uint64_t end =
      std::clamp(position_ + *read, watched_begin_, watched_end_);
  if (begin < end) {
    crc32_ = Crc32(crc32_, out.subspan(begin - position_, end - begin));
  }
  position_ += *read;
  return read;
}

Result<std::span<const std::byte>> ItemCursor::Head(size_t bytes) {
  if (head_.size() < bytes) {
    std::vector<std::byte> head(bytes);
    size_t held = 0;
    if (decoder_.has_value() && position_ == head_.size()) {
      held = head_.size();
      std::ranges::copy(head_, head.begin());
    } else {
      HAULWAY_TRY(Restart());
    }
    HAULWAY_ASSIGN(const size_t read, Decode(std::span(head).subspan(held)));
    head.resize(held + read);
    head_ = std::move(head);
  }
  return std::span<const std::byte>(head_).first(std::min(bytes, head_.size()));
}

void ItemCursor::Watch(uint64_t begin, uint64_t bytes) {
  watched_begin_ = begin;
  watched_end_ = begin + bytes;
  crc32_ = 0;
  if (position_ <= begin) return;
  const uint64_t end = std::min(position_, watched_end_);
  crc32_ = Crc32(0, std::span(head_).subspan(begin, end - begin));
}

std::optional<uint32_t> ItemCursor::watched_crc32() const {
  if (position_ < watched_end_) return std::nullopt;
  return crc32_;
}

void ItemCursor::Keep(uint64_t offset, std::vector<std::byte> bytes) {
  std::vector<std::byte>& kept = kept_[offset];
  kept_bytes_ = kept_bytes_ - kept.size() + bytes.size();
  kept = std::move(bytes);
  while (kept_bytes_ > kMostKept) {
    kept_bytes_ -= kept_.begin()->second.size();
    kept_.erase(kept_.begin());
  }
}

// Copies what is kept of the bytes from `offset` on. Returns how many.
size_t ItemCursor::TakeKept(uint64_t offset, std::span<std::byte> out) {
  auto found = kept_.upper_bound(offset);
  if (found == kept_.begin()) return 0;
  --found;
  const uint64_t within = offset - found->first;
  if (within >= found->second.size()) return 0;
  const size_t bytes =
      std::min<size_t>(found->second.size() - within, out.size());
  std::memcpy(out.data(), found->second.data() + within, bytes);
  if (within + bytes == found->second.size()) {
    kept_bytes_ -= found->second.size();
    kept_.erase(found);
  }
  return bytes;
}

Status ItemCursor::SkipTo(uint64_t offset, bool keeps) {
  if (!decoder_.has_value() || position_ > offset) HAULWAY_TRY(Restart());
  while (position_ < offset) {
    const uint64_t begin = position_;
    const uint64_t bytes = std::min(offset - begin, kSkippedAtATime);
    std::vector<std::byte> skipped(bytes);
    HAULWAY_ASSIGN(const size_t read, Decode(skipped));
    if (read < bytes) return CutShort();
    if (keeps && offset - begin <= kMostKept) Keep(begin, std::move(skipped));
  }
  return Status();
}

Status ItemCursor::ReadAt(uint64_t offset, std::span<std::byte> out,
                          bool keeps) {
  while (!out.empty()) {
    size_t read = 0;
    if (offset < head_.size()) {
      read = std::min<size_t>(head_.size() - offset, out.size());
      std::memcpy(out.data(), head_.data() + offset, read);
    } else {
      read = TakeKept(offset, out);
    }
    if (read == 0) {
      HAULWAY_TRY(SkipTo(offset, keeps));
      HAULWAY_ASSIGN(read, Decode(out));
      if (read < out.size()) {
        return Status(Code::kTruncated,
                      fmt::format("item decompresses to {} bytes: expected "
                                  "more",
                                  offset + read));
      }
    }
    offset += read;
    out = out.subspan(read);
  }
  return Status();
}

Result<uint64_t> ItemCursor::ReadToEnd() {
  std::vector<std::byte> rest(kSkippedAtATime);
  while (true) {
    HAULWAY_ASSIGN(const size_t read, Decode(rest));
    if (read < rest.size()) return position_;
  }
}

namespace {

// A decoded item as a source.
class DecodedSource final : public ByteSource {
 public:
  DecodedSource(SourcePtr file, std::unique_ptr<ItemCursor> cursor,
                uint64_t size, std::string name)
      : file_(std::move(file)),
        size_(size),
        name_(std::move(name)),
        cursor_(std::move(cursor)) {}

  std::string_view name() const override { return name_; }
  uint64_t size() const override { return size_; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    if (!RangeFits(offset, out.size(), size_)) {
      return Status(Code::kTruncated, "read ends past the item").At(offset);
    }
    const std::lock_guard lock(mutex_);
    return cursor_->ReadAt(offset, out);
  }
  SourceTraits Look(std::span<const ByteRange>) const override {
    const SourceTraits file = file_->Look({});
    SourceTraits traits;
    traits.remote = file.remote;
    traits.file_system = file.file_system;
    traits.resident = file.is_server() ? 0 : 1;
    return traits;
  }
  std::optional<RemoteStats> remote_stats() const override {
    return file_->remote_stats();
  }

 private:
  const SourcePtr file_;
  const uint64_t size_;
  const std::string name_;
  mutable std::mutex mutex_;
  const std::unique_ptr<ItemCursor> cursor_ HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace

Result<SourcePtr> DecodeItem(SourcePtr file, const StoredItem& item,
                             MostDecoded most, std::string name) {
  auto cursor = std::make_unique<ItemCursor>(file, item, most);
  HAULWAY_ASSIGN(const auto head, cursor->Head(kHeldItem));
  if (head.size() < kHeldItem) {
    HAULWAY_ASSIGN(Buffer bytes, AllocateBuffer(head.size()));
    if (!head.empty()) {
      std::memcpy(bytes.mutable_bytes().data(), head.data(), head.size());
    }
    return MakeBufferSource(std::move(bytes), std::move(name));
  }
  HAULWAY_ASSIGN(const uint64_t size, cursor->ReadToEnd());
  // Without the head, which is too large to be kept.
  cursor = std::make_unique<ItemCursor>(file, item, most);
  return SourcePtr(std::make_shared<const DecodedSource>(
      std::move(file), std::move(cursor), size, std::move(name)));
}

}  // namespace haulway::dcp

namespace haulway {

Result<Buffer> ReadTransformed(std::shared_ptr<const ByteSource> file,
                               const dcp::StoredItem& item,
                               const ParseLimits& limits) {
  const std::string name(file->name());
  auto bytes = OrNoMemory([&]() -> Result<Buffer> {
    HAULWAY_ASSIGN(const auto decoded,
                   dcp::DecodeItem(std::move(file), item,
                                   dcp::MostOfObject(item, limits), name));
    if (auto view = decoded->View(0, decoded->size())) return *std::move(view);
    HAULWAY_ASSIGN(Buffer whole, AllocateBuffer(decoded->size()));
    HAULWAY_TRY(decoded->ReadAt(0, whole.mutable_bytes()));
    return whole;
  });
  if (!bytes.ok()) return std::move(bytes).status().Of(name);
  return bytes;
}

}  // namespace haulway
