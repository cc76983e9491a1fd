#include "arithmetic/expression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace haulway::arithmetic {
namespace {

using testing::HasSubstr;

Result<int64_t> Of(std::string_view text) {
  return Evaluate(text, [](std::string_view name) -> Result<int64_t> {
    if (name == "heads") return int64_t{8};
    if (name == "text.dim_2") return int64_t{64};
    return Status(Code::kMismatch, "no such number");
  });
}

TEST(Expression, IsComputed) {
  EXPECT_EQ(*Of("7"), 7);
  EXPECT_EQ(*Of("-1"), -1);
  EXPECT_EQ(*Of("heads*text.dim_2"), 512);
  EXPECT_EQ(*Of(" 2 + 3 * heads - 1 "), 25);
  EXPECT_EQ(*Of("(2+3)*-(heads-9)"), 5);
  EXPECT_EQ(*Of("text.dim_2/heads/2"), 4);
  EXPECT_EQ(*Of("9223372036854775807"), INT64_MAX);
}

TEST(Expression, RefusesOtherTexts) {
  for (const std::string& text : std::initializer_list<std::string>{
           "", " ", "2+", "*2", "2 3", "heads heads", "(2", "2)", "2%3", "1.5",
           "heads$", std::string(300, '1'), std::string(40, '(') + "1"}) {
    EXPECT_EQ(Of(text).status().code(), Code::kInvalidArgument) << text;
  }
}

TEST(Expression, RefusesWhatIsNoWholeNumberOf64Bits) {
  for (const std::string_view text :
       {"9223372036854775808", "9223372036854775807+1",
        "-9223372036854775807-2", "9223372036854775807*2"}) {
    EXPECT_THAT(std::string(Of(text).status().message()),
                HasSubstr("passes 2^63"))
        << text;
  }
  for (const std::string_view text : {"7/2", "7/0", "7/(0-1)"}) {
    EXPECT_THAT(std::string(Of(text).status().message()),
                HasSubstr("cannot be divided"))
        << text;
  }
  EXPECT_THAT(std::string(Of("other").status().message()),
              HasSubstr("no such number"));
}

}  // namespace
}  // namespace haulway::arithmetic
