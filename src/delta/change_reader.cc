#include "delta/change_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/cursor.h"
#include "delta/frame_reader.h"
#include "delta/mask_reader.h"
#include "haulway/options.h"

namespace haulway::delta {

namespace {

// Decompressed, combined and summed while it is in cache.
constexpr size_t kMaskBytes = 64 * kKiB;
constexpr uint64_t kPositionBytes = 4;
// How many positions are decompressed at once.
constexpr size_t kTogether = kMaskBytes / kPositionBytes;

// Returns the failure for a frame whose header states another size.
Status WrongSize(const FrameReader& reader, uint64_t expected) {
  return Status(Code::kCorrupt,
                fmt::format("zstd frame is of another tensor: expected {} "
                            "bytes, found {}",
                            expected, reader.stated_bytes()));
}

// Returns whether any byte changed.
bool Combine(std::span<const std::byte> mask, std::span<std::byte> bytes) {
  uint64_t all = 0;
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= bytes.size(); i += sizeof(uint64_t)) {
    uint64_t a;
    uint64_t b;
    std::memcpy(&a, mask.data() + i, sizeof(a));
    std::memcpy(&b, bytes.data() + i, sizeof(b));
    all |= a;
    b ^= a;
    std::memcpy(bytes.data() + i, &b, sizeof(b));
  }
  for (; i < bytes.size(); ++i) {
    all |= static_cast<uint64_t>(mask[i]);
    bytes[i] ^= mask[i];
  }
  return all != 0;
}

uint32_t NumberAt(std::span<const std::byte> bytes) {
  return ByteCursor(bytes.first(kPositionBytes)).U32();
}

}  // namespace

// One encoding of changes.
class ChangeReader::Changer {
 public:
  virtual ~Changer() = default;
  virtual uint64_t replaced() const { return 0; }
  // `kept`, if not null, gets old values; with `is_undo` it has them.
  virtual Result<Step> Next(std::span<std::byte> block, std::byte* kept,
                            bool is_undo) = 0;
  virtual Status Finish() = 0;
};

class ChangeReader::Xor : public ChangeReader::Changer {
 public:
  Xor(FrameReader reader, uint64_t tensor_bytes)
      : reader_(std::move(reader)),
        mask_(std::min<uint64_t>(tensor_bytes, kMaskBytes)) {}

  Result<Step> Next(std::span<std::byte> block, std::byte*, bool) override {
    const auto mask =
        std::span(mask_).first(std::min(mask_.size(), block.size()));
    HAULWAY_TRY(reader_.Fill(mask));
    const bool is_changed = Combine(mask, block.first(mask.size()));
    return Step{mask.size(), is_changed};
  }
  Status Finish() override { return reader_.Finish(); }

 private:
  FrameReader reader_;
  std::vector<std::byte> mask_;
};

// A frame that MaskReader decodes faster.
class ChangeReader::SparseXor : public ChangeReader::Changer {
 public:
  explicit SparseXor(MaskReader reader) : reader_(std::move(reader)) {}

  Result<Step> Next(std::span<std::byte> block, std::byte*, bool) override {
    const size_t most = std::min(block.size(), BlockDecoder::kMostBytes);
    HAULWAY_ASSIGN(const MaskReader::Step step,
                   reader_.Combine(block.first(most)));
    return Step{step.bytes, step.is_changed};
  }
  Status Finish() override { return reader_.Finish(); }

 private:
  MaskReader reader_;
};

// Positions and values are far from each other in the frame, so it is read
// twice at once: that needs no memory for the positions.
class ChangeReader::Overwrite : public ChangeReader::Changer {
 public:
  Overwrite(FrameReader positions, FrameReader values, uint64_t tensor_bytes)
      : positions_(std::move(positions)),
        values_(std::move(values)),
        bytes_(tensor_bytes) {}

  Status Begin() {
    std::array<std::byte, kPositionBytes> head;
    HAULWAY_TRY(positions_.Fill(head));
    count_ = NumberAt(head);
    if (count_ > bytes_) {
      return Status(Code::kCorrupt,
                    fmt::format("frame changes {} bytes: expected at most {}",
                                count_, bytes_));
    }
    const uint64_t content = kPositionBytes + count_ * (kPositionBytes + 1);
    if (positions_.Contradicts(content)) return WrongSize(positions_, content);
    return Status();
  }

  uint64_t replaced() const override { return count_; }

  Result<Step> Next(std::span<std::byte> block, std::byte* kept,
                    bool is_undo) override {
    const uint64_t size = std::min<uint64_t>(block.size(), kBlockBytes);
    Step step{size, false};
    while (done_ < count_) {
      if (at_ == places_.size() / kPositionBytes) HAULWAY_TRY(Refill());
      const uint64_t place =
          NumberAt(std::span(places_).subspan(at_ * kPositionBytes));
      if (place < least_ || place >= bytes_) {
        return Status(Code::kCorrupt,
                      fmt::format("position of a changed byte: expected {} to "
                                  "{}, found {}",
                                  least_, bytes_ - 1, place));
      }
      if (place >= begin_ + size) break;
      std::byte& byte = block[place - begin_];
      if (kept != nullptr && !is_undo) kept[done_] = byte;
      byte = is_undo ? kept[done_] : news_[at_];
      step.is_changed = true;
      least_ = place + 1;
      ++at_;
      ++done_;
    }
    begin_ += size;
    return step;
  }

  Status Finish() override {
    // Without a position, the values were not reached.
    if (count_ == 0) HAULWAY_TRY(values_.Skip(kPositionBytes));
    return values_.Finish();
  }

 private:
  // Decompresses the next positions and values.
  Status Refill() {
    if (done_ == 0) {
      HAULWAY_TRY(values_.Skip(kPositionBytes + count_ * kPositionBytes));
    }
    const size_t part = std::min<uint64_t>(kTogether, count_ - done_);
    places_.resize(part * kPositionBytes);
    news_.resize(part);
    at_ = 0;
    HAULWAY_TRY(positions_.Fill(places_));
    return values_.Fill(news_);
  }

  FrameReader positions_;
  FrameReader values_;
  const uint64_t bytes_;
  uint64_t count_ = 0;
  uint64_t begin_ = 0;  // Where the next block begins.
  uint64_t done_ = 0;   // Positions that were passed.
  uint64_t least_ = 0;  // The least position that may follow.
  std::vector<std::byte> places_;
  std::vector<std::byte> news_;
  size_t at_ = 0;  // The next of them.
};

ChangeReader::ChangeReader(std::unique_ptr<Changer> changer)
    : changer_(std::move(changer)) {}
ChangeReader::ChangeReader(ChangeReader&&) noexcept = default;
ChangeReader::~ChangeReader() = default;

Result<ChangeReader> ChangeReader::Open(Change change,
                                        std::span<const std::byte> frame,
                                        uint64_t tensor_bytes) {
  if (change == Change::kXor && MaskReader::IsFastFor(frame)) {
    HAULWAY_ASSIGN(MaskReader reader, MaskReader::Open(frame, tensor_bytes));
    return ChangeReader(std::make_unique<SparseXor>(std::move(reader)));
  }
  HAULWAY_ASSIGN(FrameReader reader, FrameReader::Open(frame));
  if (change == Change::kXor) {
    if (reader.Contradicts(tensor_bytes))
      return WrongSize(reader, tensor_bytes);
    return ChangeReader(std::make_unique<Xor>(std::move(reader), tensor_bytes));
  }
  HAULWAY_ASSIGN(FrameReader values, FrameReader::Open(frame));
  auto made = std::make_unique<Overwrite>(std::move(reader), std::move(values),
                                          tensor_bytes);
  HAULWAY_TRY(made->Begin());
  return ChangeReader(std::move(made));
}

uint64_t ChangeReader::replaced() const { return changer_->replaced(); }

Result<ChangeReader::Step> ChangeReader::Next(std::span<std::byte> block,
                                              std::byte* kept) {
  return changer_->Next(block, kept, /*is_undo=*/false);
}

Result<ChangeReader::Step> ChangeReader::Undo(std::span<std::byte> block,
                                              const std::byte* kept) {
  return changer_->Next(block, const_cast<std::byte*>(kept), /*is_undo=*/true);
}

Status ChangeReader::Finish() { return changer_->Finish(); }

}  // namespace haulway::delta
