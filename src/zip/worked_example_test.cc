// Compares the builder of these tests with a file that torch itself wrote, so
// that what it builds elsewhere is what torch writes.

#include <gtest/gtest.h>

#include <span>
#include <string>

#include "base/digest.h"
#include "testing/zip_builder.h"

namespace haulway::zip {
namespace {

using test::BuildZip;
using test::BuiltZip;
using test::Little;

BuiltZip Example() {
  const std::string pickle =
      test::PickleStateDict({{"w", "FloatStorage", "0", 3, {3}},
                             {"e", "FloatStorage", "1", 0, {0}},
                             {"b", "ByteStorage", "2", 40, {40}}});
  std::string bytes;
  for (int i = 0; i < 40; ++i) bytes += static_cast<char>(i);
  return BuildZip(test::CheckpointRecords(
      "ex", pickle,
      {{"0",
        Little(0x3F800000, 4) + Little(0x40000000, 4) + Little(0x40400000, 4)},
       {"1", ""},
       {"2", bytes}}));
}

TEST(WorkedExample, HasTheLayoutOfTorchsWriter) {
  const BuiltZip zip = Example();
  ASSERT_EQ(zip.records.size(), 5u);
  const uint64_t expected[5][3] = {{0, 64, 363},
                                   {379, 448, 460},
                                   {476, 576, 576},
                                   {576, 640, 680},
                                   {696, 768, 770}};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(zip.records[i].header, expected[i][0]) << i;
    EXPECT_EQ(zip.records[i].payload, expected[i][1]) << i;
    EXPECT_EQ(zip.records[i].descriptor, expected[i][2]) << i;
  }
  EXPECT_EQ(zip.directory, 786u);
  EXPECT_EQ(zip.zip64_end, 1064u);
  EXPECT_EQ(zip.locator, 1120u);
  EXPECT_EQ(zip.end, 1140u);
  EXPECT_EQ(zip.bytes.size(), 1162u);
  EXPECT_EQ(zip.bytes.substr(460, 16),
            "PK\7\10" + Little(0xB20E96B1, 4) + Little(12, 4) + Little(12, 4));
}

// Equal CRC-32s show that the bytes are equal. The file's SHA-256 begins with
// 29c4d5aac3954bad.
TEST(WorkedExample, IsTheFileThatTorchWroteByteForByte) {
  const BuiltZip zip = Example();
  EXPECT_EQ(Crc32(0, std::as_bytes(std::span<const char>(zip.bytes))),
            0xE29E2A4A);
}

}  // namespace
}  // namespace haulway::zip
