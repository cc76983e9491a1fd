#include "safetensors/safetensors_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "format/flat_reader.h"
#include "safetensors/header_for_test.h"
#include "testing/test_sources.h"

namespace haulway::safetensors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string& Example() {
  static const std::string file = test::WithPrefix(
      R"({"__metadata__":{"format":"pt"},)"
      R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
      R"("a.\n":{"dtype":"F4","shape":[4,4],"data_offsets":[0,8]},)"
      R"("c":{"dtype":"F6_E2M3","shape":[2,2],"data_offsets":[32,35]},)"
      R"("d":{"dtype":"I64","shape":[0,5],"data_offsets":[35,35]}})",
      35);
  return file;
}

TEST(Safetensors, IsKnownByItsHead) {
  const auto is = [](std::string_view head) {
    return IsSafetensors(std::as_bytes(std::span<const char>(head)));
  };
  EXPECT_TRUE(is(test::WithPrefix("{}")));
  EXPECT_TRUE(is(test::WithPrefix(" \t\r\n{}")));
  EXPECT_FALSE(is(test::WithPrefix("[]")));
  EXPECT_FALSE(is(test::WithPrefix("")));
  EXPECT_FALSE(is("1234567"));
  EXPECT_FALSE(is("PK\3\4{}{}{}{}{}"));
}

TEST(Safetensors, BecomesAFlatIndexInTheOrderOfTheData) {
  const auto reader = OpenSafetensors(haulway::test::InMemory(Example()), {});
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  const CheckpointIndex& index = (*reader)->index();
  EXPECT_EQ(index.format, Format::kSafetensors);
  EXPECT_TRUE(index.flat);
  EXPECT_TRUE(index.parts.empty());
  ASSERT_EQ(index.entries.size(), 4u);
  EXPECT_EQ(index.entries[0].name, "a.\n");
  EXPECT_EQ(index.entries[1].name, "b");
  ASSERT_EQ(index.metadata->size(), 1u);
  EXPECT_EQ(index.metadata->at(0).name, "format");

  const uint64_t data = Example().size() - 35;
  EXPECT_EQ(index.storages[1].offset, data + 8);
  EXPECT_EQ(index.storages[1].nbytes, 24u);
  EXPECT_THAT(index.tensors[1].shape, ElementsAre(2, 3));
  EXPECT_THAT(index.tensors[1].strides, ElementsAre(3, 1));
  EXPECT_THAT(index.tensors[3].strides, ElementsAre(5, 1));
}

TEST(Safetensors, CountsPackedItems) {
  const auto reader = OpenSafetensors(haulway::test::InMemory(Example()), {});
  ASSERT_TRUE(reader.ok());
  const auto& tensors = (*reader)->index().tensors;
  EXPECT_EQ(tensors[0].dtype, DType::kF4E2M1X2);
  EXPECT_THAT(tensors[0].shape, ElementsAre(4, 2));
  EXPECT_EQ(tensors[0].nbytes, 8u);
  // Four values of six bits would extend past the end of a row of two.
  EXPECT_EQ(tensors[2].dtype, DType::kF6E2M3X4);
  EXPECT_THAT(tensors[2].shape, ElementsAre(1));
  EXPECT_EQ(tensors[2].nbytes, 3u);
}

TEST(Safetensors, RefusesStridesThatNoTensorCanHave) {
  const std::string file =
      test::WithPrefix(R"({"a":{"dtype":"U8","shape":[0,4611686018427387904,)"
                       R"(4611686018427387904],"data_offsets":[0,0]}})");
  EXPECT_EQ(OpenSafetensors(haulway::test::InMemory(file), {}).status().code(),
            Code::kUnsupported);
}

TEST(Safetensors, OpensWithTwoReads) {
  const auto source =
      std::make_shared<haulway::test::CountingSource>(Example());
  ASSERT_TRUE(OpenSafetensors(source, {}).ok());
  EXPECT_EQ(source->reads, 2);
}

Result<VerifyReport> VerifyOpening(
    const std::shared_ptr<const ByteSource>& source) {
  return ReportOpening(Format::kSafetensors, *source, {},
                       OpenSafetensors(source, {}));
}

TEST(Safetensors, PassesOnWhatTheSourceSays) {
  const auto source = std::make_shared<haulway::test::FaultSource>(
      Example(), Status::FromErrno(5, "cannot read"));
  source->end = 100;
  EXPECT_EQ(OpenSafetensors(source, {}).status().code(), Code::kIoError);
  EXPECT_EQ(VerifyOpening(source).status().code(), Code::kIoError);
}

TEST(Safetensors, VerifySaysWhatNothingCovers) {
  const auto good = VerifyOpening(haulway::test::InMemory(Example()));
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(good->ok);
  EXPECT_EQ(good->checked_bytes, 0u);
  ASSERT_EQ(good->unchecked.size(), 1u);
  EXPECT_EQ(good->unchecked[0].bytes, Example().size());
  const std::string cut = Example().substr(0, Example().size() - 1);
  const auto bad = VerifyOpening(haulway::test::InMemory(cut));
  ASSERT_TRUE(bad.ok());
  EXPECT_FALSE(bad->ok);
  EXPECT_EQ(bad->findings.at(0).code, Code::kTruncated);
  EXPECT_THAT(bad->findings[0].message, HasSubstr("expected 35 bytes"));
}

}  // namespace
}  // namespace haulway::safetensors
