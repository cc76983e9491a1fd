#include "zip/inflate_part.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "testing/zip_builder.h"

namespace haulway::zip {
namespace {

TEST(InflatePart, TakesExactlyWhatIsThere) {
  const std::string content = "head" + std::string(5000, 'x');
  const test::BuiltZip zip = test::BuildZip({{"r", content, true}});
  const std::string deflated =
      zip.bytes.substr(zip.records[0].payload,
                       zip.records[0].descriptor - zip.records[0].payload);
  const auto bytes = std::as_bytes(std::span(deflated));
  const auto head = std::as_bytes(std::span(content)).first(4);
  std::vector<std::byte> out(5000);
  EXPECT_TRUE(InflateAfter(head, bytes, out).ok());
  EXPECT_FALSE(InflateAfter(head.first(3), bytes, out).ok());
  EXPECT_FALSE(InflateAfter(head, bytes, std::span(out).first(4999)).ok());
  EXPECT_FALSE(InflateAfter(head, bytes.first(bytes.size() - 1), out).ok());
  const auto other = std::as_bytes(std::span("hEad", 4));
  EXPECT_FALSE(InflateAfter(other, bytes, out).ok());
  EXPECT_EQ(*InflateStart(bytes, std::span(out).first(4)), 4u);
  EXPECT_EQ(*InflateStart({}, out), 0u);
}

}  // namespace
}  // namespace haulway::zip
