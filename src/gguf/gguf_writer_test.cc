#include "gguf/gguf_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gguf/gguf_reader.h"
#include "testing/gguf_builder.h"
#include "testing/layout_bytes.h"

namespace haulway::gguf {
namespace {

using test::Array;
using test::File;
using test::KeyValue;
using test::Little;
using test::TensorRow;
using test::Text;
using ::testing::HasSubstr;

TensorToWrite Tensor(std::string name, std::vector<int64_t> shape, DType dtype,
                     const std::string& data) {
  return {.name = std::move(name),
          .dtype = dtype,
          .shape = std::move(shape),
          .bytes = {.length = data.size(),
                    .bytes = std::as_bytes(std::span(data)).data()}};
}

constexpr const char* kArchitecture = "general.architecture";

std::string Written(const TensorsToWrite& tensors,
                    const SaveOptions& options = {}) {
  const auto layout = LayOutTensors(tensors, options);
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  return layout.ok() ? haulway::test::Assemble(**layout) : "";
}

TEST(GgufWriter, WritesWhatTheFormatSays) {
  const std::string floats(24, 'f'), blocks(36, 'q');
  TensorsToWrite tensors;
  tensors.tensors = {Tensor("w", {2, 3}, DType::kF32, floats),
                     Tensor("q", {1, 36}, DType::kQ4_0, blocks)};
  tensors.metadata.emplace().emplace_back("general.architecture", "llama");
  tensors.values = {
      {"n", uint64_t{7}, "u32"},
      {"flags", FactArray(std::vector<bool>{true, false})},
      {"small", int64_t{-5}},
      {"large", uint64_t{1} << 63},
      {"half", 0.5},
      {"tenth", 0.1},
      {"bytes", FactArray(std::vector<int64_t>{1, -1}), "i8"},
  };
  EXPECT_EQ(
      Written(tensors),
      File({KeyValue("general.architecture", 8, Text("llama")),
            KeyValue("n", 4, Little(7, 4)),
            KeyValue("flags", 9, Array(7, 2, std::string("\1\0", 2))),
            KeyValue("small", 5, Little(0xFFFFFFFB, 4)),
            KeyValue("large", 10, Little(uint64_t{1} << 63, 8)),
            KeyValue("half", 6, Little(0x3F000000, 4)),
            KeyValue("tenth", 12, Little(0x3FB999999999999A, 8)),
            KeyValue("bytes", 9, Array(1, 2, "\1\xFF"))},
           {TensorRow("w", {3, 2}, 0, 0), TensorRow("q", {64, 1}, 2, 32)},
           floats + std::string(8, '\0') + blocks + std::string(28, '\0')));
}

TEST(GgufWriter, ValuesOfAFileAreWrittenAsTheyWere) {
  const std::string file = test::Example();
  const auto reader =
      OpenGguf(MakeMemorySource(std::as_bytes(std::span(file))), {});
  ASSERT_TRUE(reader.ok());
  const std::string floats(24, 'd'), blocks(36, 'd');
  TensorsToWrite tensors;
  tensors.tensors = {Tensor("w", {2, 3}, DType::kF32, floats),
                     Tensor("q", {36}, DType::kQ4_0, blocks)};
  tensors.values = *(*reader)->index().metadata;
  const std::string again = Written(tensors);
  EXPECT_EQ(again.substr(0, again.size() - 96),
            file.substr(0, file.size() - 96));
}

TEST(GgufWriter, AlignsAsToldAndSaysSo) {
  TensorsToWrite tensors;
  const std::string data = "1234";
  tensors.tensors = {Tensor("a", {1}, DType::kF32, data),
                     Tensor("b", {1}, DType::kF32, data)};
  SaveOptions options;
  options.alignment = 64;
  tensors.metadata.emplace().emplace_back(kArchitecture, "llama");
  const auto architecture = KeyValue(kArchitecture, 8, Text("llama"));
  const auto key = KeyValue("general.alignment", 4, Little(64, 4));
  const std::string padded = data + std::string(60, '\0');
  const std::string expected =
      File({architecture, key},
           {TensorRow("a", {1}, 0, 0), TensorRow("b", {1}, 0, 64)},
           padded + padded, 64);
  EXPECT_EQ(Written(tensors, options), expected);
  tensors.values = {{"general.alignment", uint64_t{64}, "u32"}};
  EXPECT_EQ(Written(tensors), expected);
  for (const uint64_t wrong : {uint64_t{0}, uint64_t{48}, uint64_t{1} << 32}) {
    options.alignment = wrong;
    EXPECT_EQ(LayOutTensors(tensors, options).status().code(),
              Code::kInvalidArgument);
  }
}

TEST(GgufWriter, RefusesWhatTheFormatLacks) {
  const std::string data(36, 'x');
  const auto message = [&](std::string name, std::vector<int64_t> shape,
                           DType dtype) {
    TensorsToWrite tensors;
    tensors.tensors = {Tensor(std::move(name), std::move(shape), dtype, data)};
    tensors.metadata.emplace().emplace_back(kArchitecture, "llama");
    return std::string(LayOutTensors(tensors, {}).status().message());
  };
  EXPECT_THAT(message("t", {36}, DType::kU8),
              HasSubstr("no dtype U8: leave the tensor out; in 't'"));
  EXPECT_THAT(message("t", {36}, DType::kOpaque), HasSubstr("OPAQUE"));
  EXPECT_THAT(message("t", {1, 1, 1, 1, 9}, DType::kF32),
              HasSubstr("5 dimensions"));
  EXPECT_THAT(message(std::string(64, 't'), {9}, DType::kF32),
              HasSubstr("64 bytes"));
  EXPECT_THAT(message("t", {4, 9}, DType::kQ4_0), HasSubstr("whole blocks"));
  EXPECT_EQ(message(std::string(63, 't'), {1, 1, 1, 9}, DType::kF32), "");
}

TEST(GgufWriter, RefusesKeysAndValuesThatNobodyReads) {
  const auto message = [](const Fact& fact) {
    TensorsToWrite tensors;
    tensors.metadata.emplace().emplace_back("there", "x");
    tensors.metadata->emplace_back(kArchitecture, "llama");
    tensors.values = {fact};
    return std::string(LayOutTensors(tensors, {}).status().message());
  };
  EXPECT_THAT(message({"", true}), HasSubstr("has no bytes"));
  EXPECT_THAT(message({"\xFF", true}), HasSubstr("not UTF-8"));
  EXPECT_THAT(message({"there", true}), HasSubstr("twice"));
  EXPECT_THAT(message({"k", std::monostate()}), HasSubstr("no value"));
  EXPECT_THAT(message({"k", int64_t{-1}, "u8"}), HasSubstr("of type 'u8'"));
  EXPECT_THAT(message({"k", uint64_t{256}, "u8"}), HasSubstr("of type 'u8'"));
  EXPECT_THAT(message({"k", 0.5, "i8"}), HasSubstr("of type 'i8'"));
  EXPECT_THAT(message({"k", true, "str"}), HasSubstr("of type 'str'"));
  EXPECT_THAT(message({"k", true, "array"}), HasSubstr("of type 'array'"));
  EXPECT_EQ(message({"k", true}), "");
}

TEST(GgufWriter, RefusesAFileWithoutAnArchitecture) {
  TensorsToWrite tensors;
  const auto check = [&] {
    const Status status = LayOutTensors(tensors, {}).status();
    if (!status.ok()) {
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
    }
    return std::string(status.message());
  };
  const std::string expected =
      "GGUF requires the metadata general.architecture: set it to the name of "
      "the model's architecture, such as 'llama'";
  EXPECT_EQ(check(), expected);
  tensors.values = {{kArchitecture, uint64_t{7}}};
  EXPECT_EQ(check(), expected);
  tensors.values = {{kArchitecture, std::string()}};
  EXPECT_EQ(check(), expected);
  tensors.values = {{kArchitecture, std::string("llama")}};
  EXPECT_EQ(check(), "");
}

}  // namespace
}  // namespace haulway::gguf
