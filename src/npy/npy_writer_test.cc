#include "npy/npy_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "npy/npz_reader.h"
#include "testing/layout_bytes.h"
#include "zip/zip_format.h"

namespace haulway::npy {
namespace {

using ::testing::HasSubstr;

TensorToWrite Tensor(std::string name, const std::string& data,
                     DType dtype = DType::kU8) {
  return {.name = std::move(name),
          .dtype = dtype,
          .shape = {static_cast<int64_t>(data.size() / ItemBytes(dtype))},
          .bytes = {.length = data.size(),
                    .bytes = std::as_bytes(std::span(data)).data()}};
}

TEST(NpyWriter, ANpzIsReadAgainAndItsChecksumsHold) {
  const std::string a = "abcd", empty;
  TensorsToWrite tensors;
  tensors.tensors = {Tensor("a", a), Tensor("deep/empty", empty),
                     Tensor("w", a, DType::kF32)};
  const auto layout = LayOutNpz(tensors, {});
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  const std::string file = haulway::test::Assemble(**layout);
  const auto source = MakeMemorySource(std::as_bytes(std::span(file)));
  const auto report = VerifyNpz(source, {});
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->ok);
  const auto reader = OpenNpz(source, {});
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  ASSERT_EQ((*reader)->index().entries.size(), 3u);
  const StorageInfo& storage = (*reader)->index().storages[0];
  EXPECT_EQ(file.substr(storage.offset, storage.nbytes), a);
}

TEST(NpyWriter, LargeMembersHaveZip64FieldsInTheDirectory) {
  constexpr uint64_t kLarge = 3 * kGiB;
  TensorsToWrite tensors;
  for (const char* name : {"a", "b"}) {
    TensorToWrite tensor = Tensor(name, "");
    tensor.shape = {static_cast<int64_t>(kLarge)};
    tensor.bytes.length = kLarge;
    tensor.bytes.source = MakeFunctionSource(
        kLarge, [](uint64_t, std::span<std::byte>) { return Status(); }, "s");
    tensors.tensors.push_back(std::move(tensor));
  }
  const auto layout = LayOutNpz(tensors, {});
  ASSERT_TRUE(layout.ok());
  const std::vector<std::vector<std::byte>> of(2, std::vector<std::byte>(4));
  const Frame& last = (*layout)->frames().back();
  std::vector<std::byte> tail(last.length);
  ASSERT_TRUE((*layout)->EncodeFrame(2, {{}, of}, tail).ok());
  const auto end =
      zip::ParseEndRecords(tail, (*layout)->size(), Strictness::kStrict, {});
  ASSERT_TRUE(end.ok()) << end.status().message();
  EXPECT_EQ(end->directory_offset, last.offset);
  const auto entries = zip::ParseDirectory(
      std::span(tail).first(end->directory_bytes), *end, Strictness::kStrict);
  ASSERT_TRUE(entries.ok()) << entries.status().message();
  EXPECT_EQ(entries->at(1).size, kLarge + 128);
  EXPECT_EQ(entries->at(1).header_offset, (*layout)->frames()[1].offset);
}

TEST(NpyWriter, RefusesWhatNumpyLacks) {
  const std::string data(8, 'x');
  const auto message = [&](TensorToWrite tensor) {
    TensorsToWrite tensors;
    tensors.tensors = {std::move(tensor)};
    return std::string(LayOutNpz(tensors, {}).status().message());
  };
  EXPECT_THAT(message(Tensor("t", data, DType::kBF16)),
              HasSubstr("no dtype BF16: cast it to F32"));
  EXPECT_THAT(message(Tensor("t", data, DType::kQ4K)), HasSubstr("Q4_K"));
  EXPECT_THAT(message(Tensor(std::string("t\0", 2), data)),
              HasSubstr("unsafe path"));
  EXPECT_THAT(message(Tensor(std::string(65532, 't'), data)),
              HasSubstr("65536 bytes"));
  TensorToWrite deep = Tensor("t", data);
  deep.shape = std::vector<int64_t>(65, 1);
  EXPECT_THAT(message(deep), HasSubstr("65 dimensions"));
  TensorsToWrite two;
  two.tensors = {Tensor("a", data), Tensor("b", data)};
  EXPECT_EQ(LayOutNpy(two, {}).status().code(), Code::kUnsupported);
  SaveOptions options;
  options.alignment = 64;
  EXPECT_EQ(LayOutNpz(two, options).status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace haulway::npy
