#include "safetensors/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "safetensors/safetensors_reader.h"
#include "testing/layout_bytes.h"

namespace haulway {
namespace {

using ::haulway::test::Assemble;
using ::testing::HasSubstr;

TensorToWrite Tensor(std::string name, DType dtype, std::vector<int64_t> shape,
                     const std::string& bytes) {
  return {.name = std::move(name),
          .dtype = dtype,
          .shape = std::move(shape),
          .bytes = {.length = bytes.size(),
                    .bytes = std::as_bytes(std::span(bytes)).data()}};
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const std::string f32 = "0123456789abcdef";
  const std::string f4 = "xy";
  const TensorsToWrite tensors{
      .tensors = {Tensor("f4", DType::kF4E2M1X2, {2}, f4),
                  Tensor("f32", DType::kF32, {2, 2}, f32),
                  Tensor("none", DType::kI64, {0, 3}, "")},
      .metadata = {{{"b", "2"}, {"a", "1"}}}};
  const auto layout = safetensors::LayOutTensors(tensors, {.alignment = 64});
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  const std::string file = Assemble(**layout);
  const auto reader = safetensors::OpenSafetensors(
      MakeMemorySource(std::as_bytes(std::span(file))), {});
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  const CheckpointIndex& index = (*reader)->index();
  ASSERT_EQ(index.entries.size(), 3u);
  EXPECT_EQ(index.entries[0].name, "none");
  EXPECT_EQ(index.entries[1].name, "f32");
  EXPECT_EQ(file.substr(index.storages[1].offset, 16), f32);
  EXPECT_EQ(index.storages[1].offset % 64, 0u);
  EXPECT_EQ(file.substr(index.storages[2].offset), f4);
  EXPECT_THAT(index.tensors[2].shape, ::testing::ElementsAre(2));
  EXPECT_EQ(index.metadata->at(0).name, "a");
}

TEST(SafetensorsWriter, RefusesWhatItCannotExpress) {
  const auto message = [&](TensorToWrite tensor) {
    TensorsToWrite tensors;
    tensors.tensors.push_back(std::move(tensor));
    return std::string(
        safetensors::LayOutTensors(tensors, {}).status().message());
  };
  const std::string data = "01234567";
  EXPECT_EQ(message(Tensor("a", DType::kQI8, {2}, data)),
            "safetensors has no dtype QI8: leave the tensor out; in 'a'");
  EXPECT_EQ(message(Tensor("a", DType::kF64, {2}, data)),
            "dtype F64 with shape [2] needs 16 bytes, found 8; in 'a'");
  EXPECT_THAT(message(Tensor("a", DType::kF4E2M1X2, {}, data)),
              HasSubstr("needs a last dimension"));
}

}  // namespace
}  // namespace haulway
