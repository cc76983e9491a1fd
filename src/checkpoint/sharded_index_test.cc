#include "checkpoint/sharded_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "checkpoint/sharded_reader.h"
#include "haulway/checkpoint.h"
#include "safetensors/header_for_test.h"

namespace haulway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An index and its neighbour files, in memory.
class Folder : public ByteSource {
 public:
  Folder(std::string index, std::map<std::string, std::string> files)
      : index_(std::move(index)), files_(std::move(files)) {}
  std::string_view name() const override { return "index.json"; }
  uint64_t size() const override { return index_.size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    return Memory(index_, "index.json")->ReadAt(offset, out);
  }
  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override {
    const auto found = files_.find(std::string(name));
    if (found == files_.end()) return Status(Code::kNotFound, "no such file");
    return Memory(found->second, found->first);
  }

 private:
  static std::shared_ptr<const ByteSource> Memory(const std::string& bytes,
                                                  std::string name) {
    const auto owned = std::make_shared<std::string>(bytes);
    return MakeBufferSource(
        Buffer(owned, std::as_writable_bytes(std::span(*owned)), false),
        std::move(name));
  }
  const std::string index_;
  const std::map<std::string, std::string> files_;
};

std::string File(std::string_view name, char fill) {
  std::string file = safetensors::test::WithPrefix(
      R"({"__metadata__":{"format":"pt"},")" + std::string(name) +
          R"(":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
      4);
  std::fill(file.end() - 4, file.end(), fill);
  return file;
}

std::string Index(std::string_view map, std::string_view total_size = "8") {
  return R"({"metadata": {"total_size": )" + std::string(total_size) +
         R"(, "by": "me"}, "weight_map": {)" + std::string(map) + "}}";
}

constexpr std::string_view kMap = R"("b": "2.st", "a": "x/1.st")";

Result<std::unique_ptr<const FormatReader>> Open(
    std::string index, std::map<std::string, std::string> files,
    Strictness strictness = Strictness::kStrict) {
  OpenOptions options;
  options.strictness = strictness;
  return OpenSharded(std::make_shared<Folder>(index, std::move(files)),
                     options);
}

std::map<std::string, std::string> Files() {
  return {{"x/1.st", File("a", 'A')}, {"2.st", File("b", 'B')}};
}

TEST(ShardedIndex, OpensAllFilesAsOne) {
  const auto reader = Open(Index(kMap), Files());
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  const CheckpointIndex& index = (*reader)->index();
  ASSERT_EQ(index.parts.size(), 2u);
  EXPECT_EQ(index.parts[0].name, "2.st");
  EXPECT_EQ(index.parts[1].offset % 4096, 0u);
  ASSERT_EQ(index.entries.size(), 2u);
  EXPECT_EQ(index.entries[0].name, "b");
  for (uint32_t row = 0; row < 2; ++row) {
    std::string data(4, ' ');
    ASSERT_TRUE((*reader)
                    ->source()
                    ->ReadAt(index.storages[row].offset,
                             std::as_writable_bytes(std::span<char>(data)))
                    .ok());
    EXPECT_EQ(data, row == 0 ? "BBBB" : "AAAA");
  }
  std::vector<std::string> keys;
  for (const Fact& fact : *index.metadata) keys.push_back(fact.name);
  EXPECT_THAT(keys, ElementsAre("total_size", "by", "format"));
}

TEST(ShardedIndex, ComparesItselfWithTheFiles) {
  struct Case {
    std::string index;
    std::map<std::string, std::string> files;
    std::string message;
    bool lenient = true;  // Whether lenient reading accepts it.
  };
  auto both = Files();
  both["2.st"] = safetensors::test::WithPrefix(
      R"({"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
      R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
      8);
  auto other = Files();
  other["2.st"] = File("c", 'C');
  auto broken = Files();
  broken["2.st"] = "junk that is no safetensors file";
  const Case cases[] = {
      {Index(kMap), both, "tensor 'a' is in another shard"},
      {Index(R"("b": "2.st")"),
       {{"2.st", both["2.st"]}},
       "tensor 'a' is not in the index"},
      {Index(std::string(kMap) + R"(, "z": "2.st")"), Files(),
       "tensor 'z' is not in shard '2.st'", false},
      {Index(kMap), other, "tensor 'c' is not in the index", false},
      {Index(kMap), {{"2.st", File("b", 'B')}}, "no such file", false},
      {Index(kMap), broken, "of 2.st", false},
      {Index(R"("b": "2.st", "b": "2.st", "a": "x/1.st")"), Files(),
       "weight_map has 'b' twice"},
  };
  for (const Case& one : cases) {
    EXPECT_THAT(Open(one.index, one.files).status().message(),
                HasSubstr(one.message));
    EXPECT_EQ(Open(one.index, one.files, Strictness::kLenient).ok(),
              one.lenient)
        << one.message;
  }
}

TEST(ShardedIndex, TakesTotalSizesAsWritersWriteThem) {
  for (const std::string size :
       {"8", "8.0", "null", "9", "0", "8.5", "-8", "\"8\"", "1e300", "[]"}) {
    EXPECT_TRUE(Open(Index(kMap, size), Files()).ok()) << size;
  }
  EXPECT_TRUE(Open(R"({"weight_map": {}})", {}).ok());
  EXPECT_TRUE(
      Open(R"({"metadata": null, "weight_map": {"b": "2.st"}})", Files()).ok());
}

TEST(ShardedIndex, VerifyNotesATotalSizeThatIsWrong) {
  for (const auto& [size, note] : std::map<std::string, std::string>{
           {"8", ""},
           {"9", "total_size of the index is wrong: expected 8, found 9"},
           {"0", "total_size of the index is wrong: expected 8, found 0"},
           {"null", ""}}) {
    const auto folder = std::make_shared<Folder>(Index(kMap, size), Files());
    const auto report = VerifySharded(folder, {});
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(report->ok) << size;
    if (note.empty()) {
      EXPECT_TRUE(report->notes.empty()) << size;
    } else {
      EXPECT_THAT(report->notes, ElementsAre(note));
    }
  }
}

TEST(ShardedIndex, RefusesOtherJson) {
  const auto code = [](std::string_view json) {
    return ParseShardedIndex(std::as_bytes(std::span<const char>(json)),
                             Strictness::kStrict, {})
        .status()
        .code();
  };
  EXPECT_EQ(code(R"({"a": 1})"), Code::kUnsupported);
  EXPECT_EQ(code(R"({"weight_map": [)"), Code::kCorrupt);
  EXPECT_EQ(code(R"({"weight_map": []})"), Code::kCorrupt);
  EXPECT_EQ(code(R"({"weight_map": {"a": 1}})"), Code::kCorrupt);
  EXPECT_EQ(code(R"({"weight_map": {}, "weight_map": {}})"), Code::kCorrupt);
  EXPECT_EQ(code(""), Code::kCorrupt);
  const std::string deep(200, '[');
  EXPECT_EQ(code("{\"x\": " + deep + "}"), Code::kCorrupt);
}

TEST(ShardedIndex, FailsAtEveryCut) {
  const std::string index = Index(kMap);
  for (size_t size = 0; size < index.size(); ++size) {
    EXPECT_FALSE(Open(index.substr(0, size), Files()).ok()) << size;
  }
}

}  // namespace
}  // namespace haulway
