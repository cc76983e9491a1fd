#include "dcp/dcp_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

#include "base/digest.h"

namespace haulway::dcp {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string Number(uint64_t number, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) {
    text += static_cast<char>(i < 8 ? number >> (8 * i) : 0);
  }
  return text;
}

// Returns a record as torch.save() writes it: the sizes are only in the
// descriptor.
std::string Record(std::string_view name, std::string_view content,
                   uint16_t method = 0) {
  const std::string size = Number(content.size(), 4);
  return "PK\x03\x04" + Number(0, 2) + Number(8, 2) + Number(method, 2) +
         Number(0, 16) + Number(name.size(), 2) + Number(0, 2) +
         std::string(name) + std::string(content) + "PK\x07\x08" +
         Number(Crc32(0, Bytes(content)), 4) + size + size;
}

// Returns the pickle that torch.save(torch.zeros(2)) writes, without memo
// opcodes.
std::string PickleOfTwoZeros() {
  const auto text = [](std::string_view value) {
    return "X" + Number(value.size(), 4) + std::string(value);
  };
  return "\x80\x02"
         "ctorch._utils\n_rebuild_tensor_v2\n((" +
         text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") +
         "K\x02tQK" + std::string(1, '\0') + "K\x02\x85K\x01\x85\x89" +
         "ccollections\nOrderedDict\n)RtR.";
}

std::string Archive(std::string_view order = "little") {
  return Record("archive/data.pkl", "PK\x07\x08 is no descriptor here") +
         Record("archive/byteorder", order) +
         Record("archive/data/0", "12345678");
}

TEST(DcpArchive, FindsTheDataBehindOtherRecords) {
  const std::string archive = Archive();
  const auto found = ParseArchiveHead(Bytes(archive), archive.size());
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_TRUE(found->has_value());
  EXPECT_EQ(archive.substr((*found)->payload, 8), "12345678");
  EXPECT_EQ((*found)->pickle.size(), 26U);
}

TEST(DcpArchive, SaysWhereMoreIsNeeded) {
  const std::string archive = Archive();
  const size_t data = archive.find("12345678");
  for (size_t size = 0; size < data; ++size) {
    const auto found =
        ParseArchiveHead(Bytes(archive).first(size), archive.size());
    ASSERT_TRUE(found.ok()) << size;
    EXPECT_FALSE(found->has_value()) << size;
  }
}

TEST(DcpArchive, RefusesWhatItCannotRead) {
  const std::string big = Archive("big");
  EXPECT_EQ(ParseArchiveHead(Bytes(big), big.size()).status().code(),
            Code::kUnsupported);
  const std::string deflated = Record("archive/data.pkl", "x", 8);
  EXPECT_EQ(ParseArchiveHead(Bytes(deflated), deflated.size()).status().code(),
            Code::kUnsupported);
  const std::string none = Record("archive/data.pkl", "x");
  EXPECT_EQ(ParseArchiveHead(Bytes(none), none.size()).status().code(),
            Code::kCorrupt);
  const std::string text(100, 'x');
  EXPECT_EQ(ParseArchiveHead(Bytes(text), text.size()).status().code(),
            Code::kCorrupt);
}

TEST(DcpArchive, ReadsTheDescriptor) {
  const std::string archive = Archive();
  const size_t after = archive.find("12345678") + 8;
  const auto crc32 = ParseDescriptor(Bytes(archive).subspan(after), 8);
  ASSERT_TRUE(crc32.ok());
  EXPECT_EQ(*crc32, Crc32(0, Bytes("12345678")));
  EXPECT_EQ(ParseDescriptor(Bytes(archive).subspan(after), 7).status().code(),
            Code::kCorrupt);
  EXPECT_EQ(ParseDescriptor({}, 8).status().code(), Code::kCorrupt);
}

TEST(DcpArchive, ComparesThePickleWithTheTensor) {
  const std::array<int64_t, 1> two = {2};
  const std::array<int64_t, 1> three = {3};
  const std::string pickle = PickleOfTwoZeros();
  const auto at = CheckChunkPickle(Bytes(pickle), {DType::kF32, two}, {});
  ASSERT_TRUE(at.ok()) << at.status().message();
  EXPECT_EQ(at->first, 0U);
  EXPECT_TRUE(at->strides.empty());
  for (const ExpectedTensor& other :
       {ExpectedTensor{DType::kI32, two}, ExpectedTensor{DType::kF32, three}}) {
    const Status status = CheckChunkPickle(Bytes(pickle), other, {}).status();
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr("holds another tensor"));
  }
}

}  // namespace
}  // namespace haulway::dcp
