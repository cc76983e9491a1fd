#include "haulway/select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "haulway/checkpoint.h"

namespace haulway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

bool Matches(const std::string& pattern, std::string_view name) {
  const auto filter = NameFilter::Make({.include = {{pattern}}});
  EXPECT_TRUE(filter.ok()) << filter.status().message();
  return filter->Matches(name);
}

// Expected results are those of fnmatch.fnmatchcase();
// python/tests/reading/test_select.py compares many more.
TEST(NameFilter, MatchesGlobsAsPythonDoes) {
  struct Case {
    const char* pattern;
    const char* name;
    bool matches;
  };
  constexpr Case kCases[] = {
      {"*", "", true},
      {"", "", true},
      {"", "a", false},
      {"a", "a", true},
      {"a", "ab", false},
      {"*.weight", "layer.0.weight", true},
      {"*.weight", "layer.0.weights", false},
      {"layer.*.weight", "layer.0.sub.weight", true},
      {"l*r*0*", "layer.0.weight", true},
      {"*a*b*c", "xaybzc", true},
      {"*a*b*c", "xaybzcd", false},
      {"a*a", "a", false},
      {"?", "\xc3\xa9", true},
      {"??", "\xc3\xa9", false},
      {"?", "\xff", true},
      {"[ab]x", "bx", true},
      {"[!ab]x", "bx", false},
      {"[!ab]x", "cx", true},
      {"[a-c]", "b", true},
      {"[c-a]", "b", false},
      {"[!c-a]", "b", true},
      {"[a-]", "-", true},
      {"[-a]", "-", true},
      {"[]]", "]", true},
      {"[!]]", "]", false},
      {"[", "[", true},
      {"[a", "[a", true},
      {"[!", "[!", true},
      {"[^a]", "^", true},
      {"[\\]", "\\", true},
      {"\\*", "\\abc", true},
      {"[*]", "*", true},
      {"[*]", "a", false},
      {"[\xc3\xa0-\xc3\xbf]", "\xc3\xa9", true},
  };
  for (const Case& one : kCases) {
    EXPECT_EQ(Matches(one.pattern, one.name), one.matches)
        << one.pattern << " " << one.name;
  }
}

TEST(NameFilter, ManyStarsCostNoMoreThanTheProductOfLengths) {
  std::string pattern, name(50'000, 'a');
  for (int i = 0; i < 100; ++i) pattern += "*a";
  EXPECT_TRUE(Matches(pattern, name));
  EXPECT_FALSE(Matches(pattern + "b", name));
}

TEST(NameFilter, TakesRegularExpressionsBetweenSlashes) {
  EXPECT_TRUE(Matches("/bias$/", "layer.0.bias"));
  EXPECT_FALSE(Matches("/bias$/", "layer.0.biases"));
  EXPECT_TRUE(Matches("//", "//"));
  const auto wrong = NameFilter::Make({.exclude = {"/(/"}});
  EXPECT_EQ(wrong.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(wrong.status().message(),
            "not a regular expression: missing ): (; in '('");
}

TEST(NameFilter, ExcludesComeWhatMay) {
  const auto filter =
      NameFilter::Make({.include = {{"a*", "b"}}, .exclude = {"*c"}});
  EXPECT_TRUE(filter->Matches("ab"));
  EXPECT_TRUE(filter->Matches("b"));
  EXPECT_FALSE(filter->Matches("ac"));
  EXPECT_FALSE(filter->Matches("d"));
  EXPECT_TRUE(NameFilter::Make({.exclude = {"c"}})->Matches("d"));
  EXPECT_FALSE(
      NameFilter::Make({.include = std::vector<std::string>()})->Matches("d"));
  EXPECT_TRUE(NameFilter().Matches("d"));
}

TEST(NameFilter, APrefixIsTakenOff) {
  const auto filter = NameFilter::Make({.include = {{"w*"}}, .prefix = "m."});
  EXPECT_TRUE(filter->Matches("m.w"));
  EXPECT_FALSE(filter->Matches("w"));
  EXPECT_FALSE(filter->Matches("m.x"));
}

TEST(NameFilter, SaysWhichPatternIsNotUsed) {
  const auto check = [](const NameOptions& options) {
    const std::vector<std::string_view> names = {"m.w", "m.b", "n.w"};
    const Status status = NameFilter::Make(options)->CheckUsed(names);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), Code::kNotFound);
    }
    return std::string(status.message());
  };
  EXPECT_EQ(check({}), "");
  EXPECT_EQ(check({.include = {{"m.*", "/w$/"}}, .exclude = {"n.*"}}), "");
  EXPECT_EQ(check({.include = {{"m.*", "x*"}}}),
            "include 'x*' matches no name");
  EXPECT_EQ(check({.include = {{"m.*"}}, .exclude = {"/^w/"}}),
            "exclude '/^w/' matches no name");
  EXPECT_EQ(check({.exclude = {"w"}, .prefix = "m."}), "");
  EXPECT_EQ(check({.exclude = {"m.w"}, .prefix = "m."}),
            "exclude 'm.w' matches no name");
  EXPECT_EQ(check({.prefix = "w."}), "no name begins with prefix 'w.'");
}

Result<Selection> Selected(std::string_view text, std::vector<int64_t> shape,
                           std::vector<int64_t> strides = {}) {
  HAULWAY_ASSIGN(const auto index, ParseIndex(text));
  return Select(index, shape, strides);
}

std::string Text(const Result<Selection>& selection) {
  if (!selection.ok()) return std::string(selection.status().message());
  std::string text;
  for (const DimSlice& slice : selection->slices) {
    text += std::to_string(slice.start) + ":" + std::to_string(slice.stop) +
            ":" + std::to_string(slice.step) + " ";
  }
  text += "->";
  for (const int64_t size : selection->shape()) {
    text += " " + std::to_string(size);
  }
  return text;
}

TEST(Select, UnderstandsSlicesAsNumPyDoes) {
  EXPECT_EQ(Text(Selected("0:4,:", {10, 3})), "0:4:1 0:3:1 -> 4 3");
  EXPECT_EQ(Text(Selected("-1", {10, 3})), "9:10:1 0:3:1 -> 3");
  EXPECT_EQ(Text(Selected("::-2,...", {5, 3})), "4:-1:-2 0:3:1 -> 3 3");
  EXPECT_EQ(Text(Selected("...,1", {5, 3})), "0:5:1 1:2:1 -> 5");
  EXPECT_EQ(Text(Selected("...", {})), "->");
  EXPECT_EQ(Text(Selected("7:3", {10})), "0:0:1 -> 0");
  EXPECT_EQ(Text(Selected("-100:100:3", {10})), "0:10:3 -> 4");
  EXPECT_EQ(Text(Selected(" 1 , 2 ", {10, 3})), "1:2:1 2:3:1 ->");
  EXPECT_EQ(Text(Selected("3::9223372036854775807", {10})), "3:4:1 -> 1");
}

TEST(Select, SaysWhatIsWrong) {
  EXPECT_EQ(Text(Selected("10", {10})),
            "index 10 is out of bounds for axis 0 with size 10");
  EXPECT_EQ(Text(Selected("0,0", {10})),
            "too many indices: the tensor is 1-dimensional, but 2 were "
            "indexed");
  EXPECT_EQ(Text(Selected("...,...", {10})),
            "an index can only have a single ellipsis ('...')");
  EXPECT_EQ(Text(Selected("1:2:3:4", {10})),
            "slice '1:2:3:4' has more than start:stop:step");
  EXPECT_EQ(Text(Selected("::0", {10})),
            "slice step is 0: expected another number");
  EXPECT_EQ(Text(Selected("a", {10})), "slice 'a' is not a number");
  EXPECT_EQ(Text(Selected("", {10})), "slice '' is empty");
  EXPECT_EQ(Text(Selected("99999999999999999999", {10})),
            "slice '99999999999999999999' is not a number");
}

TEST(Select, ReadsRepeatedElementsOnce) {
  const auto selection = Selected(":,1:3", {1000, 4}, {0, 1});
  EXPECT_EQ(Text(selection), "0:1:1 1:3:1 -> 1000 2");
  EXPECT_THAT(selection->strides(), ElementsAre(0, 1));
  EXPECT_FALSE(selection->IsLargerThan(std::vector<int64_t>{0, 1}));
}

TEST(Select, NewAxesAreOneLong) {
  const std::vector<IndexItem> index = {
      {.kind = IndexItem::Kind::kNewAxis},
      {.kind = IndexItem::Kind::kNumber, .start = 1},
      {.kind = IndexItem::Kind::kEllipsis},
      {.kind = IndexItem::Kind::kNewAxis},
  };
  const auto selection = Select(index, std::vector<int64_t>{2, 5});
  EXPECT_EQ(Text(selection), "1:2:1 0:5:1 -> 1 5 1");
  EXPECT_THAT(selection->strides(), ElementsAre(1, 1, 1));
}

TEST(Select, KnowsViewsThatReachElementsInSeveralWays) {
  const std::vector<int64_t> strides = {1, 1};
  const auto all = Selected("...", {1000, 1000}, strides);
  EXPECT_TRUE(all->IsLargerThan(strides));
  const auto row = Selected("3", {1000, 1000}, strides);
  EXPECT_FALSE(row->IsLargerThan(strides));
}

TEST(Shard, PartsAreThoseOfTensorSplit) {
  const auto part = [](std::vector<int64_t> shape, ShardOptions shard) {
    return Text(Select(ShardIndex(shape, shard), shape));
  };
  EXPECT_EQ(part({10}, {.rank = 0, .world = 4}), "0:3:1 -> 3");
  EXPECT_EQ(part({10}, {.rank = 1, .world = 4}), "3:6:1 -> 3");
  EXPECT_EQ(part({10}, {.rank = 3, .world = 4}), "8:10:1 -> 2");
  EXPECT_EQ(part({2}, {.rank = 3, .world = 4}), "0:0:1 -> 0");
  EXPECT_EQ(part({4, 6}, {.rank = 1, .world = 2, .dim = -1}),
            "0:4:1 3:6:1 -> 4 3");
  EXPECT_EQ(part({4}, {.rank = 1, .world = 2, .dim = 1}), "0:4:1 -> 4");
  EXPECT_EQ(part({}, {.rank = 1, .world = 2}), "->");
  for (const ShardOptions& none :
       {ShardOptions{.rank = 2, .world = 2}, ShardOptions{.rank = -1},
        ShardOptions{.world = 0}}) {
    EXPECT_EQ(CheckShard(none).code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(CheckShard({.rank = 2, .world = 2}).message(),
            "rank is 2 of 2: expected 0 to 1");
}

class SelectTensorsTest : public testing::Test {
 protected:
  Result<std::vector<SelectedTensor>> Choose(const SelectOptions& options) {
    return SelectTensors(**checkpoint_, options);
  }
  std::vector<std::string> Names(const SelectOptions& options) {
    const auto chosen = Choose(options);
    EXPECT_TRUE(chosen.ok()) << chosen.status().message();
    std::vector<std::string> names;
    for (const SelectedTensor& one : *chosen) {
      names.emplace_back(one.entry.name);
    }
    return names;
  }
  // The file holds embed [2, 3], head [2, 3], row [3], n [2].
  const Result<std::shared_ptr<const Checkpoint>> checkpoint_ =
      Checkpoint::Open(std::string_view(HAULWAY_TESTDATA "/golden/tied.pt"));
};

TEST_F(SelectTensorsTest, TakesAllByDefault) {
  EXPECT_THAT(Names({}), ElementsAre("embed", "head", "row", "n"));
  EXPECT_THAT(Names({.names = {.exclude = {"e*"}}}),
              ElementsAre("head", "row", "n"));
  EXPECT_EQ(Choose({.names = {.include = {{"x*"}}}}).status().code(),
            Code::kNotFound);
}

TEST_F(SelectTensorsTest, SlicesAloneAreAllThatIsWanted) {
  EXPECT_THAT(Names({.slices = {{"row", "1:"}}}), ElementsAre("row"));
  const auto both =
      Choose({.names = {.include = {{"n"}}}, .slices = {{"embed", "0,::2"}}});
  ASSERT_TRUE(both.ok());
  ASSERT_EQ(both->size(), 2u);
  EXPECT_THAT((*both)[0].shape, ElementsAre(2));
  EXPECT_THAT((*both)[1].shape, ElementsAre(2));
  EXPECT_THAT((*both)[1].request.slice, IsEmpty());
}

TEST_F(SelectTensorsTest, RequestsLoadWhatTheySay) {
  auto chosen = Choose({.slices = {{"embed", "1,::-2"}}});
  ASSERT_TRUE(chosen.ok());
  float values[2] = {};
  TensorRequest request = (*chosen)[0].request;
  request.out = std::as_writable_bytes(std::span(values));
  ASSERT_TRUE(LoadTensors(**checkpoint_, {&request, 1}).ok());
  EXPECT_THAT(values, ElementsAre(5, 3));
}

TEST_F(SelectTensorsTest, ShardsWhatHasNoSlice) {
  const auto chosen = Choose({.names = {.include = {{"*"}}},
                              .slices = {{"row", "..."}},
                              .shard = ShardOptions{.rank = 1, .world = 2}});
  ASSERT_TRUE(chosen.ok());
  EXPECT_THAT((*chosen)[0].shape, ElementsAre(1, 3));
  EXPECT_THAT((*chosen)[2].shape, ElementsAre(3));
  EXPECT_THAT((*chosen)[3].shape, ElementsAre(1));
}

TEST_F(SelectTensorsTest, NamesWhatIsWrong) {
  const auto none = Choose({.slices = {{"nothing", "0"}}});
  EXPECT_EQ(none.status().code(), Code::kNotFound);
  EXPECT_EQ(none.status().message(), "no tensor 'nothing'");
  EXPECT_THAT(
      std::string(Choose({.slices = {{"row", "7"}}}).status().message()),
      HasSubstr("out of bounds for axis 0 with size 3; in slice '7'; "
                "in tensor "
                "'row'"));
  EXPECT_EQ(Choose({.shard = ShardOptions{.rank = 3}}).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace haulway
