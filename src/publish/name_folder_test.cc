#include "publish/name_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

namespace haulway::publish {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Access = NameFolder::Access;

class NameFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/namesXXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    top_ = name;
    path_ = top_ + "/haulway";
  }
  void TearDown() override { std::filesystem::remove_all(top_); }

  void ExpectRefused(std::string_view why) {
    const auto folder = NameFolder::Open(Access::kShared, path_);
    ASSERT_FALSE(folder.ok());
    EXPECT_EQ(folder.status().code(), Code::kPermissionDenied);
    EXPECT_THAT(std::string(folder.status().message()), HasSubstr(why));
  }
  static mode_t ModeOf(const std::string& path) {
    struct stat facts;
    return ::lstat(path.c_str(), &facts) == 0 ? facts.st_mode & 07777 : 0;
  }

  std::string top_;
  std::string path_;
};

TEST_F(NameFolderTest, IsMadeForItsUserAlone) {
  const auto folder = NameFolder::Open(Access::kAlone, path_);
  ASSERT_TRUE(folder.ok());
  ASSERT_TRUE(folder->Write("weights", 42).ok());
  EXPECT_EQ(ModeOf(path_), 0700U);
  EXPECT_EQ(ModeOf(path_ + "/weights"), 0600U);
  EXPECT_EQ(folder->Read("weights"), 42U);
  EXPECT_THAT(folder->names(), ElementsAre("weights"));
  folder->Remove("weights");
  EXPECT_EQ(folder->Read("weights"), std::nullopt);
}

TEST_F(NameFolderTest, RefusesALink) {
  std::filesystem::create_directory(top_ + "/elsewhere");
  std::filesystem::create_directory_symlink(top_ + "/elsewhere", path_);
  ExpectRefused("expected a folder, found a link or a file");
}

TEST_F(NameFolderTest, RefusesAFile) {
  std::ofstream(path_) << "x";
  ExpectRefused("expected a folder, found a link or a file");
}

TEST_F(NameFolderTest, RefusesAFolderThatIsOpenToOthers) {
  ASSERT_EQ(::mkdir(path_.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(path_.c_str(), 0750), 0);
  ExpectRefused("expected mode 0700, found 0750");
}

TEST_F(NameFolderTest, RefusesAnotherUsersFolder) {
  ASSERT_EQ(::mkdir(path_.c_str(), 0700), 0);
  if (::chown(path_.c_str(), 12345, 12345) != 0) return;  // Only root can.
  ExpectRefused("folder of another user");
}

TEST_F(NameFolderTest, FollowsNoLinkOfAName) {
  const auto folder = NameFolder::Open(Access::kAlone, path_);
  ASSERT_TRUE(folder.ok());
  std::ofstream(top_ + "/victim") << "7\n";
  std::filesystem::create_symlink(top_ + "/victim", path_ + "/weights");
  EXPECT_EQ(folder->Read("weights"), std::nullopt);
  ASSERT_TRUE(folder->Write("weights", 42).ok());
  EXPECT_EQ(folder->Read("weights"), 42U);
  std::string text;
  std::ifstream(top_ + "/victim") >> text;
  EXPECT_EQ(text, "7");
}

TEST_F(NameFolderTest, ReadsNoProcessFromOtherText) {
  const auto folder = NameFolder::Open(Access::kAlone, path_);
  ASSERT_TRUE(folder.ok());
  for (const char* text : {"", "x", "-1", "99999999999999999999"}) {
    std::ofstream(path_ + "/weights") << text;
    EXPECT_EQ(folder->Read("weights"), std::nullopt) << text;
  }
  ASSERT_EQ(::mkfifo((path_ + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(folder->Read("pipe"), std::nullopt);
}

TEST_F(NameFolderTest, IsUnlockedThoughAForkedChildHasItOpen) {
  pid_t child = 0;
  {
    const auto folder = NameFolder::Open(Access::kAlone, path_);
    ASSERT_TRUE(folder.ok());
    child = ::fork();
    if (child == 0) {
      while (true) ::pause();
    }
  }
  EXPECT_TRUE(NameFolder::Open(Access::kAlone, path_).ok());
  (void)::kill(child, SIGKILL);
  (void)::waitpid(child, nullptr, 0);
}

TEST_F(NameFolderTest, IsSharedByReaders) {
  const auto one = NameFolder::Open(Access::kShared, path_);
  const auto other = NameFolder::Open(Access::kShared, path_);
  EXPECT_TRUE(one.ok() && other.ok());
}

TEST(PublicationName, IsShortAndPlain) {
  for (const std::string& name : {std::string("a"), std::string("A.b_c-9"),
                                  std::string(100, 'x'), std::string("...")}) {
    EXPECT_TRUE(CheckName(name).ok()) << name;
  }
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."),
        std::string(101, 'x'), std::string("a/b"), std::string("a b"),
        std::string("\xc3\xa9"), std::string("a\0b", 3), std::string("a\n")}) {
    const Status status = CheckName(name);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("expected 1 to 100 of"));
  }
}

}  // namespace
}  // namespace haulway::publish
