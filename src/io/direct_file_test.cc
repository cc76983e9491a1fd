#include "io/direct_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

namespace haulway {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kFileBytes = 5 * kBlock + 77;

std::byte At(uint64_t offset) {
  return static_cast<std::byte>((offset * 2654435761u) >> 13);
}

// Simulates the kernel: fills the vectors from the file, up to `most` bytes,
// and returns the number of bytes read.
uint64_t Kernel(const DirectPiece& piece, uint64_t most) {
  uint64_t offset = piece.offset();
  uint64_t read = 0;
  for (const iovec& vector : piece.vectors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(vector.iov_base) % kBlock, 0u);
    EXPECT_EQ(vector.iov_len % kBlock, 0u);
    for (size_t i = 0; i < vector.iov_len; ++i, ++offset, ++read) {
      if (read == most || offset == kFileBytes) return read;
      static_cast<std::byte*>(vector.iov_base)[i] = At(offset);
    }
  }
  return read;
}

class Memory {
 public:
  Memory()
      : bytes_(
            static_cast<std::byte*>(std::aligned_alloc(kBlock, 16 * kBlock))) {
    std::memset(bytes_, '?', 16 * kBlock);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { std::free(bytes_); }
  std::span<std::byte> bytes() const { return {bytes_, 16 * kBlock}; }

 private:
  std::byte* const bytes_;
};

TEST(DirectPiece, FillsEveryRangeAtEveryAddressThroughWholeBlocks) {
  const Memory target;
  const Buffer blocks = *AllocateBuffer(4 * kBlock);
  const uint64_t edges[] = {0,
                            1,
                            77,
                            kBlock - 1,
                            kBlock,
                            kBlock + 1,
                            2 * kBlock,
                            3 * kBlock + 5,
                            kFileBytes - 1,
                            kFileBytes};
  for (const uint64_t begin : edges) {
    for (const uint64_t end : edges) {
      if (begin >= end) continue;
      for (const uint64_t address :
           {uint64_t{0}, uint64_t{64}, begin % kBlock, begin % kBlock + 1}) {
        std::memset(target.bytes().data(), '?', target.bytes().size());
        auto out = target.bytes().subspan(kBlock + address, end - begin);
        uint64_t offset = begin;
        while (!out.empty()) {
          const DirectPiece piece(offset, out, kBlock,
                                  blocks.mutable_bytes().first(2 * kBlock));
          ASSERT_GT(piece.length(), 0u);
          ASSERT_EQ(piece.Take(Kernel(piece, ~uint64_t{0})), piece.length());
          offset += piece.length();
          out = out.subspan(piece.length());
        }
        const auto all = target.bytes().subspan(kBlock + address);
        for (uint64_t i = begin; i < end; ++i) {
          ASSERT_EQ(all[i - begin], At(i))
              << begin << " to " << end << " at " << address << ": " << i;
        }
        ASSERT_EQ(all[end - begin], std::byte{'?'});
        ASSERT_EQ(target.bytes()[kBlock + address - 1], std::byte{'?'});
      }
    }
  }
}

TEST(DirectPiece, ReadsInPlaceWhereAddressAndOffsetAgree) {
  const Memory target;
  const Buffer blocks = *AllocateBuffer(4 * kBlock);
  const DirectPiece piece(100, target.bytes().subspan(100, 3 * kBlock), kBlock,
                          blocks.mutable_bytes());
  ASSERT_EQ(piece.vectors().size(), 3u);
  EXPECT_EQ(piece.offset(), 0u);
  EXPECT_EQ(piece.length(), 3 * kBlock);
  EXPECT_EQ(piece.vectors()[1].iov_base, target.bytes().data() + kBlock);
  EXPECT_EQ(piece.vectors()[1].iov_len, 2 * kBlock);
}

TEST(DirectPiece, GoesThroughTheBlocksInEvenParts) {
  const Memory target;
  const Buffer blocks = *AllocateBuffer(4 * kBlock);
  const DirectPiece piece(100, target.bytes().first(4 * kBlock), kBlock,
                          blocks.mutable_bytes());
  EXPECT_EQ(piece.length(), 3 * kBlock - 100);
}

TEST(DirectPiece, TellsHowManyWantedBytesAShortReadGave) {
  const Memory target;
  const Buffer blocks = *AllocateBuffer(4 * kBlock);
  for (const uint64_t address : {uint64_t{100}, uint64_t{0}}) {
    const auto out = target.bytes().subspan(address, 3 * kBlock);
    const DirectPiece piece(100, out, kBlock, blocks.mutable_bytes());
    for (const uint64_t read :
         {uint64_t{0}, uint64_t{99}, uint64_t{100}, uint64_t{101}, kBlock,
          kBlock + 1, 3 * kBlock, 3 * kBlock + 99, 3 * kBlock + 100,
          4 * kBlock}) {
      std::memset(out.data(), '?', out.size());
      const uint64_t given = piece.Take(Kernel(piece, read));
      EXPECT_EQ(given, std::clamp<uint64_t>(read, 100, 100 + out.size()) - 100)
          << read;
      for (uint64_t i = 0; i < given; ++i) ASSERT_EQ(out[i], At(100 + i));
    }
  }
}

TEST(DirectPiece, NeedsNoBlocksWhereNothingIsAskedOfAddresses) {
  const Memory target;
  const auto out = target.bytes().subspan(3, 1000);
  const DirectPiece piece(5, out, 1, {});
  EXPECT_EQ(piece.offset(), 5u);
  ASSERT_EQ(piece.vectors().size(), 1u);
  EXPECT_EQ(piece.vectors()[0].iov_base, out.data());
  EXPECT_EQ(piece.Take(7), 7u);
}

}  // namespace
}  // namespace haulway
