// Names and dtype strings: what the reference writes, and what is refused.

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tensorizer/tensorizer_dtype.h"
#include "tensorizer/tensorizer_name.h"

namespace haulway::tensorizer {
namespace {

using std::string_literals::operator""s;

constexpr uint32_t kSteps = 1000;

PathStep Key(std::string key) { return {.key = std::move(key)}; }
PathStep Position(uint64_t position) {
  return {.is_position = true, .position = position, .key = ""};
}

TEST(TensorizerName, RoundTripsPaths) {
  const std::pair<Path, std::string> cases[] = {
      {{Key("w")}, "w"},
      {{Key("\xC3\xA9")}, "\xC3\xA9"},
      {{Key("a.b")}, "a.b"},
      {{Key("a"), Position(1), Key("b")}, "\x1E[\"a\",1,\"b\"]"},
      {{Position(0)}, "\x1E[0]"},
      {{Key("\xC3\xA9"), Key("\"\\\n\x01")},
       "\x1E[\"\\u00e9\",\"\\\"\\\\\\n\\u0001\"]"},
      {{Key("\xF0\x9F\x98\x80"), Position(10)}, "\x1E[\"\\ud83d\\ude00\",10]"},
      {{Key("a"), Key("")}, "\x1E[\"a\",\"\"]"},
  };
  for (const auto& [path, name] : cases) {
    const auto encoded = EncodeName(path);
    ASSERT_TRUE(encoded.ok()) << encoded.status().message();
    EXPECT_EQ(*encoded, name);
    const auto parsed = ParseName(name, kSteps);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(*parsed, path);
  }
}

TEST(TensorizerName, TakesOneKeyInBrackets) {
  EXPECT_EQ(*ParseName("\x1E[\"a\"]", kSteps), Path{Key("a")});
  EXPECT_EQ(*ParseName("\x1E[ \"a\" ,\t2 ]", kSteps),
            (Path{Key("a"), Position(2)}));
}

TEST(TensorizerName, RefusesWhatIsNoPath) {
  const std::string names[] = {
      "",
      "\xFF",
      "\x1E",
      "\x1E[]",
      "\x1E[",
      "\x1E[\"a\"",
      "\x1E[\"a\",]",
      "\x1E[true]",
      "\x1E[false]",
      "\x1E[null]",
      "\x1E[NaN]",
      "\x1E[1.0]",
      "\x1E[1e2]",
      "\x1E[-1]",
      "\x1E[01]",
      "\x1E[99999999999999999999]",
      "\x1E{\"a\":1}",
      "\x1E[[\"a\"]]",
      "\x1E[\"a\"\n]",
      "\x1E[\"a\nb\"]",
      "\x1E[\"\\x41\"]",
      "\x1E[\"\\ud83d\"]",
      "\x1E[\"\\ud83d\\u0041\"]",
      "\x1E[\"\\udc00\"]",
      "\x1E[\"\\u12\"]",
      "\x1E[\"\xFF\"]",
      "\x1E[\"a\"]x",
      "\x1E[\"\"]",
      "\x1E[\"a\", \"b\" \"c\"]",
      "\x1E[\"a\"\0]"s,
  };
  for (const std::string& name : names) {
    const auto parsed = ParseName(name, kSteps);
    ASSERT_FALSE(parsed.ok()) << name;
    EXPECT_EQ(parsed.status().code(), Code::kCorrupt) << name;
  }
}

TEST(TensorizerName, CountsSteps) {
  EXPECT_TRUE(ParseName("\x1E[1,2,3]", 3).ok());
  EXPECT_FALSE(ParseName("\x1E[1,2,3]", 2).ok());
}

TEST(TensorizerName, RefusesToWriteWhatNobodyReads) {
  EXPECT_EQ(EncodeName({}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(EncodeName({Key("")}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(EncodeName({Key("\x1Ewrong")}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(EncodeName({Key("\xFF")}).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(EncodeName({Key(std::string(65535, 'a'))}).ok());
  EXPECT_EQ(EncodeName({Key(std::string(65536, 'a'))}).status().code(),
            Code::kLimit);
}

TEST(TensorizerDType, RoundTripsEveryTypeThatTorchCanKeep) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const auto text = EncodeDType(dtype);
    if (Name(dtype).starts_with("Q") || Describe(dtype).torch_name.empty()) {
      EXPECT_EQ(text.status().code(), Code::kUnsupported);
      continue;
    }
    ASSERT_TRUE(text.ok());
    const auto parsed = ParseDType(*text);
    ASSERT_TRUE(parsed.ok()) << Name(dtype);
    EXPECT_EQ(parsed->dtype, dtype);
    EXPECT_EQ(parsed->opaque, IsOpaque(dtype));
  }
  EXPECT_EQ(*EncodeDType(DType::kBF16), "<V2\0torch.bfloat16"s);
  EXPECT_EQ(*EncodeDType(DType::kF8E5M2), "|V1\0torch.float8_e5m2"s);
  EXPECT_EQ(*EncodeDType(DType::kU4), "|V1\0torch.uint4"s);
  EXPECT_EQ(*EncodeDType(DType::kBool), "|b1");
}

TEST(TensorizerDType, TakesBothSpellingsOfOneByte) {
  EXPECT_EQ(ParseDType("<V1\0torch.float8_e5m2"s)->dtype, DType::kF8E5M2);
}

TEST(TensorizerDType, RefusesTheRest) {
  const std::pair<std::string, Code> cases[] = {
      {"", Code::kCorrupt},
      {">f4", Code::kCorrupt},
      {"<f3", Code::kCorrupt},
      {"f4", Code::kCorrupt},
      {"<V2", Code::kCorrupt},
      {"<V2\0bfloat16"s, Code::kCorrupt},
      {"<V4\0torch.bfloat16"s, Code::kCorrupt},
      {"<V2\0torch.nonsense"s, Code::kCorrupt},
      {"<V2\0torch.bfloat16\0"s, Code::kCorrupt},
      {"<V2\0torch.\0bfloat16"s, Code::kCorrupt},
      {"<V2\0torch."s, Code::kCorrupt},
      {">V2\0torch.bfloat16"s, Code::kCorrupt},
      {"|V3\0torch."s, Code::kCorrupt},
      {"|V1\0torch.qint8"s, Code::kUnsupported},
      {"|V1\0torch.int0"s, Code::kCorrupt},
      {"<V2\0torch.int4"s, Code::kCorrupt},
      {"|V1\0torch.int8x"s, Code::kCorrupt},
  };
  for (const auto& [text, code] : cases) {
    const auto parsed = ParseDType(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), code) << text;
  }
}

}  // namespace
}  // namespace haulway::tensorizer
