#include "haulway/open.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/folder.h"
#include "haulway/verify.h"
#include "safetensors/header_for_test.h"
#include "testing/goldens.h"
#include "testing/zip_builder.h"

namespace haulway {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Open : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "haulway-open-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(std::string_view name) const {
    return (fs::path(folder_) / name).string();
  }
  std::string Write(std::string_view name, std::string_view bytes) const {
    fs::create_directories(fs::path(Path(name)).parent_path());
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }
  // Writes a safetensors file with one tensor.
  std::string WriteTensor(std::string_view file, std::string_view name) const {
    return Write(file, safetensors::test::WithPrefix(
                           R"({")" + std::string(name) +
                               R"(":{"dtype":"U8","shape":[2],)"
                               R"("data_offsets":[0,2]}})",
                           2));
  }

  std::string folder_;
};

std::vector<std::string> Names(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const Entry& entry : checkpoint.entries()) {
    names.emplace_back(entry.name);
  }
  return names;
}

std::string Message(const Status& status) {
  return std::string(status.message());
}

// Returns a shard of torch.distributed.checkpoint: `rows` rows, of two bytes
// each, of "w" from row `begin` on.
std::string DcpShard(int begin, int rows, std::string_view more = "") {
  return safetensors::test::WithPrefix(
      fmt::format(R"({{"__metadata__":{{"DCP_SHARDING_INFO":)"
                  R"("{{\"w\":{{\"saved_offsets\":[{},0]}}}}"{},"k":"v"}},)"
                  R"("w":{{"dtype":"U8","shape":[{},2],)"
                  R"("data_offsets":[0,{}]}}}})",
                  begin, more, rows, 2 * rows),
      static_cast<size_t>(2 * rows));
}

std::string DcpName(int number) {
  return fmt::format("shard-0000{}-model-00001-of-00001.safetensors", number);
}

TEST_F(Open, PutsShardsOfProcessesTogether) {
  Write(DcpName(1), DcpShard(0, 3));
  Write(DcpName(2), DcpShard(3, 2));
  const auto checkpoint = Checkpoint::Open(OpenSource(folder_).value());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ((*checkpoint)->index().format, Format::kSafetensorsDcp);
  EXPECT_THAT(Names(**checkpoint), ElementsAre("w"));
  EXPECT_THAT((*checkpoint)->index().tensors[0].shape, ElementsAre(5, 2));
  ASSERT_EQ((*checkpoint)->index().metadata->size(), 1u);
  EXPECT_EQ((*checkpoint)->index().metadata->front().name, "k");
  const auto report = Verify(OpenSource(folder_).value(), {});
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->ok);
  EXPECT_EQ(report->format, Format::kSafetensorsDcp);
}

TEST_F(Open, MissesShardsOfProcesses) {
  const auto message = [&] {
    return Message(Checkpoint::Open(OpenSource(folder_).value()).status());
  };
  const std::string_view sizes = R"(,"DCP_TENSOR_SIZES":"{\"w\":[5,2]}")";
  Write(DcpName(1), DcpShard(0, 3, sizes));
  EXPECT_THAT(message(), HasSubstr("chunks leave a hole at [3, 0]"));
  Write(DcpName(3), DcpShard(3, 2, sizes));
  EXPECT_THAT(message(), HasSubstr("file of shard 2 is missing"));
  Write(DcpName(2), DcpShard(2, 2, sizes));
  EXPECT_THAT(message(), HasSubstr("overlaps"));
  Write(DcpName(2), DcpShard(4, 2, sizes));
  EXPECT_THAT(message(), HasSubstr("leaves the tensor of [5, 2]"));
  Write(DcpName(2), safetensors::test::WithPrefix(
                        R"({"__metadata__":{"DCP_SHARDING_INFO":"[]"}})", 0));
  EXPECT_THAT(message(), HasSubstr("DCP_SHARDING_INFO is no object of JSON"));
}

TEST_F(Open, PathsAndFileUrisAreFiles) {
  const std::string path = Write("a b%.pt", "12345");
  const std::string encoded = "/a%20b%25.pt";
  for (const std::string& name : {path, "file://" + folder_ + encoded,
                                  "FILE://localhost" + folder_ + encoded}) {
    const auto source = OpenSource(name);
    ASSERT_TRUE(source.ok()) << source.status().message();
    EXPECT_EQ((*source)->size(), 5u);
    EXPECT_EQ((*source)->name(), path);
  }
}

TEST_F(Open, NamesOfThisMachineHaveAPath) {
  for (const auto& [name, path] :
       std::map<std::string, std::string>{{"a/b.pt", "a/b.pt"},
                                          {"a/b://c", "a/b://c"},
                                          {"file:///a%20b", "/a b"},
                                          {"FILE://localhost/a", "/a"}}) {
    EXPECT_EQ(LocalPath(name), path) << name;
    EXPECT_TRUE(HasFolders(name)) << name;
  }
  for (const char* name : {"s3://b/k", "http://h/a", "hf://o/m", "gs://b/k",
                           "file://host/a", "file:///%zz"}) {
    EXPECT_EQ(LocalPath(name), std::nullopt) << name;
  }
  EXPECT_TRUE(HasFolders("s3://b/k"));
  for (const char* name :
       {"http://h/a/", "redis://h/a", "hf://o/m", "gs://b"}) {
    EXPECT_FALSE(HasFolders(name)) << name;
  }
}

TEST_F(Open, MappedOrReadIsAnOption) {
  const std::string path = Write("a.pt", "12345");
  EXPECT_TRUE((*OpenSource(path))->View(0, 5).has_value());
  for (const IoMode io : {IoMode::kPread, IoMode::kAuto}) {
    EXPECT_FALSE((*OpenSource(path, {.io = io}))->View(0, 5).has_value());
  }
}

TEST_F(Open, FileUrisThatAreNoneAreRefused) {
  for (const char* uri :
       {"file://host/a", "file://", "file:///a%2", "file:///%zz"}) {
    EXPECT_EQ(OpenSource(uri).status().code(), Code::kInvalidArgument) << uri;
    EXPECT_EQ(OpenSink(uri).status().code(), Code::kInvalidArgument) << uri;
  }
}

TEST_F(Open, OtherSchemesAreNamed) {
  const std::string uri = "gs://user:secret@b/m.pt";
  for (const Status& status : {OpenSource(uri).status(), OpenSink(uri).status(),
                               Checkpoint::Open(uri).status()}) {
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_EQ(Message(status),
              "gs:// is not known: expected file://, http://, https://, "
              "s3://, redis://, rediss://, redis+unix://, hf://, a path, or "
              "'-'");
  }
}

TEST_F(Open, ServersAreReadAndNotWrittenTo) {
  for (const char* uri : {"https://h/m.pt", "hf://o/n/m.pt"}) {
    EXPECT_EQ(OpenSink(uri).status().code(), Code::kUnsupported) << uri;
  }
  EXPECT_EQ(OpenSource("http://").status().code(), Code::kInvalidArgument);
}

TEST_F(Open, WhatIsNoSchemeIsAPath) {
  for (const char* path : {"://x", "1a://x", "a b://x", "nothing"}) {
    EXPECT_EQ(OpenSource(path).status().code(), Code::kNotFound) << path;
  }
}

TEST_F(Open, ListsShardsOfProcessesAsTheirFolder) {
  Write("s/" + DcpName(1), DcpShard(0, 3));
  Write("s/" + DcpName(2), DcpShard(3, 2));
  Write("s/config.json", "{}");
  Write("mixed/" + DcpName(1), DcpShard(0, 3));
  WriteTensor("mixed/x.safetensors", "a");
  const auto listed = ListFilesToVerify(folder_, {});
  ASSERT_TRUE(listed.ok());
  EXPECT_THAT(*listed, ElementsAre(Path("mixed/" + DcpName(1)),
                                   Path("mixed/x.safetensors"), Path("s") + "/",
                                   Path("s/config.json")));
  EXPECT_THAT(ListCheckpoints(folder_).value(),
              ElementsAre(Path("mixed/" + DcpName(1)),
                          Path("mixed/x.safetensors"), Path("s") + "/"));
  const auto found = VerifyFound(OpenSource(Path("s") + "/").value());
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_TRUE((*found)->ok);
  EXPECT_EQ((*found)->format, Format::kSafetensorsDcp);
  EXPECT_THAT((*found)->notes, ElementsAre(HasSubstr("missing last shard")));
}

TEST_F(Open, VerifiesWhatShardsOfProcessesMiss) {
  const std::string_view sizes = R"(,"DCP_TENSOR_SIZES":"{\"w\":[5,2]}")";
  Write(DcpName(1), DcpShard(0, 3, sizes));
  const auto verify = [&] {
    return VerifyFound(OpenSource(folder_ + "/").value()).value().value();
  };
  ASSERT_EQ(verify().findings.size(), 1u);
  EXPECT_THAT(verify().findings[0].message,
              HasSubstr("chunks leave a hole at [3, 0]"));
  Write(DcpName(2), DcpShard(3, 2, sizes));
  EXPECT_TRUE(verify().ok);
  EXPECT_TRUE(verify().notes.empty());
  const std::string whole = DcpShard(3, 2, sizes);
  for (size_t length = 0; length < whole.size(); ++length) {
    Write(DcpName(2), whole.substr(0, length));
    EXPECT_FALSE(verify().ok) << length;
  }
}

TEST_F(Open, LenientTakesGapsInTheNumbersOfShards) {
  Write(DcpName(1), DcpShard(0, 3));
  Write(DcpName(3), DcpShard(3, 2));
  const auto open = [&](Strictness strictness) {
    OpenOptions options;
    options.strictness = strictness;
    return Checkpoint::Open(OpenSource(folder_).value(), options).status();
  };
  EXPECT_THAT(
      Message(open(Strictness::kStrict)),
      HasSubstr("file of shard 2 is missing: expected 1 to 3; of " + folder_));
  EXPECT_TRUE(open(Strictness::kLenient).ok());
}

TEST_F(Open, APipeIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(OpenSource(Path("pipe")).status().code(), Code::kUnsupported);
  Write("x.index.json", R"({"weight_map": {"a": "pipe"}})");
  EXPECT_EQ(Checkpoint::Open(Path("x.index.json")).status().code(),
            Code::kUnsupported);
  EXPECT_EQ(FindCheckpoint(folder_).value(), Path("x.index.json"));
}

TEST_F(Open, ADescriptorThatIsAPipeIsReadToItsEnd) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string bytes(50'000, 'x');
  ASSERT_EQ(::write(ends[1], bytes.data(), bytes.size()), 50'000);
  ::close(ends[1]);
  const auto source = OpenSource("/dev/fd/" + std::to_string(ends[0]));
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->size(), 50'000u);
  ::close(ends[0]);
}

TEST_F(Open, ASinkIsAFile) {
  auto sink = OpenSink("file://" + Path("out"));
  ASSERT_TRUE(sink.ok());
  ASSERT_TRUE((*sink)->Begin(2).ok());
  ASSERT_TRUE((*sink)->WriteAt(0, std::as_bytes(std::span("ab", 2))).ok());
  ASSERT_TRUE((*sink)->Commit(2).ok());
  EXPECT_EQ(fs::file_size(Path("out")), 2u);
}

TEST_F(Open, AFolderIsItsFileOrIndexOfAUsualName) {
  WriteTensor("1.safetensors", "a");
  WriteTensor("2.safetensors", "b");
  Write("model.safetensors.index.json",
        R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  const auto opened = Checkpoint::Open(folder_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_THAT(Names(**opened), ElementsAre("a", "b"));
  // As in transformers: an older save may have left the index.
  WriteTensor("model.safetensors", "whole");
  EXPECT_EQ(FindCheckpoint(folder_).value(), Path("model.safetensors"));
}

TEST_F(Open, AFolderIsItsOneIndexOrFile) {
  Write("config.json", "{\"a\": 1}");
  Write("README.md", "words");
  EXPECT_EQ(FindCheckpoint(folder_).status().code(), Code::kNotFound);
  WriteTensor("x.safetensors", "a");
  EXPECT_EQ(FindCheckpoint(folder_ + "/").value(), Path("x.safetensors"));
  WriteTensor("y.safetensors", "b");
  EXPECT_EQ(Message(Checkpoint::Open(folder_).status()),
            "folder holds several checkpoints: expected one, found "
            "'x.safetensors', 'y.safetensors'; name a file, or a variant "
            "(the option variant, which load and convert have); of " +
                folder_);
  Write("z.index.json",
        R"({"weight_map":{"a":"x.safetensors","b":"y.safetensors"}})");
  EXPECT_TRUE(Checkpoint::Open(folder_).ok());
  Write("w.index.json", "{}");
  EXPECT_THAT(Message(FindCheckpoint(folder_).status()),
              HasSubstr("'w.index.json', 'z.index.json'"));
}

TEST_F(Open, ShardsOfTorchAreReadByTheirIndex) {
  Write("pytorch_model-1.bin", test::ReadGolden("tied.pt"));
  Write("pytorch_model-2.bin", test::ReadGolden("tied_legacy.pt"));
  const auto alone = Checkpoint::Open(Path("pytorch_model-1.bin"));
  ASSERT_TRUE(alone.ok());
  std::string map;
  for (const Entry& entry : (*alone)->entries()) {
    map += std::string(map.empty() ? "" : ",") + "\"" +
           std::string(entry.name) + "\":\"pytorch_model-1.bin\"";
  }
  Write("pytorch_model.bin.index.json",
        R"({"metadata":{"total_size":7},"weight_map":{)" + map + "}}");
  const auto opened = Checkpoint::Open(folder_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ((*opened)->index().format, Format::kTorch);
  EXPECT_EQ((*opened)->entries().size(), (*alone)->entries().size());
  const auto verified = Verify(*OpenSource(folder_));
  ASSERT_TRUE(verified.ok());
  EXPECT_TRUE(verified->ok);
  EXPECT_GT(verified->checked_bytes, 0u);
}

TEST_F(Open, AnIndexMayNotNameItself) {
  const std::string path =
      Write("a.index.json", R"({"weight_map":{"a":"a.index.json"}})");
  EXPECT_EQ(Checkpoint::Open(path).status().code(), Code::kCorrupt);
  EXPECT_FALSE(Verify(*OpenSource(path))->ok);
}

TEST_F(Open, AListIsAllOfItsFiles) {
  const std::vector<std::string> list = {WriteTensor("1.safetensors", "a"),
                                         WriteTensor("2.safetensors", "b")};
  const auto opened = Checkpoint::Open(*OpenSources(list));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_THAT(Names(**opened), ElementsAre("a", "b"));
  EXPECT_EQ((*OpenSources({list.data(), 1}))->name(), list[0]);
  EXPECT_EQ(OpenSources({}).status().code(), Code::kInvalidArgument);
}

TEST_F(Open, AListMayHoldFolders) {
  WriteTensor("f/1.safetensors", "a");
  Write("f/x.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
  const std::vector<std::string> list = {Path("f"),
                                         WriteTensor("2.safetensors", "b")};
  const auto opened = Checkpoint::Open(*OpenSources(list));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_THAT(Names(**opened), ElementsAre("a", "b"));
}

TEST_F(Open, FoldersAreListedWithShardsAsOne) {
  WriteTensor("m/1.safetensors", "a");
  WriteTensor("m/extra.safetensors", "x");
  Write("m/m.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
  Write("m/other.index.json", R"({"weights":{}})");
  Write("m/config.json", "{}");
  Write("n/x.pt", "");
  EXPECT_THAT(ListCheckpoints(folder_).value(),
              ElementsAre(Path("m/extra.safetensors"), Path("m/m.index.json"),
                          Path("n/x.pt")));
  EXPECT_EQ(ListFiles(folder_).value().size(), 6u);
  EXPECT_EQ(ListFiles(Path("none")).status().code(), Code::kNotFound);
}

TEST_F(Open, DirectoriesOfDcpAreVerifiedAsOne) {
  for (const char* name :
       {"a/.metadata", "a/__0_0.distcp", "a/__0.metadata", "a/meta.pt",
        "a/other.pt", "b/__0.metadata", "b/__0_0.distcp", "b/__1.metadata",
        "c/__0_0.distcp", "c/meta.pt"}) {
    Write(name, "");
  }
  EXPECT_THAT(
      ListFilesToVerify(folder_, {}).value(),
      ElementsAre(Path("a/.metadata"), Path("a/other.pt"),
                  Path("b/__0.metadata"), Path("c/"), Path("c/meta.pt")));
  EXPECT_THAT(
      ListCheckpoints(folder_).value(),
      ElementsAre(Path("a/.metadata"), Path("a/other.pt"),
                  Path("b/__0.metadata"), Path("c/"), Path("c/meta.pt")));
}

TEST_F(Open, WhatIsFoundAndNoCheckpointIsNotWrong) {
  const auto verdict = [&](const std::string& path) -> std::string {
    const auto found = VerifyFound(*OpenSource(path));
    if (!found.ok()) return std::string(CodeName(found.status().code()));
    if (!found->has_value()) return "none";
    return (*found)->ok ? "ok" : "wrong";
  };
  EXPECT_EQ(verdict(Write("README.md", "words")), "none");
  EXPECT_EQ(verdict(Write(".gitkeep", "")), "none");
  EXPECT_EQ(verdict(Write("config.json", R"({"a": 1})")), "none");
  EXPECT_EQ(verdict(Write("log.jsonl", "{\"a\": 1}\n{\"a\": 2}\n")), "none");
  EXPECT_EQ(verdict(Write("empty.safetensors", "")), "kTruncated");
  EXPECT_EQ(verdict(Write("page.safetensors", "<html>")), "kUnsupported");
  EXPECT_EQ(verdict(Write("x.index.json", "{\"weight_map\"")), "wrong");
  EXPECT_EQ(verdict(WriteTensor("a.safetensors", "a")), "ok");
  EXPECT_EQ(
      verdict(Write("y.index.json", R"({"weight_map":{"a":"a.safetensors"}})")),
      "ok");
  EXPECT_EQ(
      verdict(Write("weights.json", R"({"weight_map":{"b":"a.safetensors"}})")),
      "wrong");
  EXPECT_EQ(verdict(Write("tied", test::ReadGolden("tied.pt"))), "ok");
  const std::string zip =
      test::BuildZip({{.name = "a.npy", .data = "array"}}).bytes;
  EXPECT_EQ(verdict(Write("a.zip", zip)), "none");
  EXPECT_EQ(verdict(Write("a.pt", zip)), "wrong");
}

}  // namespace
}  // namespace haulway
