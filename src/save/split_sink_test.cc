#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "haulway/layout.h"

namespace haulway {
namespace {

namespace fs = std::filesystem;

class SplitSinkTest : public ::testing::Test {
 protected:
  SplitSinkTest() {
    std::string pattern = ::testing::TempDir() + "haulway-split-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~SplitSinkTest() override { fs::remove_all(folder_); }

  Status Write(const std::string& name, const std::string& text,
               uint64_t split) {
    HAULWAY_ASSIGN(const auto sink,
                   OpenSplitSink(folder_ / name, "x.data", split));
    HAULWAY_TRY(sink->Begin(text.size()).status());
    HAULWAY_TRY(sink->ByteSink::WriteAt(0, std::as_bytes(std::span(text))));
    return sink->Commit(text.size());
  }

  std::string Read(const std::string& name) const {
    std::ifstream in(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path folder_;
};

TEST_F(SplitSinkTest, WritesTwoFiles) {
  ASSERT_TRUE(Write("x.tensors", "headdata", 4).ok());
  EXPECT_EQ(Read("x.tensors"), "head");
  EXPECT_EQ(Read("x.data"), "data");
}

TEST_F(SplitSinkTest, LeavesDataFilesThatExist) {
  std::ofstream(folder_ / "x.data") << "other";
  EXPECT_EQ(Write("x.tensors", "headdata", 4).code(), Code::kInvalidArgument);
  EXPECT_EQ(Read("x.data"), "other");
  EXPECT_FALSE(fs::exists(folder_ / "x.tensors"));
}

TEST_F(SplitSinkTest, RefusesTheFileItselfByAnyName) {
  fs::create_directory(folder_ / "real");
  fs::create_symlink("real", folder_ / "alias");
  fs::create_symlink("../alias/x.data", folder_ / "real" / "x.tensors");
  for (const std::string name :
       {"x.data", "real/x.data", "alias/x.data", "real/x.tensors"}) {
    EXPECT_EQ(Write(name, "headdata", 4).code(), Code::kInvalidArgument)
        << name;
  }
  EXPECT_FALSE(fs::exists(folder_ / "x.data"));
  EXPECT_FALSE(fs::exists(folder_ / "real" / "x.data"));
}

}  // namespace
}  // namespace haulway
