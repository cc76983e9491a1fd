#include "haulway/file_set.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "haulway/options.h"
#include "haulway/source.h"
#include "io/folder_lock.h"
#include "io/name_watch.h"
#include "io/temporary_file.h"
#include "testing/shorthands.h"

namespace haulway {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Files = std::map<std::string, std::string>;

class FileSetTest : public ::testing::TestWithParam<Durability> {
 protected:
  FileSetTest() {
    std::string pattern = ::testing::TempDir() + "haulway-set-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~FileSetTest() override { fs::remove_all(folder_); }

  std::string Path(std::string_view name) const { return folder_ / name; }
  Files Found() const {
    Files found;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      found[entry.path().filename()] =
          entry.is_directory() ? "a folder" : test::ReadFile(entry.path());
    }
    return found;
  }

  Status Add(FileSet* set, const std::string& name,
             std::string_view text) const {
    HAULWAY_ASSIGN(const auto sink, set->AddFile(Path(name)));
    HAULWAY_TRY(sink->Begin(text.size()).status());
    HAULWAY_TRY(sink->WriteAt(0, std::as_bytes(std::span(text))));
    return sink->Commit(text.size());
  }
  // Saves two shards and their index, all with the same text.
  Status Save(std::string_view text,
              const std::function<void(FileSet&)>& before = nullptr) const {
    FileSet set(GetParam());
    for (const char* name : {"a-1", "a-2", "a.index"}) {
      HAULWAY_TRY(Add(&set, name, text));
    }
    if (before) before(set);
    return set.Commit();
  }

  fs::path folder_;
};

INSTANTIATE_TEST_SUITE_P(Durabilities, FileSetTest,
                         ::testing::Values(Durability::kFull,
                                           Durability::kNone));

const Files kOld = {{"a-1", "old"}, {"a-2", "old"}, {"a.index", "old"}};
const Files kNew = {{"a-1", "new"}, {"a-2", "new"}, {"a.index", "new"}};

TEST_P(FileSetTest, ReplacesAllFilesOrNone) {
  ASSERT_TRUE(Save("old").ok());
  EXPECT_EQ(Found(), kOld);
  {
    FileSet dropped(GetParam());
    ASSERT_TRUE(Add(&dropped, "a-1", "lost").ok());
    ASSERT_TRUE(dropped.Prepare().ok());
  }
  EXPECT_EQ(Found(), kOld);
  ASSERT_TRUE(Save("new").ok());
  EXPECT_EQ(Found(), kNew);
}

TEST_P(FileSetTest, AFileThatIsNotCompleteKeepsTheOldOnes) {
  ASSERT_TRUE(Save("old").ok());
  FileSet set(GetParam());
  ASSERT_TRUE(Add(&set, "a-1", "new").ok());
  ASSERT_TRUE(set.AddFile(Path("a.index")).ok());
  const Status status = set.Commit();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not complete"));
}

// A name that cannot be taken, at each place in the set.
TEST_P(FileSetTest, AFailureInTheMiddlePutsTheOldFilesBack) {
  for (const std::string name : {"a-1", "a-2", "a.index"}) {
    ASSERT_TRUE(Save("old").ok());
    Files expected = kOld;
    expected[name] = "a folder";
    EXPECT_FALSE(Save("new", [&](FileSet&) {
                   fs::remove(Path(name));
                   fs::create_directory(Path(name));
                 }).ok());
    EXPECT_EQ(Found(), expected) << name;
    fs::remove(Path(name));
  }
}

TEST_P(FileSetTest, FilesOfOtherProcessesBecomeVisible) {
  ASSERT_TRUE(Save("old").ok());
  FileSet theirs(GetParam());
  ASSERT_TRUE(Add(&theirs, "a-1", "new").ok());
  ASSERT_TRUE(Add(&theirs, "b-1", "new").ok());
  ASSERT_TRUE(theirs.Prepare().ok());
  const std::vector<std::string> hidden = theirs.TemporaryNames();
  ASSERT_EQ(hidden.size(), 2u);
  {
    FileSet set(GetParam());
    ASSERT_TRUE(set.AddWritten(Path("b-1"), hidden[1]).ok());
    ASSERT_TRUE(set.AddWritten(Path("a-1"), hidden[0]).ok());
    EXPECT_EQ(set.AddWritten(Path("c-1"), Path("none")).code(),
              Code::kNotFound);
    const auto old = [&]() -> Result<std::vector<std::string>> {
      return std::vector{Path("a.index"), Path("a-2")};
    };
    ASSERT_TRUE(set.Commit(old, FileSet::OldGo::kFirst).ok());
  }
  const Files expected = {{"a-1", "new"}, {"b-1", "new"}};
  EXPECT_EQ(Found(), expected);
}

TEST_P(FileSetTest, AFileThatAnotherProcessTookAwayKeepsTheOldOnes) {
  ASSERT_TRUE(Save("old").ok());
  FileSet set(GetParam());
  {
    FileSet theirs(GetParam());
    ASSERT_TRUE(Add(&theirs, "a-1", "new").ok());
    ASSERT_TRUE(theirs.Prepare().ok());
    ASSERT_TRUE(
        set.AddWritten(Path("a-1"), theirs.TemporaryNames().front()).ok());
  }
  const auto old = [&]() -> Result<std::vector<std::string>> {
    return std::vector{Path("a.index"), Path("a-2")};
  };
  EXPECT_EQ(set.Commit(old, FileSet::OldGo::kFirst).code(), Code::kUnavailable);
  EXPECT_EQ(Found(), kOld);
}

TEST_P(FileSetTest, OtherFilesOfTheOldSetGo) {
  ASSERT_TRUE(Save("old").ok());
  FileSet set(GetParam());
  ASSERT_TRUE(Add(&set, "b-1", "new").ok());
  ASSERT_TRUE(Add(&set, "b.index", "new").ok());
  ASSERT_TRUE(set.Commit([&] {
                   return std::vector{Path("a.index"), Path("a-1"), Path("a-2"),
                                      Path("none")};
                 })
                  .ok());
  EXPECT_THAT(Found(), ElementsAre(Pair("b-1", "new"), Pair("b.index", "new")));
}

TEST_P(FileSetTest, AFileOfASetIsNotOverwrittenInPlace) {
  ASSERT_TRUE(Save("old").ok());
  for (const auto& [name, text] : kOld) {
    fs::permissions(Path(name), fs::perms(0666));
  }
  fs::permissions(folder_, fs::perms(0555));
  EXPECT_EXIT(
      {
        if (::geteuid() == 0 && ::seteuid(65534) != 0) ::_exit(1);
        ::_exit(Save("new").code() == Code::kPermissionDenied ? 0 : 2);
      },
      ::testing::ExitedWithCode(0), "");
  fs::permissions(folder_, fs::perms(0755));
  EXPECT_EQ(Found(), kOld);
}

TEST_P(FileSetTest, LeftoversOfDeadProcessesGoWhateverTheirNames) {
  for (const char* name : {".a-1.1-0.haulway-tmp", ".other.77-3.haulway-tmp",
                           ".used.1-0.haulway-tmp"}) {
    std::ofstream(Path(name)) << "x";
  }
  const int used = ::open(Path(".used.1-0.haulway-tmp").c_str(), O_RDONLY);
  ASSERT_EQ(::flock(used, LOCK_EX), 0);
  ASSERT_TRUE(Save("new").ok());
  Files expected = kNew;
  expected[".used.1-0.haulway-tmp"] = "x";
  EXPECT_EQ(Found(), expected);
  ::close(used);
  ASSERT_TRUE(Save("new").ok());
  EXPECT_EQ(Found(), kNew);
}

TEST_P(FileSetTest, WaitsForAnotherSetInTheFolder) {
  const auto lock = FolderLock::Take(folder_);
  ASSERT_TRUE(lock.ok());
  const std::atomic<bool> cancelled = true;
  const CancelScope scope(&cancelled);
  EXPECT_EQ(Save("new").code(), Code::kCancelled);
  EXPECT_THAT(Found(), IsEmpty());
}

TEST_P(FileSetTest, AReaderNoticesThatTheIndexIsAnother) {
  ASSERT_TRUE(Save("old").ok());
  const auto source = OpenFileSource(Path("a.index"));
  ASSERT_TRUE(source.ok());
  const NameWatch watch(**source);
  EXPECT_TRUE(watch.IsSame());
  // The save fails, so the index is the same file; but others were there.
  EXPECT_FALSE(Save("new", [&](FileSet&) {
                 fs::remove(Path("a-1"));
                 fs::create_directory(Path("a-1"));
               }).ok());
  EXPECT_EQ(test::ReadFile(Path("a.index")), "old");
  EXPECT_FALSE(watch.IsSame());
}

TEST_P(FileSetTest, AMissingFileWhoseSaveDidNotEndIsNamedSo) {
  std::ofstream(Path(".a.index.1-0.haulway-tmp")) << "x";
  const Status status = OpenFileSource(Path("a.index")).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("a save goes on, or did not end (save again)"));
  EXPECT_EQ(FindTemporary(Path("")), ".a.index.1-0.haulway-tmp");
}

}  // namespace
}  // namespace haulway
