#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/format.h"
#include "haulway/open.h"
#include "haulway/save.h"
#include "haulway/source.h"
#include "haulway/verify.h"
#include "testing/goldens.h"
#include "testing/zip_builder.h"

namespace haulway {
namespace {

using namespace std::string_literals;
using test::BuildZip;
using testing::HasSubstr;

constexpr std::string_view kEvil =
    "\x80\x02"
    "cos\nsystem\n(S'x'\ntR.";

ScanReport ScanBytes(std::string_view bytes, const OpenOptions& options = {}) {
  auto report =
      Scan(MakeMemorySource(std::as_bytes(std::span(bytes))), options);
  EXPECT_TRUE(report.ok()) << report.status().message();
  return *report;
}

TEST(Scan, FindsGoldenFilesSafe) {
  for (const char* ending : {".pt", ".tensors"}) {
    for (const std::string& name : test::GoldenNames(ending)) {
      const std::string bytes = test::ReadGolden(name);
      const ScanReport report = ScanBytes(bytes);
      EXPECT_EQ(Name(report.verdict), "SAFE") << name << ": " << report.reason;
    }
  }
}

// For formats whose row says that they hold nothing but data, bytes that are
// not data are damage.
TEST(Scan, TakesAFormatThatHoldsOnlyDataAtItsWord) {
  const std::vector<std::byte> bytes(64);
  int only_data = 0;
  for (const FormatEntry& format : Formats()) {
    if (!format.can.only_data) continue;
    ++only_data;
    std::string file;
    const auto sink = MakeMemorySink(&file);
    TensorsToWrite tensors;
    tensors.tensors.push_back({.name = "a",
                               .dtype = DType::kF32,
                               .shape = {16},
                               .bytes = {.length = 64, .bytes = bytes.data()}});
    if (format.can.values) {  // Required by GGUF.
      tensors.values.push_back({"general.architecture", std::string("test")});
    }
    ASSERT_TRUE(Save(std::move(tensors), format.id, *sink).ok());
    const ScanReport report = ScanBytes(file);
    EXPECT_EQ(report.verdict, Verdict::kSafe) << format.name;
    EXPECT_TRUE(report.pickles.empty()) << format.name;
    file.resize(file.size() - 32);
    EXPECT_EQ(ScanBytes(file).verdict, Verdict::kUnknown) << format.name;
  }
  EXPECT_GE(only_data, 3);
}

TEST(Scan, SaysWhatIsCutHoweverItsHeaderBegins) {
  // A header of 123 bytes begins with '{', as shard indexes do.
  for (const uint8_t header_bytes : {uint8_t{123}, uint8_t{124}}) {
    std::string header =
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    header.resize(header_bytes, ' ');
    const std::string cut =
        static_cast<char>(header_bytes) + std::string(7, '\0') + header;
    EXPECT_EQ(ScanBytes(cut + "12345678").verdict, Verdict::kSafe);
    EXPECT_EQ(ScanBytes(cut + "1234").verdict, Verdict::kUnknown);
  }
}

TEST(Scan, SaysWhereWhatIsUnsafeStands) {
  const ScanReport report = ScanBytes(kEvil);
  EXPECT_EQ(report.verdict, Verdict::kUnsafe);
  EXPECT_EQ(report.byte, 2u);
  EXPECT_EQ(report.reason, "global 'os.system' is not allowed; at byte 2");
  ASSERT_EQ(report.pickles.size(), 1u);
  EXPECT_FALSE(report.pickles[0].globals[0].allowed);
}

TEST(Scan, TakesNamesThatTheCallerAllows) {
  OpenOptions options;
  options.allowed_globals = {"mine.Thing"};
  const std::string_view pickle =
      "\x80\x02"
      "cmine\nThing\n)\x81.";
  EXPECT_EQ(ScanBytes(pickle).verdict, Verdict::kUnsafe);
  const ScanReport report = ScanBytes(pickle, options);
  EXPECT_EQ(report.verdict, Verdict::kSafe) << report.reason;
}

TEST(Scan, LooksIntoRecordsWhateverTheyAreCalled) {
  for (const char* name :
       {"a/data.pkl", "a/DATA.PKL", "a/notes.txt", "a/data/0", "a/inner"}) {
    for (const bool deflated : {false, true}) {
      const std::string zip = BuildZip({{.name = name,
                                         .data = std::string(kEvil),
                                         .deflated = deflated}})
                                  .bytes;
      const ScanReport report = ScanBytes(zip);
      EXPECT_EQ(report.verdict, Verdict::kUnsafe) << name << deflated;
      EXPECT_THAT(report.reason, HasSubstr(name));
    }
  }
}

TEST(Scan, LooksIntoArchivesInArchives) {
  std::string zip = BuildZip({{.name = "x", .data = std::string(kEvil)}}).bytes;
  for (int depth = 0; depth < 4; ++depth) {
    zip = BuildZip({{.name = "inner", .data = zip}}).bytes;
    EXPECT_EQ(ScanBytes(zip).verdict, Verdict::kUnsafe) << depth;
  }
  for (int depth = 0; depth < 8; ++depth) {
    zip = BuildZip({{.name = "inner", .data = zip}}).bytes;
  }
  const ScanReport report = ScanBytes(zip);
  EXPECT_EQ(report.verdict, Verdict::kUnknown);
  EXPECT_THAT(report.reason, HasSubstr("nested too deeply"));
}

TEST(Scan, RefusesAZipBehindSomethingElse) {
  const std::string zip = BuildZip({{.name = "x.txt", .data = "hello"}}).bytes;
  EXPECT_EQ(ScanBytes(zip).verdict, Verdict::kSafe);
  const ScanReport report = ScanBytes("some text before it" + zip);
  EXPECT_EQ(report.verdict, Verdict::kUnsafe);
  EXPECT_EQ(report.byte, 19u);
}

TEST(Scan, FindsWhatNoReaderOpensSafe) {
  for (const std::string& content :
       {""s, "Dear reader,\nthis is a text.\n"s, "{\"a\": [1, 2]}\n"s,
        "Names:\n  are words\n"s, std::string(512, '\0'),
        "\x89PNG\r\n\x1a\n\0\0\0\0IHDR1234\0\0\0\0IEND1234"s}) {
    const ScanReport report = ScanBytes(content);
    EXPECT_EQ(report.verdict, Verdict::kSafe) << content << report.reason;
  }
}

TEST(Scan, DoesNotKnowWhatItCannotLookInto) {
  for (const std::string& content :
       {"\x89HDF\r\n\x1a\n"s, std::string(1024, '\1') + "\x89HDF\r\n\x1a\n",
        "BZh91AY"s, "7z\xbc\xaf\x27\x1c"s, "Rar!\x1a\x07\0"s,
        "#!/bin/sh\nls\n"s, "import os\n"s, "class Names:\n  are words\n"s,
        "\x89PNG\r\n\x1a\n\0\0\0\rIHDR"s, "\xff\xd8\xff\xe0"s, "\1\2\3"s,
        "MZ\0"s, "PK\x03\x04 and no more"s,
        "\x80\x04\x95\x10\0\0\0\0\0\0\0]\x94"s, "\x1f\x8b\x08 and no more"s}) {
    const ScanReport report = ScanBytes(content);
    EXPECT_EQ(report.verdict, Verdict::kUnknown) << content;
    EXPECT_FALSE(report.reason.empty());
    EXPECT_FALSE(report.findings.empty());
  }
}

// A folder that is deleted after the test.
class ScanPathTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/haulway_scan_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, std::string_view bytes) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  std::map<std::string, std::string> Verdicts(const std::string& below = "") {
    std::map<std::string, std::string> verdicts;
    status_ = ScanPath((folder_ / below).string(), {}, [&](ScanReport report) {
      const std::string name = report.file.substr(folder_.string().size() + 1);
      verdicts[name] = Name(report.verdict);
      return Status();
    });
    return verdicts;
  }

  std::filesystem::path folder_;
  Status status_;
};

TEST_F(ScanPathTest, ReportsEveryFileOfAFolder) {
  Write("notes.txt", "some words\n");
  Write("a/evil.bin", kEvil);
  Write("a/code.py", "print(1)\n");
  Write(".hidden", kEvil);
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("a/evil.bin", folder_ / "link");
  std::filesystem::create_symlink("a", folder_ / "folder_link");
  std::filesystem::create_symlink("nowhere", folder_ / "dangling");
  const std::map<std::string, std::string> expected = {
      {"notes.txt", "SAFE"},      {"a/evil.bin", "UNSAFE"},
      {"a/code.py", "UNKNOWN"},   {".hidden", "UNSAFE"},
      {"pipe", "UNKNOWN"},        {"link", "UNSAFE"},
      {"folder_link", "UNKNOWN"}, {"dangling", "UNKNOWN"}};
  EXPECT_EQ(Verdicts(), expected);
  EXPECT_TRUE(status_.ok());
}

TEST_F(ScanPathTest, SaysThatAFolderIsEmpty) {
  EXPECT_TRUE(Verdicts().empty());
  EXPECT_EQ(status_.code(), Code::kNotFound);
  EXPECT_THAT(std::string(status_.message()), HasSubstr("no files in folder"));
}

TEST_F(ScanPathTest, PassesOverTheFolderOfGitUnlessItIsNamed) {
  Write("notes.txt", "some words\n");
  Write("a/.git/evil.bin", kEvil);
  Write("a/.github/evil.bin", kEvil);
  const std::map<std::string, std::string> expected = {
      {"notes.txt", "SAFE"}, {"a/.github/evil.bin", "UNSAFE"}};
  EXPECT_EQ(Verdicts(), expected);
  EXPECT_EQ(Verdicts("a/.git").size(), 1u);
}

TEST_F(ScanPathTest, ScansOnlyFilesOfAFolderThatAreWanted) {
  Write("a/b.txt", "some words\n");
  Write("c.txt", "some words\n");
  std::vector<std::string> asked, scanned;
  const auto each = [&](const ScanReport& report) {
    scanned.push_back(report.file.substr(folder_.string().size() + 1));
    return Status();
  };
  const auto wanted = [&](std::string_view name) {
    asked.emplace_back(name);
    return name != "a/b.txt";
  };
  for (const char* const end : {"", "/"}) {
    EXPECT_TRUE(ScanPath(folder_.string() + end, {}, each, {}, wanted).ok());
  }
  EXPECT_EQ(asked,
            (std::vector<std::string>{"a/b.txt", "c.txt", "a/b.txt", "c.txt"}));
  EXPECT_EQ(scanned.size(), 2u);
}

TEST_F(ScanPathTest, TellsWhatCannotBeReadFromWhatIsUnknown) {
  Write("a.bin", "\1\2\3");
  Write("b.bin", "\1\2\3");
  std::map<std::string, bool> readable;
  const Status status =
      ScanPath(folder_.string(), {}, [&](const ScanReport& report) {
        readable[report.file.substr(folder_.string().size() + 1)] =
            report.readable;
        EXPECT_EQ(report.verdict, Verdict::kUnknown);
        std::filesystem::remove(folder_ / "b.bin");
        return Status();
      });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(readable,
            (std::map<std::string, bool>{{"a.bin", true}, {"b.bin", false}}));
}

TEST_F(ScanPathTest, DoesNotWaitForAPipe) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  Verdicts("pipe");
  EXPECT_EQ(status_.code(), Code::kUnsupported);
}

TEST_F(ScanPathTest, AnIndexBringsItsShards) {
  Write("pytorch_model.bin.index.json",
        R"({"metadata": {}, "weight_map": {"a": "one.bin", "b": "two.bin"}})");
  Write("one.bin", kEvil);
  const std::map<std::string, std::string> expected = {
      {"pytorch_model.bin.index.json", "SAFE"},
      {"one.bin", "UNSAFE"},
      {"two.bin", "UNKNOWN"}};
  EXPECT_EQ(Verdicts("pytorch_model.bin.index.json"), expected);
}

TEST_F(ScanPathTest, AFolderHasShardsOfItsOwnOnly) {
  Write("a/model.safetensors.index.json",
        R"({"metadata": {}, "weight_map": {"a": "one", "b": "../two"}})");
  Write("a/one", "some words\n");
  Write("two", kEvil);
  bool is_known = true;
  status_ = ScanPath((folder_ / "a").string(), {}, [&](ScanReport report) {
    if (report.file == "../two") {
      is_known = report.verdict != Verdict::kUnknown;
    }
    return Status();
  });
  EXPECT_TRUE(status_.ok());
  EXPECT_FALSE(is_known);
}

TEST(Scan, NullSourcesAreRefused) {
  EXPECT_EQ(Scan(nullptr).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace haulway
