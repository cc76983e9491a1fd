#include "haulway/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "convert/shards.h"
#include "haulway/format.h"
#include "haulway/save.h"
#include "testing/goldens.h"

namespace haulway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// A folder that is deleted after the test.
class ConvertFiles : public ::testing::Test {
 protected:
  ConvertFiles() {
    std::string name = ::testing::TempDir() + "convert-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~ConvertFiles() override { std::filesystem::remove_all(folder_); }

  std::string At(std::string_view name) const {
    return folder_ + "/" + std::string(name);
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

 private:
  std::string folder_;
};

// Dtype, shape and elements by name.
using Contents = std::map<std::string, std::string>;

Contents ContentsOf(const Checkpoint& checkpoint) {
  Contents contents;
  for (const Entry& entry : checkpoint.entries()) {
    const TensorInfo& tensor = checkpoint.index().tensors[entry.tensor];
    std::string bytes(tensor.nbytes, '\0');
    EXPECT_TRUE(
        checkpoint.Read(tensor, std::as_writable_bytes(std::span(bytes))).ok());
    std::string text(Name(tensor.dtype));
    for (const int64_t size : tensor.shape) text += "," + std::to_string(size);
    contents[std::string(entry.name)] = text + ":" + bytes;
  }
  return contents;
}

std::shared_ptr<const Checkpoint> OpenLeniently(
    std::shared_ptr<const ByteSource> source) {
  OpenOptions options;
  options.strictness = Strictness::kLenient;
  auto opened = Checkpoint::Open(std::move(source), options);
  return opened.ok() ? *opened : nullptr;
}

std::shared_ptr<const Checkpoint> OpenAt(const std::string& path) {
  const auto source = OpenFileSource(path);
  EXPECT_TRUE(source.ok()) << source.status().message();
  return source.ok() ? OpenLeniently(*source) : nullptr;
}

std::shared_ptr<const Checkpoint> OpenGolden(const std::string& name) {
  const std::string data = test::ReadGolden(name);
  auto bytes = AllocateBuffer(data.size());
  EXPECT_TRUE(bytes.ok());
  std::memcpy(bytes->mutable_bytes().data(), data.data(), data.size());
  return OpenLeniently(MakeBufferSource(*bytes, name));
}

class ConvertTo : public ConvertFiles,
                  public ::testing::WithParamInterface<Format> {};

std::vector<Format> Written() {
  std::vector<Format> written;
  for (const FormatEntry& format : Formats()) {
    if (format.lay_out != nullptr) written.push_back(format.id);
  }
  return written;
}

INSTANTIATE_TEST_SUITE_P(Formats, ConvertTo, ::testing::ValuesIn(Written()),
                         [](const auto& info) {
                           return std::string(Name(info.param));
                         });

// Checks that converting a golden file either keeps its tensors, or is refused
// and creates no file.
TEST_P(ConvertTo, EveryGoldenKeepsItsTensorsOrIsRefused) {
  int converted = 0;
  for (const char* ending : {".pt", ".tensors"}) {
    for (const std::string& name : test::GoldenNames(ending)) {
      SCOPED_TRACE(name);
      const auto from = OpenGolden(name);
      if (from == nullptr) continue;
      ConvertOptions options;
      options.to = GetParam();
      if (GetParam() == Format::kGguf) {
        options.metadata = {{"general.architecture", std::string("test")}};
      }
      options.ties = Ties::kCopy;
      options.durability = Durability::kNone;
      options.proof = true;
      const std::string path = At("out");
      const auto report = Convert(from, path, options);
      if (!report.ok()) {
        EXPECT_NE(report.status().code(), Code::kInternal);
        EXPECT_THAT(Files(), IsEmpty()) << report.status().message();
        continue;
      }
      ++converted;
      const auto written = OpenAt(path);
      ASSERT_NE(written, nullptr);
      EXPECT_EQ(written->index().format, GetParam());
      EXPECT_EQ(written->entries().size(), from->entries().size());
      EXPECT_EQ(report->proof.size(), from->entries().size());
      std::filesystem::remove(path);
    }
  }
  EXPECT_GT(converted, 1);
}

TEST_F(ConvertFiles, WhatIsEqualComesBackEqual) {
  const auto from = OpenGolden("tied.pt");
  ASSERT_NE(from, nullptr);
  ConvertOptions options;
  options.ties = Ties::kCopy;
  ASSERT_TRUE(Convert(from, At("a.safetensors"), options).ok());
  ASSERT_TRUE(
      Convert(OpenAt(At("a.safetensors")), At("b.tensors"), options).ok());
  ASSERT_TRUE(Convert(OpenAt(At("b.tensors")), At("c.pt"), options).ok());
  EXPECT_EQ(ContentsOf(*OpenAt(At("c.pt"))), ContentsOf(*from));
  EXPECT_THAT(Files(),
              UnorderedElementsAre("a.safetensors", "b.tensors", "c.pt"));
}

TEST_F(ConvertFiles, TiesAreKeptOrRefused) {
  const auto from = OpenGolden("tied.pt");
  const auto refused = Convert(from, At("a.safetensors"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kUnsupported);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("'embed', 'head', 'row'"));
  ASSERT_TRUE(Convert(from, At("a.pt")).ok());
  EXPECT_EQ(OpenAt(At("a.pt"))->index().storages.size(), 2);
  EXPECT_THAT(Files(), ElementsAre("a.pt"));
}

TEST(MakeRenaming, ReplacesEveryMatch) {
  const auto renamed = [](const char* pattern, const char* replacement,
                          const char* name) {
    const auto renaming = MakeRenaming(pattern, replacement);
    return renaming.ok() ? renaming->apply(name) : "?";
  };
  EXPECT_EQ(renamed("^module\\.", "", "module.module.w"), "module.w");
  EXPECT_EQ(renamed("a", "b", "banana"), "bbnbnb");
  EXPECT_EQ(renamed("([a-z]+)\\.([0-9]+)", "\\2.\\1\\0", "h.12.w"),
            "12.hh.12.w");
  EXPECT_EQ(renamed("x*", "-", "axb"), "-a--b-");
  EXPECT_EQ(renamed("$", "!", "a"), "a!");
  EXPECT_EQ(renamed("a", "\\\\", "a"), "\\");
  EXPECT_EQ(renamed("(", "", "a"), "?");
  EXPECT_EQ(MakeRenaming("(", "").status().code(), Code::kInvalidArgument);
}

TEST(SplitIntoShards, IsGreedyAndKeepsStoragesTogether) {
  const std::vector<convert::ShardItem> items = {
      {"a", 6}, {"b", 6, 0}, {"c", 2}, {"big", 20}, {"d", 2}, {"e", 6, 0}};
  const convert::Split split = convert::SplitIntoShards(items, 10);
  EXPECT_THAT(split.shards, ElementsAre(ElementsAre(0), ElementsAre(3),
                                        ElementsAre(1, 2, 4, 5)));
  EXPECT_EQ(split.total_bytes, 36);
  EXPECT_EQ(convert::ShardPath("x.y/m.v1.bin", 1, 12),
            "x.y/m.v1-00002-of-00012.bin");
  EXPECT_EQ(convert::ShardPath("x.y/m", 0, 2), "x.y/m-00001-of-00002");
  EXPECT_EQ(convert::ShardPath("m.bin", 0, 1), "m.bin");
}

TEST(SplitIntoShards, ItsIndexIsPythonsJson) {
  const std::vector<convert::ShardItem> items = {
      {"a\"\\\n\x01", 1}, {"\xC3\xA9\xF0\x9F\x98\x80", 1}};
  EXPECT_EQ(
      convert::IndexText("d/m.bin", items, convert::SplitIntoShards(items, 1)),
      "{\n  \"metadata\": {\n    \"total_size\": 2\n  },\n"
      "  \"weight_map\": {\n"
      "    \"a\\\"\\\\\\n\\u0001\": \"m-00001-of-00002.bin\",\n"
      "    \"\\u00e9\\ud83d\\ude00\": \"m-00002-of-00002.bin\"\n"
      "  }\n}");
}

TEST_F(ConvertFiles, AWriterTakesPiecesInAnyOrder) {
  auto writer = TensorWriter::Open(At("a.safetensors"));
  ASSERT_TRUE(writer.ok());
  const int64_t shape[] = {4};
  const std::string bytes = "0123";
  const auto part = (*writer)->AddPart("p", DType::kU8, shape);
  ASSERT_TRUE(part.ok());
  const auto data = std::as_bytes(std::span(bytes));
  ASSERT_TRUE((*writer)->Write(*part, 3, data.subspan(3)).ok());
  ASSERT_TRUE((*writer)->Write(*part, 0, data.first(2)).ok());
  EXPECT_EQ((*writer)->Commit().status().code(), Code::kInvalidArgument);
  EXPECT_THAT(Files(), IsEmpty());
  ASSERT_TRUE((*writer)->Write(*part, 1, data.subspan(1, 2)).ok());
  const auto written = (*writer)->Commit();
  ASSERT_TRUE(written.ok()) << written.status().message();
  EXPECT_THAT(written->files, ElementsAre(At("a.safetensors")));
  EXPECT_EQ(ContentsOf(*OpenAt(At("a.safetensors")))["p"], "U8,4:0123");
  EXPECT_EQ((*writer)->Commit().status().code(), Code::kInvalidArgument);
}

TEST_F(ConvertFiles, AWriterThatIsDroppedLeavesNothing) {
  {
    auto writer = TensorWriter::Open(At("a.pt"));
    ASSERT_TRUE(writer.ok());
    const int64_t shape[] = {1};
    const std::byte one{1};
    ASSERT_TRUE(
        (*writer)->Add("a", DType::kU8, shape, std::span(&one, 1)).ok());
    EXPECT_EQ((*writer)->Add("a", DType::kU8, shape, {}).code(),
              Code::kInvalidArgument);
    EXPECT_EQ((*writer)->Add("b", DType::kU8, shape, {}).code(),
              Code::kInvalidArgument);
  }
  EXPECT_THAT(Files(), IsEmpty());
}

}  // namespace
}  // namespace haulway
