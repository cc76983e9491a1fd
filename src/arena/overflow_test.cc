#include "arena/overflow.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/posix.h"
#include "testing/shorthands.h"

namespace haulway::arena {
namespace {

struct File {
  File() : fd(::memfd_create("test", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(fd.get(), 4096), 0);
  }
  uint64_t pages() const {
    struct stat facts;
    EXPECT_EQ(::fstat(fd.get(), &facts), 0);
    return static_cast<uint64_t>(facts.st_blocks) * 512;
  }
  UniqueFd fd;
};

TEST(OverflowTest, PiecesAreApartAndBeyondTheStart) {
  const File file;
  Overflow overflow(file.fd.get(), 4096, UINT64_MAX);
  std::vector<std::shared_ptr<MappedRange>> pieces;
  for (const uint64_t bytes :
       {test::kMib, 3 * test::kMib, uint64_t{1}, 2 * test::kMib}) {
    pieces.push_back(overflow.Take(bytes).value());
    EXPECT_GE(pieces.back()->size(), bytes);
    EXPECT_GE(pieces.back()->offset(), 4096u);
    std::memset(pieces.back()->data(), static_cast<int>(pieces.size()),
                pieces.back()->size());
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto* data = reinterpret_cast<const char*>(pieces[i]->data());
    EXPECT_TRUE(std::all_of(data, data + pieces[i]->size(), [&](char byte) {
      return byte == static_cast<char>(i + 1);
    }));
  }
}

TEST(OverflowTest, APieceThatCameBackIsTakenAgain) {
  const File file;
  Overflow overflow(file.fd.get(), 4096, UINT64_MAX);
  const uint64_t first = overflow.Take(4 * test::kMib).value()->offset();
  overflow.Give(first);
  EXPECT_EQ(overflow.Take(3 * test::kMib).value()->offset(), first);
  // The piece is in use.
  EXPECT_NE(overflow.Take(3 * test::kMib).value()->offset(), first);
}

TEST(OverflowTest, KeepsToItsLimit) {
  const File file;
  Overflow overflow(file.fd.get(), 4096, 8 * test::kMib);
  EXPECT_EQ(overflow.Take(9 * test::kMib).status().code(), Code::kLimit);
  EXPECT_EQ(overflow.Take(UINT64_MAX).status().code(), Code::kLimit);
  const uint64_t first = overflow.Take(6 * test::kMib).value()->offset();
  EXPECT_EQ(overflow.Take(4 * test::kMib).status().code(), Code::kLimit);
  overflow.Give(first);
  // A spare that does not fit is freed to make room.
  EXPECT_TRUE(overflow.Take(2 * test::kMib).ok());
  EXPECT_TRUE(overflow.Take(6 * test::kMib).ok());
  Overflow none(file.fd.get(), 4096, 0);
  EXPECT_EQ(none.Take(test::kMib).status().code(), Code::kLimit);
}

TEST(OverflowTest, WhatTheSystemCannotGiveIsALimit) {
  const File file;
  Overflow overflow(file.fd.get(), 4096, UINT64_MAX);
  EXPECT_EQ(overflow.Take(uint64_t{1} << 61).status().code(), Code::kLimit);
  EXPECT_EQ(overflow.Take(uint64_t{1} << 63).status().code(), Code::kLimit);
  EXPECT_TRUE(overflow.Take(test::kMib).ok());
}

TEST(OverflowTest, PagesGoBackToTheSystem) {
  const File file;
  {
    Overflow overflow(file.fd.get(), 4096, UINT64_MAX);
    std::vector<uint64_t> offsets;
    for (int i = 0; i < 10; ++i) {
      offsets.push_back(overflow.Take(2 * test::kMib).value()->offset());
    }
    EXPECT_GE(file.pages(), 20 * test::kMib);
    for (const uint64_t offset : offsets) overflow.Give(offset);
    EXPECT_LE(file.pages(), 8 * test::kMib);  // The spares.
    for (int i = 0; i < 64; ++i) overflow.PassBy();
    EXPECT_EQ(file.pages(), 0u);
    overflow.Give(overflow.Take(2 * test::kMib).value()->offset());
    EXPECT_GT(file.pages(), 0u);
  }
  EXPECT_EQ(file.pages(), 0u);
}

TEST(OverflowTest, LeavesAloneWhatAnEarlierProducerTook) {
  const File file;
  Overflow earlier(file.fd.get(), 4096, UINT64_MAX);
  const auto held = earlier.Take(2 * test::kMib).value();
  Overflow later(file.fd.get(), 4096, UINT64_MAX);
  EXPECT_GE(later.Take(2 * test::kMib).value()->offset(),
            held->offset() + held->size());
}

}  // namespace
}  // namespace haulway::arena
