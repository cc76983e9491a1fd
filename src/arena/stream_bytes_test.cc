#include "arena/stream_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace haulway::arena {
namespace {

TEST(StreamBytesTest, CopiesEveryByteAndNoMoreAtAnyAlignment) {
  std::vector<std::byte> from(1000);
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<std::byte>(i * 7 + 1);
  }
  for (size_t size = 0; size < 400; ++size) {
    for (size_t start = 0; start < 65; start += 13) {
      for (size_t source = 0; source < 65; source += 16) {
        std::vector<std::byte> to(600);
        const auto part = std::span(from).subspan(source, size);
        StreamBytes(std::span(to).subspan(start + 1, size), part);
        ASSERT_TRUE(std::equal(part.begin(), part.end(), &to[start + 1]))
            << size << " bytes at " << start;
        ASSERT_EQ(to[start], std::byte{0});
        ASSERT_EQ(to[start + 1 + size], std::byte{0});
      }
    }
  }
}

}  // namespace
}  // namespace haulway::arena
