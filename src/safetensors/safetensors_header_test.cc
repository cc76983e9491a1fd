#include "safetensors/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "safetensors/compact_header.h"
#include "safetensors/header_for_test.h"

namespace haulway::safetensors {
namespace {

using test::Parse;
using test::ParsedHeader;
using test::WithPrefix;
using ::testing::HasSubstr;

std::string_view PrefixOf(const EncodedHeader& encoded) {
  return std::string_view(encoded.bytes).substr(0, kPrefixBytes);
}

TEST(DTypes, AreThoseWithANameInTheTable) {
  size_t named = 0;
  for (const DTypeInfo& info : AllDTypes()) {
    const bool has_name = !info.safetensors_name.empty();
    named += has_name ? 1 : 0;
    EXPECT_EQ(RankOf(info.dtype) >= 0, has_name) << info.name;
    if (!has_name) continue;
    EXPECT_EQ(DTypeNamed(info.safetensors_name), info.dtype);
  }
  EXPECT_EQ(named, kSafetensorsDTypes.size());
  EXPECT_EQ(DTypeNamed(""), std::nullopt);
  EXPECT_EQ(ElementBits(DType::kF6E2M3X4), 6u);
}

TEST(EncodeHeader, WritesNothingInEightBytes) {
  const auto encoded = EncodeHeader({}, std::nullopt);
  ASSERT_TRUE(encoded.ok());
  EXPECT_EQ(encoded->bytes, std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  EXPECT_EQ(encoded->file_bytes, 16u);
}

TEST(EncodeHeader, KeepsEmptyMetadata) {
  const auto encoded = EncodeHeader({}, Metadata());
  ASSERT_TRUE(encoded.ok());
  EXPECT_EQ(encoded->bytes.substr(8), "{\"__metadata__\":{}}     ");
}

TEST(EncodeHeader, SortsByTypeDownwardsThenByName) {
  const int64_t two[] = {2};
  const TensorSpec tensors[] = {{"b", DType::kF16, two},
                                {"a", DType::kBool, two},
                                {"z", DType::kI64, two},
                                {"a2", DType::kF16, two}};
  const auto encoded = EncodeHeader(tensors, std::nullopt);
  ASSERT_TRUE(encoded.ok());
  EXPECT_THAT(encoded->order, ::testing::ElementsAre(2, 3, 0, 1));
  const uint64_t start = encoded->bytes.size();
  EXPECT_THAT(encoded->offsets, ::testing::ElementsAre(start, start + 16,
                                                       start + 20, start + 24));
  EXPECT_EQ(encoded->file_bytes, start + 26);
  EXPECT_THAT(encoded->bytes, HasSubstr(R"({"z":{"dtype":"I64","shape":[2],)"
                                        R"("data_offsets":[0,16]},"a2":{)"));
}

TEST(EncodeHeader, EscapesWhatMustBeAndNothingElse) {
  const int64_t none[] = {0};
  const TensorSpec tensors[] = {
      {"\"\\\b\t\n\f\r\x01\x1f/\x7f\xc3\xa9", DType::kU8, none}};
  const auto encoded = EncodeHeader(tensors, std::nullopt);
  ASSERT_TRUE(encoded.ok());
  EXPECT_THAT(encoded->bytes,
              HasSubstr("{\"\\\"\\\\\\b\\t\\n\\f\\r\\u0001\\u001f/\x7f\xc3\xa9"
                        "\":{"));
}

TEST(EncodeHeader, SortsKeysOfMetadata) {
  const auto encoded = EncodeHeader({}, Metadata{{"b", "2"}, {"a", "1"}});
  ASSERT_TRUE(encoded.ok());
  EXPECT_THAT(encoded->bytes,
              HasSubstr(R"({"__metadata__":{"a":"1","b":"2"}})"));
}

TEST(EncodeHeader, PadsToTheAlignmentAskedFor) {
  for (const uint64_t alignment : {8u, 64u, 4096u}) {
    const auto encoded = EncodeHeader({}, Metadata{{"k", "v"}}, alignment);
    ASSERT_TRUE(encoded.ok());
    EXPECT_EQ(encoded->bytes.size() % alignment, 0u);
    EXPECT_TRUE(Parse(encoded->bytes, Strictness::kStrict).ok());
  }
  EXPECT_EQ(EncodeHeader({}, std::nullopt, 12).status().code(),
            Code::kInvalidArgument);
}

TEST(EncodeHeader, RefusesWhatNoReaderTakes) {
  const int64_t three[] = {3};
  const int64_t negative[] = {-1};
  const auto refusal = [](std::vector<TensorSpec> tensors) {
    const auto encoded = EncodeHeader(tensors, std::nullopt);
    EXPECT_EQ(encoded.status().code(), Code::kInvalidArgument);
    return std::string(encoded.status().message());
  };
  EXPECT_THAT(refusal({{"a", DType::kU8, three}, {"a", DType::kI8, three}}),
              HasSubstr("two tensors are named 'a'"));
  EXPECT_THAT(refusal({{"__metadata__", DType::kU8, three}}),
              HasSubstr("cannot be named"));
  EXPECT_THAT(refusal({{"\xff", DType::kU8, three}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(refusal({{"a", DType::kF4E2M1X2, three}}),
              HasSubstr("whole bytes"));
  EXPECT_THAT(refusal({{"a", DType::kU8, negative}}), HasSubstr("no size"));
}

TEST(EncodeHeader, StopsAtTheLimitOfHeaders) {
  ParseLimits limits;
  limits.max_header_bytes = 32;
  EXPECT_TRUE(EncodeHeader({}, Metadata{{"k", ""}}, 8, false, limits).ok());
  const auto encoded =
      EncodeHeader({}, Metadata{{"123456789", ""}}, 8, false, limits);
  EXPECT_EQ(encoded.status().code(), Code::kLimit);
  EXPECT_THAT(encoded.status().message(), HasSubstr("max_header_bytes 32"));
}

TEST(ParseHeader, ReadsWhatWasWritten) {
  const int64_t shape[] = {2, 3};
  const int64_t four[] = {4};
  std::vector<TensorSpec> specs;
  std::vector<std::string> names;
  for (size_t i = 0; i < kSafetensorsDTypes.size(); ++i)
    names.push_back("t" + std::to_string(i));
  for (size_t i = 0; i < kSafetensorsDTypes.size(); ++i) {
    const DType dtype = kSafetensorsDTypes[i];
    const bool packed = ElementBits(dtype) < 8;
    specs.push_back({names[i], dtype,
                     packed ? std::span<const int64_t>(four)
                            : std::span<const int64_t>(shape)});
  }
  const auto encoded = EncodeHeader(specs, Metadata{{"format", "pt"}});
  ASSERT_TRUE(encoded.ok());
  std::string file = encoded->bytes;
  file.resize(encoded->file_bytes);
  const auto parsed = Parse(file, Strictness::kStrict);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const Header& header = (*parsed)->header;
  ASSERT_EQ(header.tensors.size(), specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorSpec& spec = specs[encoded->order[i]];
    EXPECT_EQ(header.tensors[i].name, spec.name);
    EXPECT_EQ(header.tensors[i].dtype, spec.dtype);
    EXPECT_TRUE(std::ranges::equal(header.tensors[i].shape, spec.shape));
    EXPECT_EQ(header.tensors[i].begin + encoded->bytes.size(),
              encoded->offsets[i]);
  }
  ASSERT_TRUE(header.metadata.has_value());
  EXPECT_THAT(*header.metadata,
              ::testing::ElementsAre(::testing::Pair("format", "pt")));
}

TEST(ParseHeader, UnescapesNames) {
  const auto parsed = Parse(
      WithPrefix(R"({"\u00e9\"\\\/\b\f\n\r\t\ud83d\ude00":)"
                 R"({"d\u0074ype":"U8","shape":[0],"data_offsets":[0,0]}})"),
      Strictness::kStrict);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ((*parsed)->header.tensors.at(0).name,
            "\xc3\xa9\"\\/\b\f\n\r\t\xf0\x9f\x98\x80");
}

TEST(ParseHeader, SaysWhatIsWrongAndWhere) {
  const auto message = [](std::string_view json, size_t data = 0) {
    const auto parsed = Parse(WithPrefix(json, data), Strictness::kStrict);
    return std::string(parsed.status().message());
  };
  EXPECT_EQ(message("[]"), "header is no JSON object; at byte 8");
  EXPECT_EQ(message(R"({"a":1})"),
            "tensor is wrong: expected an object, found a number; at byte 13; "
            "in 'a'");
  EXPECT_EQ(message(R"({"a":{"dtype":"F99"}})"),
            "dtype 'F99' is not known; at byte 22; in 'a'");
  EXPECT_EQ(message(R"({"a":{"dtype":"F16","shape":[4,1024],)"
                    R"("data_offsets":[0,8192]},"b":{"dtype":"F16","shape":)"
                    R"([2],"data_offsets":[8190,8194]}})",
                    8194),
            "tensor does not follow the one before: expected data from 8192 "
            "on, found 8190 to 8194; in 'b'");
  EXPECT_EQ(message(R"({"a":{"dtype":"F16","shape":[4,1024],)"
                    R"("data_offsets":[0,8190]}})",
                    8190),
            "dtype F16 with shape [4, 1024] needs 8192 bytes, range holds "
            "8190; in 'a'");
  EXPECT_EQ(message("{}", 3),
            "tensors do not fill the file: expected 0 bytes of data, found 3");
}

TEST(ParsePrefix, ComparesBeforeItUses) {
  const auto parse = [](std::string prefix, uint64_t file_bytes) {
    return ParsePrefix(std::as_bytes(std::span<const char>(prefix)), file_bytes,
                       ParseLimits());
  };
  const auto number = [](uint64_t n) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(n >> 8 * i));
    return bytes;
  };
  EXPECT_EQ(parse("1234567", 7).status().code(), Code::kTruncated);
  EXPECT_EQ(*parse(number(100'000'000), 100'000'008), 100'000'000u);
  EXPECT_EQ(parse(number(100'000'001), 200'000'000).status().code(),
            Code::kLimit);
  EXPECT_EQ(parse(number(~uint64_t{0}), ~uint64_t{0}).status().code(),
            Code::kLimit);
  EXPECT_EQ(*parse(number(92), 100), 92u);
  EXPECT_EQ(parse(number(93), 100).status().code(), Code::kTruncated);
}

TEST(ParseHeader, KeepsItsLimits) {
  const std::string two = WithPrefix(
      R"({"a":{"dtype":"U8","shape":[0,1,1],"data_offsets":[0,0],)"
      R"("x":[[1]]},"b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})");
  const auto fault = [&](ParseLimits limits) {
    const auto parsed = Parse(two, Strictness::kStrict, limits);
    EXPECT_EQ(parsed.status().code(), Code::kLimit);
    return std::string(parsed.status().message());
  };
  EXPECT_TRUE(Parse(two, Strictness::kStrict,
                    {.max_json_depth = 4, .max_tensors = 2, .max_rank = 3})
                  .ok());
  EXPECT_THAT(fault({.max_json_depth = 3}), HasSubstr("max_json_depth 3"));
  EXPECT_THAT(fault({.max_tensors = 1}), HasSubstr("max_tensors 1"));
  EXPECT_THAT(fault({.max_rank = 2}), HasSubstr("max_rank 2"));
}

TEST(ParseHeader, FailsAtEveryCutAndStandsEveryFlippedBit) {
  const int64_t shape[] = {2, 3};
  const TensorSpec specs[] = {{"a\n", DType::kF32, shape},
                              {"b", DType::kF16, shape},
                              {"c", DType::kF4E2M1X2, shape}};
  const auto encoded = EncodeHeader(specs, Metadata{{"format", "pt"}});
  ASSERT_TRUE(encoded.ok());
  std::string file = encoded->bytes;
  file.resize(encoded->file_bytes);
  EXPECT_EQ(PrefixOf(*encoded), file.substr(0, 8));
  for (const auto mode : {Strictness::kStrict, Strictness::kLenient}) {
    ASSERT_TRUE(Parse(file, mode).ok());
    for (size_t size = 0; size < file.size(); ++size) {
      EXPECT_EQ(Parse(file.substr(0, size), mode).status().code(),
                Code::kTruncated)
          << size;
    }
    for (size_t bit = 0; bit < encoded->bytes.size() * 8; ++bit) {
      std::string flipped = file;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      const auto parsed = Parse(flipped, mode);
      if (!parsed.ok()) continue;
      for (const HeaderTensor& tensor : (*parsed)->header.tensors) {
        EXPECT_LE(tensor.begin, tensor.end);
        EXPECT_LE(tensor.end, file.size());
      }
    }
  }
}

// Returns the header as one of the two parsers reads it; "" if it fails.
std::string Seen(std::string_view json, bool compact) {
  std::vector<std::byte> memory(json.size() + kPaddingBytes, std::byte{'"'});
  std::copy_n(std::as_bytes(std::span(json)).begin(), json.size(),
              memory.begin());
  TreeArena arena;
  Header header;
  if (compact) {
    const auto parsed = ParseCompactHeader(memory, json.size(), {}, &arena);
    if (!parsed.has_value()) return "";
    header = *parsed;
  } else {
    const auto parsed =
        ParseJsonHeader(memory, json.size(), Strictness::kStrict, {}, &arena);
    if (!parsed.ok()) return "";
    header = *parsed;
  }
  std::string seen = "{";
  for (const auto& [key, value] : header.metadata.value_or(Metadata())) {
    seen += std::string(key) + "=" + std::string(value) + ";";
  }
  for (const HeaderTensor& tensor : header.tensors) {
    seen += std::string(tensor.name) + ":" +
            std::string(Describe(tensor.dtype).name);
    for (const int64_t dim : tensor.shape) seen += "," + std::to_string(dim);
    seen += "@" + std::to_string(tensor.begin) + "-" +
            std::to_string(tensor.end) + ";";
  }
  return seen;
}

TEST(ParseCompactHeader, TakesWhatWritersEmit) {
  const int64_t shape[] = {2, 3};
  const TensorSpec specs[] = {{"a long name.with.dots", DType::kF32, shape},
                              {"\xc3\xa9", DType::kBool, {}},
                              {"", DType::kF8E4M3FNUZ, shape},
                              {"\x7f", DType::kF8E4M3, shape}};
  const std::optional<Metadata> notes[] = {
      std::nullopt, Metadata(), Metadata{{"a", "1"}, {"\xc3\xa9", ""}}};
  for (const auto& metadata : notes) {
    const auto encoded = EncodeHeader(specs, metadata);
    ASSERT_TRUE(encoded.ok());
    const std::string_view json =
        std::string_view(encoded->bytes).substr(kPrefixBytes);
    EXPECT_NE(Seen(json, /*compact=*/true), "") << json;
    EXPECT_EQ(Seen(json, true), Seen(json, false));
  }
}

void ExpectAgreement(std::string_view json) {
  const std::string compact = Seen(json, /*compact=*/true);
  if (compact.empty()) return;
  EXPECT_EQ(compact, Seen(json, /*compact=*/false)) << json;
}

// Checks that the parsers agree whichever byte of a header is changed.
TEST(ParseCompactHeader, AgreesWithTheJsonParser) {
  constexpr std::string_view kHeader =
      R"({"__metadata__":{"k":"v","l":""},"aaA":{"dtype":"F32",)"
      R"("shape":[10,2],"data_offsets":[0,80]},"b":{"dtype":"U8","shape":[],)"
      R"("data_offsets":[80,81]}} )";
  for (size_t at = 0; at < kHeader.size(); ++at) {
    for (const char c :
         std::string_view("\0\x1f \"\\,:[]{}019-aF\x7f\xc3", 19)) {
      std::string changed(kHeader);
      changed[at] = c;
      ExpectAgreement(changed);
      changed.insert(at, 1, c);
      ExpectAgreement(changed);
    }
  }
}

}  // namespace
}  // namespace haulway::safetensors
