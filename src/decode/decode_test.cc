#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "decode/encoding_traits.h"
#include "decode/range_decoder.h"
#include "decode/sequence_decoder.h"
#include "decode/storage_decoder.h"
#include "haulway/options.h"
#include "haulway/source.h"

namespace haulway {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kUnit = 4;
// Returns the mask of a payload byte. It also differs between the shares of
// threads.
std::byte MaskAt(uint64_t i) {
  return std::byte{0x5A} ^ std::byte(i / kUnit) ^ std::byte(i >> 20);
}

std::vector<std::byte> Bytes(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// A format whose frame is one 'F' before and one after the payload. An
// "encrypted" payload is masked in units of four bytes, each with its number. A
// "deflated" payload has half the size; each byte stands for two.
class FakeReader : public FormatReader {
 public:
  explicit FakeReader(StorageInfo storage) {
    storage.key = "weight";
    index_.storages.push_back(storage);
  }
  const CheckpointIndex& index() const override { return index_; }
  const std::shared_ptr<const ByteSource>& source() const override {
    return source_;
  }
  Status CheckFrame(uint32_t, std::span<const std::byte> before,
                    std::span<const std::byte> after) const override {
    const auto is_fine = [](std::span<const std::byte> bytes) {
      return std::ranges::all_of(
          bytes, [](std::byte byte) { return byte == std::byte{'F'}; });
    };
    if (is_fine(before) && is_fine(after)) return Status();
    return Status(Code::kCorrupt, "the frame is no F");
  }
  Status Decode(uint32_t, std::span<const std::byte>, uint64_t offset,
                std::span<const std::byte> stored,
                std::span<std::byte> out) const override {
    if (index_.storages[0].encoding == Encoding::kDeflate) {
      for (size_t i = 0; i < out.size(); ++i) out[i] = stored[i / 2];
      return Status();
    }
    if (offset % kUnit != 0) return Status(Code::kInternal, "a unit is cut");
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = stored[i] ^ MaskAt(offset + i);
    }
    return Status();
  }
  Result<uint64_t> UnitBytes(uint32_t,
                             std::span<const std::byte>) const override {
    return kUnit;
  }
  bool has_digests() const override { return !digests_.empty(); }
  Result<std::vector<PayloadDigest>> Digests(
      uint32_t, std::span<const std::byte>,
      std::span<const std::byte>) const override {
    return digests_;
  }
  void SetDigest(uint32_t crc32, const std::string& prefix) {
    digests_.push_back({.prefix = Bytes(prefix), .crc32 = crc32, .sha256 = {}});
  }

 private:
  CheckpointIndex index_;
  std::shared_ptr<const ByteSource> source_;
  std::vector<PayloadDigest> digests_;
};

// Returns a storage of `stored` bytes, with a frame of one byte on either side,
// from offset 10.
StorageInfo Storage(Encoding encoding, uint64_t nbytes, uint64_t stored) {
  StorageInfo storage;
  storage.encoding = encoding;
  storage.nbytes = nbytes;
  storage.frame_offset = 10;
  storage.offset = 11;
  storage.stored_bytes = stored;
  storage.frame_end = 12 + stored;
  return storage;
}

std::vector<std::byte> Masked(const std::string& text) {
  std::vector<std::byte> bytes = Bytes(text);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= MaskAt(i);
  }
  return bytes;
}

std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(StorageDecoder, BringsWhatIsStoredInEveryWay) {
  {
    StorageInfo storage = Storage(Encoding::kRaw, 4, 4);
    storage.swap_bytes = 2;
    storage.crc32 = Crc32(0, Bytes("abcd"));
    const FakeReader reader(storage);
    const StorageDecoder decoder(reader, {.verify = true});
    std::vector<std::byte> memory = Bytes("FabcdF");
    const StoredBytes bytes = SplitFrame(storage, memory);
    EXPECT_TRUE(decoder.Finish(0, bytes, bytes.stored, 1).ok());
    EXPECT_EQ(Text(memory), "FbadcF");
    EXPECT_TRUE(decoder.TakesCrc32(0));
  }
  {
    const StorageInfo storage = Storage(Encoding::kDeflate, 6, 3);
    const FakeReader reader(storage);
    std::vector<std::byte> memory = Bytes("FabcF");
    std::vector<std::byte> out(6);
    EXPECT_TRUE(StorageDecoder(reader, {})
                    .Finish(0, SplitFrame(storage, memory), out, 1)
                    .ok());
    EXPECT_EQ(Text(out), "aabbcc");
  }
  // Sizes of one share and of three.
  for (const uint64_t size : {uint64_t{10}, 9 * kMiB + 2}) {
    const StorageInfo storage = Storage(Encoding::kEncrypted, size, size);
    const FakeReader reader(storage);
    const std::string payload(size, 'x');
    std::vector<std::byte> memory = Bytes("F");
    for (const std::byte byte : Masked(payload)) memory.push_back(byte);
    memory.push_back(std::byte{'F'});
    const StoredBytes bytes = SplitFrame(storage, memory);
    const StorageDecoder decoder(reader, {});
    EXPECT_TRUE(decoder.HasWork(0));
    EXPECT_TRUE(decoder.Finish(0, bytes, bytes.stored, 2).ok());
    EXPECT_TRUE(Text(memory) == "F" + payload + "F") << size;
  }
}

TEST(StorageDecoder, HasWorkOnlyWhereThereIsSome) {
  const FakeReader reader(Storage(Encoding::kRaw, 4, 4));
  EXPECT_FALSE(StorageDecoder(reader, {.verify = true}).HasWork(0));
  EXPECT_FALSE(StorageDecoder(reader, {}).HasWork(0));
  EXPECT_FALSE(StorageDecoder(reader, {}).TakesCrc32(0));
}

TEST(StorageDecoder, WritesZerosOnlyWhereMemoryIsNot) {
  StorageInfo storage = Storage(Encoding::kZeros, 4, 0);
  const FakeReader reader(storage);
  std::vector<std::byte> frame = Bytes("FF");
  for (const bool is_zeroed : {false, true}) {
    const StorageDecoder decoder(reader, {.is_zeroed = is_zeroed});
    std::vector<std::byte> out = Bytes("full");
    EXPECT_EQ(decoder.Writes(0), !is_zeroed);
    EXPECT_TRUE(decoder.Finish(0, SplitFrame(storage, frame), out, 1).ok());
    EXPECT_EQ(Text(out), is_zeroed ? "full" : std::string(4, '\0'));
  }
}

TEST(StorageDecoder, RefusesFramesAndDigestsThatDiffer) {
  StorageInfo storage = Storage(Encoding::kRaw, 4, 4);
  storage.crc32 = 1;
  const FakeReader reader(storage);
  const StorageDecoder decoder(reader, {.verify = true});
  std::vector<std::byte> memory = Bytes("FabcdF");
  const StoredBytes bytes = SplitFrame(storage, memory);
  const Status differs = decoder.Finish(0, bytes, bytes.stored, 1);
  EXPECT_EQ(differs.code(), Code::kMismatch);
  EXPECT_THAT(std::string(differs.message()),
              HasSubstr("at byte 11; in storage 'weight'"));
  memory[5] = std::byte{'X'};
  EXPECT_EQ(decoder.Finish(0, bytes, bytes.stored, 1).code(), Code::kCorrupt);
}

TEST(SequenceDecoder, DecodesPieceByPieceAndComparesTheDigest) {
  StorageInfo storage = Storage(Encoding::kEncrypted, 10, 10);
  // The frame continues after the payload.
  EXPECT_FALSE(SequenceDecoder::Takes(storage));
  storage.frame_end = 21;
  EXPECT_TRUE(SequenceDecoder::Takes(storage));
  const std::string text = "0123456789";
  for (const uint32_t wrong : {0u, 1u}) {
    FakeReader reader(storage);
    reader.SetDigest(Crc32(Crc32(0, Bytes("head")), Bytes(text)) + wrong,
                     "head");
    const std::vector<std::byte> frame = Bytes("F");
    auto decoder = SequenceDecoder::Open(reader, 0, /*verify=*/true, frame);
    ASSERT_TRUE(decoder.ok());
    EXPECT_EQ(*decoder->Step(7), 4u);
    EXPECT_EQ(*decoder->Step(1), 4u);
    std::vector<std::byte> payload = Masked(text);
    SequenceDecoder* const one = &*decoder;
    for (size_t done = 0; done < payload.size(); done += kUnit) {
      const auto piece = std::span(payload).subspan(
          done, std::min<size_t>(kUnit, payload.size() - done));
      ASSERT_TRUE(decoder->Decode(piece).ok());
      SequenceDecoder::Digest(std::span(&one, 1), std::span(&piece, 1));
    }
    EXPECT_EQ(Text(payload), text);
    EXPECT_EQ(decoder->Finish().code(),
              wrong == 0 ? Code::kOk : Code::kMismatch);
  }
}

TEST(PieceBytes, IsAShareOfWhatACacheHoldsButNotTooSmall) {
  EXPECT_EQ(PieceBytes(1), 1 * kMiB);
  EXPECT_EQ(PieceBytes(4), 256 * kKiB);
  EXPECT_EQ(PieceBytes(8), 128 * kKiB);
  EXPECT_EQ(PieceBytes(1000), 128 * kKiB);
}

TEST(ReadSequences, TakeTurnsInPiecesOfThatSize) {
  const std::vector<std::byte> bytes(3 * kMiB);
  const auto source = MakeMemorySource(bytes);
  StorageInfo storage = Storage(Encoding::kRaw, 2 * kMiB, 2 * kMiB);
  storage.frame_end = storage.offset + storage.stored_bytes;
  const FakeReader reader(storage);
  for (const size_t together : {1, 4, 16}) {
    std::vector<SequenceDecoder> decoders;
    for (size_t i = 0; i < together; ++i) {
      auto decoder = SequenceDecoder::Open(reader, 0, true, Bytes("F"));
      ASSERT_TRUE(decoder.ok());
      decoders.push_back(*std::move(decoder));
    }
    size_t turns = 0;
    const auto statuses = ReadSequences(
        *source, decoders, [&](size_t i, std::span<const std::byte> piece) {
          EXPECT_EQ(piece.size(), PieceBytes(together));
          EXPECT_EQ(i, turns++ % together);
        });
    EXPECT_TRUE(std::ranges::all_of(statuses, &Status::ok));
    EXPECT_EQ(turns * PieceBytes(together), together * 2 * kMiB);
  }
}

TEST(RangeDecoder, DecodesTheUnitsThatHoldARange) {
  const StorageInfo storage = Storage(Encoding::kEncrypted, 10, 10);
  const FakeReader reader(storage);
  const auto decoder =
      RangeDecoder::Open(reader, 0, /*verify=*/true, Bytes("F"), Bytes("F"));
  ASSERT_TRUE(decoder.ok());
  const auto [offset, length] = (*decoder)->UnitsOf(5, 4);
  EXPECT_EQ(offset, 4u);
  EXPECT_EQ(length, 6u);  // The last unit is shorter.
  EXPECT_EQ((*decoder)->Step(9), 8u);
  std::vector<std::byte> units = Masked("0123456789");
  ASSERT_TRUE((*decoder)->Decode(4, std::span(units).subspan(4)).ok());
  EXPECT_EQ(Text(std::span(units).subspan(4)), "456789");
  EXPECT_EQ(RangeDecoder::Open(reader, 0, true, Bytes("F"), Bytes("X"))
                .status()
                .code(),
            Code::kCorrupt);
}

TEST(RangeDecoder, JoinsTheDigestsOfRangesInAnyOrder) {
  const std::string text = "0123456789";
  const std::vector<std::byte> payload = Bytes(text);
  for (const uint32_t wrong : {0u, 1u}) {
    StorageInfo storage = Storage(Encoding::kRaw, 10, 10);
    storage.crc32 = Crc32(0, payload) + wrong;
    FakeReader reader(storage);
    reader.SetDigest(Crc32(Crc32(0, Bytes("head")), payload), "head");
    const auto decoder =
        RangeDecoder::Open(reader, 0, true, Bytes("F"), Bytes("F"));
    ASSERT_TRUE(decoder.ok());
    const auto note = [&](uint64_t offset, uint64_t length) {
      return (*decoder)->Note(offset,
                              std::span(payload).subspan(offset, length));
    };
    EXPECT_TRUE(note(6, 4).ok());
    EXPECT_TRUE(note(0, 3).ok());
    EXPECT_TRUE(note(0, 3).ok());  // Recorded twice.
    const Status last = note(3, 3);
    EXPECT_EQ(last.code(), wrong == 0 ? Code::kOk : Code::kMismatch);
  }
  // The same if only the frame has a CRC-32.
  FakeReader reader(Storage(Encoding::kRaw, 10, 10));
  reader.SetDigest(Crc32(0, payload) + 1, "");
  const auto decoder =
      RangeDecoder::Open(reader, 0, true, Bytes("F"), Bytes("F"));
  ASSERT_TRUE(decoder.ok());
  EXPECT_EQ((*decoder)->Note(0, payload).code(), Code::kMismatch);
}

TEST(EncodingTraits, SayWhatLiesAsItIsInMemory) {
  StorageInfo storage = Storage(Encoding::kRaw, 4, 4);
  storage.dtype = DType::kF32;
  EXPECT_TRUE(IsAsInMemory(storage));
  EXPECT_FALSE(IsUsableInPlace(storage));  // Offset 11 is not aligned.
  storage.offset = 12;
  EXPECT_TRUE(IsUsableInPlace(storage));
  storage.swap_bytes = 4;
  EXPECT_FALSE(IsAsInMemory(storage));
  for (const Encoding encoding :
       {Encoding::kDeflate, Encoding::kEncrypted, Encoding::kZeros}) {
    EXPECT_FALSE(IsAsInMemory(Storage(encoding, 4, 4)));
  }
}

}  // namespace
}  // namespace haulway
