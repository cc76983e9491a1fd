#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "haulway/safetensors.h"
#include "safetensors/verdict_cases.h"

namespace haulway::safetensors {
namespace {

constexpr std::string_view kGood =
    R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";

// The messages of release 0.8.0 for a file with four bytes of data.
TEST(SafetensorsRefusal, SaysWhatThePackageSays) {
  struct Line {
    std::string_view header, said;
  };
  constexpr std::string_view kJson = "invalid JSON in header: ";
  for (const Line& line : {
           Line{R"([])",
                "invalid type: sequence, expected struct HashMetadata at line "
                "1 column 0"},
           Line{R"({"a":1})",
                "invalid type: integer `1`, expected struct TensorInfo at line "
                "1 column 7"},
           Line{kGood.substr(0, kGood.size() - 1),
                "EOF while parsing an object at line 1 column 52"},
           Line{R"({"a":{"dtype":"U8","shape":"x","data_offsets":[0,4]}})",
                "invalid type: string \"x\", expected a sequence at line 1 "
                "column 53"},
           Line{R"({"a":{"dtype":"U8","shape":[4]}})",
                "missing field `data_offsets` at line 1 column 32"},
           Line{R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})",
                "invalid value: integer `-4`, expected usize at line 1 column "
                "54"},
           Line{R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,4]}})",
                "invalid type: floating point `1.5`, expected usize at line 1 "
                "column 55"},
           Line{R"({"a":{"dtype":"U8","shape":[1e400],"data_offsets":[0,4]}})",
                "number out of range at line 1 column 33"},
           Line{R"({"a":{"dtype":"U8","dtype":"U8"}})",
                "duplicate field `dtype` at line 1 column 33"},
           Line{R"({"__metadata__":{"k":1}})",
                "invalid type: integer `1`, expected a string at line 1 column "
                "22"},
           Line{R"({"a\u00zz":{}})", "invalid escape at line 1 column 9"},
       }) {
    EXPECT_EQ(SafetensorsRefusal(line.header, 4),
              std::string(kJson) + std::string(line.said))
        << line.header;
  }
}

TEST(SafetensorsRefusal, SaysWhatThePackageSaysOfOffsets) {
  struct Line {
    std::string_view header, said;
  };
  for (const Line& line : {
           Line{R"({})", "incomplete metadata, file not fully covered"},
           Line{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,3]}})",
                "invalid shape, data type, or offset for tensor"},
           Line{R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                "invalid offset for tensor `a`"},
           Line{R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,4]}})",
                "The slice is slicing for subbytes dtypes, and the slice does "
                "not end up at a byte boundary, this is invalid."},
           Line{R"({"a":{"dtype":"U8","shape":[9223372036854775807,4],)"
                R"("data_offsets":[0,4]}})",
                "overflow computing buffer size from shape and/or element "
                "type"},
       }) {
    EXPECT_EQ(SafetensorsRefusal(line.header, 4), line.said) << line.header;
  }
  EXPECT_EQ(SafetensorsRefusal(kGood, 4), std::nullopt);
}

TEST(SafetensorsRefusal, RefusesWhatThePackageRefuses) {
  size_t seen = 0;
  for (const test::Case& one : test::Cases()) {
    if (one.length != "=") continue;
    ++seen;
    EXPECT_EQ(SafetensorsRefusal(test::Expand(one.header),
                                 std::stoull(one.data_bytes))
                  .has_value(),
              one.reference == "refuse")
        << one.name;
  }
  EXPECT_GE(seen, 90u);
}

TEST(SafetensorsRefusal, EveryCutIsRefused) {
  for (size_t size = 0; size < kGood.size(); ++size) {
    EXPECT_TRUE(SafetensorsRefusal(kGood.substr(0, size), 4).has_value());
  }
}

// Every change gets a verdict, and sanitizers detect any access past the text.
TEST(SafetensorsRefusal, EveryFlippedBitEnds) {
  for (size_t bit = 0; bit < kGood.size() * 8; ++bit) {
    std::string header(kGood);
    header[bit / 8] = static_cast<char>(header[bit / 8] ^ 1 << bit % 8);
    SafetensorsRefusal(header, 4);
  }
}

TEST(SafetensorsRefusal, ValuesInOneAnotherAreBounded) {
  const std::string deep = "{\"a\":" + std::string(100'000, '[');
  EXPECT_EQ(SafetensorsRefusal(deep, 0),
            "invalid JSON in header: recursion limit exceeded at line 1 column "
            "132");
}

}  // namespace
}  // namespace haulway::safetensors
