#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "haulway/safetensors.h"
#include "safetensors/safetensors_reader.h"
#include "testing/layout_bytes.h"

namespace haulway {
namespace {

using ::haulway::testing::Assemble;
using ::testing::HasSubstr;

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span<const char>(text));
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const std::string f32 = "0123456789abcdef";
  const std::string f4 = "xy";
  const std::string empty;
  const int64_t two_by_two[] = {2, 2};
  const int64_t two[] = {2};
  const int64_t none[] = {0, 3};
  const DenseTensor tensors[] = {{"f4", DType::kF4E2M1X2, two, Bytes(f4)},
                                 {"f32", DType::kF32, two_by_two, Bytes(f32)},
                                 {"none", DType::kI64, none, Bytes(empty)}};
  const auto layout = LayOutSafetensors(
      tensors, {.metadata = {{{"b", "2"}, {"a", "1"}}}, .alignment = 64});
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  const std::string file = Assemble(**layout);
  const auto reader =
      safetensors::OpenSafetensors(MakeMemorySource(Bytes(file)), {});
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
  const std::string data = "01234567";
  const int64_t two[] = {2};
  const auto message = [&](const DenseTensor& tensor) {
    return std::string(
        LayOutSafetensors(std::span(&tensor, 1)).status().message());
  };
  EXPECT_EQ(message({"a", DType::kQI8, two, Bytes(data)}),
            "safetensors has no dtype QI8; in 'a'");
  EXPECT_EQ(message({"a", DType::kF64, two, Bytes(data)}),
            "dtype F64 with shape [2] needs 16 bytes, found 8; in 'a'");
  EXPECT_THAT(message({"a", DType::kF4E2M1X2, {}, Bytes(data)}),
              HasSubstr("needs a last dimension"));
}

}  // namespace
}  // namespace haulway
