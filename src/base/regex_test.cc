#include "base/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace haulway {
namespace {

using ::testing::HasSubstr;

std::string Replaced(std::string_view pattern, std::string_view replacement,
                     std::string_view text) {
  const auto regex = Regex::Make(pattern);
  if (!regex.ok()) return "no expression";
  if (!regex->CheckReplacement(replacement).ok()) return "no replacement";
  return regex->ReplaceAll(text, replacement);
}

TEST(Regex, ReplacesAsPythonDoes) {
  EXPECT_EQ(Replaced("^module\\.", "", "module.module.w"), "module.w");
  EXPECT_EQ(Replaced("a", "b", "banana"), "bbnbnb");
  EXPECT_EQ(Replaced("(\\w+)\\.(\\d+)", "\\2.\\1\\0", "h.12.w"), "12.hh.12.w");
  EXPECT_EQ(Replaced("(?P<n>\\d+)", "<\\g<n>\\g<1>0>", "a7"), "a<770>");
  EXPECT_EQ(Replaced("x*", "-", "axb"), "-a--b-");
  EXPECT_EQ(Replaced("$", "!", "a"), "a!");
  EXPECT_EQ(Replaced("\\b", "|", "ab cd"), "|ab| |cd|");
  EXPECT_EQ(Replaced("a", "\\\\", "a"), "\\");
  EXPECT_EQ(Replaced("(a)|b", "<\\1>", "ab"), "<a><>");
  EXPECT_EQ(Replaced("", "-", "é"), "-é-");
  EXPECT_EQ(Replaced("", "-", "\xFF"), "-\xFF-");
  EXPECT_EQ(Replaced("é", "e", "é\xFF"), "e\xFF");
}

TEST(Regex, ReplacementsThatMeanNothingAreRefused) {
  for (const std::string text :
       {"\\1", "\\g<1>", "\\g<x>", "\\g<", "\\d", "\\", "\\99"}) {
    EXPECT_EQ(Replaced("a", text, "a"), "no replacement") << text;
  }
  EXPECT_EQ(Replaced("a", "\\.", "a"), ".");
}

TEST(Regex, ExpressionsThatAreNoneSayWhy) {
  const Status status = Regex::Make("(").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("not a regular expression: missing )"));
  EXPECT_EQ(Regex::Make("(?=a)").status().code(), Code::kInvalidArgument);
}

TEST(Regex, TakesTimeThatIsLinear) {
  const std::string text(200'000, 'a');
  const auto regex = Regex::Make("(a*)*(a|aa)*b");
  ASSERT_TRUE(regex.ok());
  EXPECT_FALSE(regex->Finds(text));
  EXPECT_EQ(regex->ReplaceAll(text, ""), text);
}

}  // namespace
}  // namespace haulway
