#include "arithmetic/rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>

namespace haulway::arithmetic {
namespace {

using testing::HasSubstr;

std::string MessageOf(std::string_view rule) {
  const std::string json = R"({"rules": [)" + std::string(rule) + "]}";
  return std::string(ParseRules(json, 1).status().message());
}

TEST(NamePattern, MatchesTheEndOfANameFromADotOn) {
  const NamePattern plain{"up.weight", ""};
  EXPECT_EQ(plain.Find("up.weight", false)->group, "");
  EXPECT_EQ(plain.Find("layers.3.up.weight", false)->group, "layers.3.");
  EXPECT_FALSE(plain.Find("gate_up.weight", false).has_value());
  EXPECT_FALSE(plain.Find("up.weight.scale", false).has_value());
  EXPECT_EQ(plain.Name("layers.3.", std::nullopt), "layers.3.up.weight");
}

TEST(NamePattern, MatchesANumberBetweenDots) {
  const NamePattern numbered{"experts.", ".w"};
  const auto match = numbered.Find("mlp.experts.12.w", true);
  EXPECT_EQ(match->group, "mlp.");
  EXPECT_EQ(match->number, 12u);
  EXPECT_EQ(numbered.Name("mlp.", 12), "mlp.experts.12.w");
  for (const std::string_view name :
       {"experts..w", "experts.a.w", "experts.1a.w", "experts.a1.w",
        "experts.01.w", "experts.-1.w", "experts.1.2.w", "myexperts.1.w",
        "experts.99999999999999999999.w"}) {
    EXPECT_FALSE(numbered.Find(name, true).has_value()) << name;
  }
  EXPECT_EQ((NamePattern{"", ""}.Find("a.0", true))->group, "a.");
}

TEST(Rules, AreRead) {
  const auto rules = ParseRules(
      R"({"rules": [
        {"source": ["*.a", "*.b"], "target": "ab",
         "ops": [{"stack": {"dim": "heads"}}, {"cast": {"dtype": "bf16"}}]},
        {"rename": ["^a", "b"]},
        {"source": "a", "target": [], "apply": 0}]})",
      1);
  ASSERT_TRUE(rules.ok()) << rules.status().message();
  ASSERT_EQ(rules->size(), 3u);
  const Rule& first = rules->front();
  EXPECT_EQ(first.name, "rule 1 ('*.a')");
  EXPECT_TRUE(first.sources.is_numbered);
  EXPECT_FALSE(first.targets.is_numbered);
  EXPECT_EQ(first.sources.patterns[1].after, ".b");
  EXPECT_EQ(first.operations[0].row->name, "stack");
  EXPECT_EQ(first.operations[0].dim, "heads");
  EXPECT_EQ(first.operations[1].dtype, DType::kBF16);
  EXPECT_TRUE((*rules)[1].renaming.has_value());
  EXPECT_EQ((*rules)[2].function, 0u);
  EXPECT_TRUE((*rules)[2].targets.patterns.empty());
}

TEST(Rules, AnswerASlip) {
  EXPECT_THAT(MessageOf(R"({"sourc": "a"})"),
              HasSubstr("'sourc'; did you mean 'source'?"));
  EXPECT_THAT(MessageOf(R"({"source": "a", "target": "b",
                            "ops": [{"concatt": {}}]})"),
              HasSubstr("'concatt'; did you mean 'concat'?"));
  EXPECT_THAT(MessageOf(R"({"source": "a", "target": "b",
                            "ops": [{"split": {"size": [1]}}]})"),
              HasSubstr("'size'; did you mean 'sizes'?"));
  EXPECT_THAT(MessageOf(R"({"source": "a", "target": "b", "apply": 1})"),
              HasSubstr("Python"));
}

}  // namespace
}  // namespace haulway::arithmetic
