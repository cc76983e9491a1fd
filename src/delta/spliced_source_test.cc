#include "delta/spliced_source.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/source.h"

namespace haulway::delta {
namespace {

std::shared_ptr<const ByteSource> Parent() {
  static constexpr std::string_view kText = "abcdefghij";
  return MakeMemorySource(std::as_bytes(std::span(kText)), "parent");
}

std::string Read(const ByteSource& source, uint64_t offset, size_t length) {
  std::string text(length, '?');
  const Status status =
      source.ReadAt(offset, std::as_writable_bytes(std::span(text)));
  return status.ok() ? text : std::string(status.message());
}

// "abcdefghij", two zeros, "fgh", a zero, "b".
std::shared_ptr<const ByteSource> Spliced() {
  return SpliceSource(Parent(), {{0, 10, 0}, {12, 3, 5}, {16, 1, 1}}, "s");
}

TEST(SplicedSource, HasTheRangesWithZerosBetween) {
  const auto source = Spliced();
  EXPECT_EQ(source->size(), 17u);
  const std::string whole("abcdefghij\0\0fgh\0b", 17);
  for (uint64_t offset = 0; offset <= 17; ++offset) {
    for (size_t length = 0; offset + length <= 17; ++length) {
      EXPECT_EQ(Read(*source, offset, length), whole.substr(offset, length));
    }
  }
  EXPECT_EQ(Read(*source, 10, 8), "read ends past the source; at byte 10");
}

TEST(SplicedSource, ReadsManyAtOnce) {
  const auto source = Spliced();
  std::vector<std::byte> a(4);
  std::vector<std::byte> b(3);
  const std::vector<ReadRequest> requests = {{10, a}, {14, b}};
  ASSERT_TRUE(source->ReadMany(requests).ok());
  EXPECT_EQ(std::string(reinterpret_cast<char*>(a.data()), 4),
            std::string("\0\0fg", 4));
  EXPECT_EQ(std::string(reinterpret_cast<char*>(b.data()), 3),
            std::string("h\0b", 3));
}

TEST(SplicedSource, HasViewsWithinARange) {
  const auto source = Spliced();
  const auto view = source->View(12, 3);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->data()[0], std::byte{'f'});
  EXPECT_FALSE(source->View(9, 2).has_value());
  EXPECT_FALSE(source->View(10, 1).has_value());
  EXPECT_FALSE(source->View(14, 3).has_value());
}

TEST(SplicedSource, MayBeEmpty) {
  const auto source = SpliceSource(Parent(), {}, "s");
  EXPECT_EQ(source->size(), 0u);
  EXPECT_EQ(Read(*source, 0, 0), "");
}

}  // namespace
}  // namespace haulway::delta
