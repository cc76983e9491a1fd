#include "haulway/sink.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "testing/shorthands.h"

namespace haulway {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text));
}

class FileSinkTest : public ::testing::TestWithParam<Durability> {
 protected:
  FileSinkTest() {
    std::string pattern = ::testing::TempDir() + "haulway-sink-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~FileSinkTest() override { fs::remove_all(folder_); }

  std::string Path(std::string_view name = "f") const { return folder_ / name; }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    std::ranges::sort(names);
    return names;
  }
  std::unique_ptr<ByteSink> Open(const std::string& path) const {
    auto sink = OpenFileSink(path, {.durability = GetParam()});
    EXPECT_TRUE(sink.ok()) << sink.status().message();
    return *std::move(sink);
  }
  Status Save(const std::string& path, std::string_view text,
              bool replaces_link = false) const {
    HAULWAY_ASSIGN(const std::unique_ptr<ByteSink> sink,
                   OpenFileSink(path, {.durability = GetParam(),
                                       .replaces_link = replaces_link}));
    HAULWAY_TRY(sink->Begin(text.size()).status());
    HAULWAY_TRY(sink->WriteAt(0, Bytes(text)));
    return sink->Commit(text.size());
  }

  fs::path folder_;
};

INSTANTIATE_TEST_SUITE_P(Durabilities, FileSinkTest,
                         ::testing::Values(Durability::kFull,
                                           Durability::kNone));

TEST_P(FileSinkTest, NothingIsVisibleBeforeCommit) {
  const auto sink = Open(Path());
  ASSERT_TRUE(sink->Begin(4).ok());
  ASSERT_TRUE(sink->WriteAt(2, Bytes("cd")).ok());
  ASSERT_TRUE(sink->WriteAt(0, Bytes("ab")).ok());
  EXPECT_FALSE(fs::exists(Path()));
  ASSERT_TRUE(sink->Commit(4).ok());
  EXPECT_EQ(test::ReadFile(Path()), "abcd");
  EXPECT_THAT(Names(), ElementsAre("f"));
}

TEST_P(FileSinkTest, APreparedFileIsNotVisibleBeforeCommit) {
  const auto sink = Open(Path());
  ASSERT_TRUE(sink->Begin(4).ok());
  ASSERT_TRUE(sink->WriteAt(0, Bytes("abcd")).ok());
  ASSERT_TRUE(sink->Prepare(4).ok());
  EXPECT_FALSE(fs::exists(Path()));
  ASSERT_TRUE(sink->Commit(4).ok());
  EXPECT_EQ(test::ReadFile(Path()), "abcd");
  EXPECT_THAT(Names(), ElementsAre("f"));
}

TEST_P(FileSinkTest, DroppedSinkLeavesNoTraceAndTheOldFile) {
  ASSERT_TRUE(Save(Path(), "old").ok());
  {
    const auto sink = Open(Path());
    ASSERT_TRUE(sink->Begin(3).ok());
    ASSERT_TRUE(sink->WriteAt(0, Bytes("new")).ok());
  }
  EXPECT_EQ(test::ReadFile(Path()), "old");
  EXPECT_THAT(Names(), ElementsAre("f"));
}

TEST_P(FileSinkTest, BytesNeverWrittenAreZero) {
  const auto sink = Open(Path());
  ASSERT_TRUE(sink->Begin(std::nullopt).ok());
  ASSERT_TRUE(sink->WriteAt(3, Bytes("d")).ok());
  ASSERT_TRUE(sink->Commit(6).ok());
  EXPECT_EQ(test::ReadFile(Path()), std::string("\0\0\0d\0\0", 6));
}

TEST_P(FileSinkTest, MappingOfTheOldFileStaysIntact) {
  ASSERT_TRUE(Save(Path(), std::string(5000, 'o')).ok());
  const int fd = ::open(Path().c_str(), O_RDONLY);
  auto* old =
      static_cast<char*>(::mmap(nullptr, 5000, PROT_READ, MAP_SHARED, fd, 0));
  ::close(fd);
  ASSERT_TRUE(Save(Path(), "new").ok());
  EXPECT_EQ(std::string(old, 5000), std::string(5000, 'o'));
  ::munmap(old, 5000);
}

TEST_P(FileSinkTest, NewFileHasTheModeThatUmaskLeaves) {
  const mode_t old = ::umask(027);
  ASSERT_TRUE(Save(Path(), "x").ok());
  ::umask(old);
  EXPECT_EQ(static_cast<int>(fs::status(Path()).permissions()), 0640);
}

TEST_P(FileSinkTest, WhatIsThereStaysIfAsked) {
  const FileSinkOptions options{.durability = GetParam(),
                                .existing = Existing::kRefuse};
  const auto early = OpenFileSink(Path(), options);
  ASSERT_TRUE(early.ok());
  ASSERT_TRUE(Save(Path(), "old").ok());
  EXPECT_EQ(OpenFileSink(Path(), options).status().code(),
            Code::kInvalidArgument);
  // The target was created while `early` was open.
  ASSERT_TRUE((*early)->Begin(3).ok());
  ASSERT_TRUE((*early)->WriteAt(0, Bytes("new")).ok());
  EXPECT_EQ((*early)->Commit(3).code(), Code::kInvalidArgument);
  EXPECT_EQ(test::ReadFile(Path()), "old");

  const auto other = OpenFileSink(Path("other"), options);
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE((*other)->Begin(3).ok());
  ASSERT_TRUE((*other)->WriteAt(0, Bytes("new")).ok());
  ASSERT_TRUE((*other)->Commit(3).ok());
  EXPECT_EQ(test::ReadFile(Path("other")), "new");
}

TEST_P(FileSinkTest, ExistingFileKeepsItsMode) {
  ASSERT_TRUE(Save(Path(), "x").ok());
  fs::permissions(Path(), fs::perms(0604));
  ASSERT_TRUE(Save(Path(), "y").ok());
  EXPECT_EQ(static_cast<int>(fs::status(Path()).permissions()), 0604);
}

TEST_P(FileSinkTest, SymbolicLinksAreFollowed) {
  fs::create_directory(folder_ / "real");
  fs::create_symlink("real/f", folder_ / "near");
  fs::create_symlink("near", folder_ / "far");
  // The link's target does not exist yet.
  ASSERT_TRUE(Save(Path("far"), "first").ok());
  ASSERT_TRUE(Save(Path("far"), "second").ok());
  EXPECT_TRUE(fs::is_symlink(folder_ / "far"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "near"));
  EXPECT_EQ(test::ReadFile(folder_ / "real" / "f"), "second");
}

TEST_P(FileSinkTest, ALinkToAFileOrToNothingIsReplacedIfAsked) {
  fs::create_directory(folder_ / "real");
  ASSERT_TRUE(Save(folder_ / "real" / "f", "old").ok());
  fs::create_symlink("real/f", folder_ / "near");
  fs::create_symlink("real/none", folder_ / "dangling");
  for (const char* name : {"near", "dangling"}) {
    ASSERT_TRUE(Save(Path(name), "new", /*replaces_link=*/true).ok());
    EXPECT_FALSE(fs::is_symlink(folder_ / name));
    EXPECT_EQ(test::ReadFile(Path(name)), "new");
  }
  EXPECT_EQ(test::ReadFile(folder_ / "real" / "f"), "old");
  EXPECT_FALSE(fs::exists(folder_ / "real" / "none"));
  fs::create_symlink("/dev/null", folder_ / "device");
  ASSERT_TRUE(Save(Path("device"), "new", /*replaces_link=*/true).ok());
  EXPECT_TRUE(fs::is_symlink(folder_ / "device"));
}

TEST_P(FileSinkTest, LinksThatGoInACircleAreLeftAlone) {
  fs::create_symlink("b", folder_ / "a");
  fs::create_symlink("a", folder_ / "b");
  EXPECT_EQ(Save(Path("a"), "x").code(), Code::kIoError);
  EXPECT_TRUE(fs::is_symlink(folder_ / "a"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "b"));
}

TEST_P(FileSinkTest, NamedTemporaryIsNoMoreOpenThanItsTarget) {
  ASSERT_TRUE(Save(Path(), "secret").ok());
  fs::permissions(Path(), fs::perms(0600));
  std::string temporary;
  const auto sink =
      OpenFileSink(Path(), {.durability = GetParam(), .temporary = &temporary});
  ASSERT_TRUE((*sink)->Begin(1).ok());
  EXPECT_EQ(static_cast<int>(fs::status(temporary).permissions()), 0600);
  ASSERT_TRUE((*sink)->WriteAt(0, Bytes("x")).ok());
  ASSERT_TRUE((*sink)->Commit(1).ok());
  EXPECT_EQ(static_cast<int>(fs::status(Path()).permissions()), 0600);
}

// Runs in its own process, which may write the file but not create files beside
// it.
class InPlaceTest : public FileSinkTest {
 protected:
  template <class Check>
  void RunConfined(const Check& check) {
    fs::permissions(folder_, fs::perms(0555));
    fs::permissions(Path(), fs::perms(0666));
    EXPECT_EXIT(
        {
          if (::geteuid() == 0 && ::seteuid(65534) != 0) ::_exit(1);
          ::_exit(check() ? 0 : 2);
        },
        ::testing::ExitedWithCode(0), "");
    fs::permissions(folder_, fs::perms(0755));
  }
  char* Map(int access, int flags, size_t bytes) const {
    const int fd = ::open(Path().c_str(), O_RDWR);
    void* address = ::mmap(nullptr, bytes, access, flags, fd, 0);
    ::close(fd);
    return static_cast<char*>(address);
  }
};

INSTANTIATE_TEST_SUITE_P(Durabilities, InPlaceTest,
                         ::testing::Values(Durability::kFull,
                                           Durability::kNone));

TEST_P(InPlaceTest, WhatWasMappedFromTheTargetIsSavedAsItWas) {
  if (::process_vm_readv(::getpid(), nullptr, 0, nullptr, 0, 0) != 0) {
    GTEST_SKIP() << "process_vm_readv(2): " << std::strerror(errno);
  }
  const std::string halves =
      std::string(40960, 'a') + std::string(40960, 'b') + "tail";
  ASSERT_TRUE(Save(Path(), halves).ok());
  RunConfined([&] {
    const char* old = Map(PROT_READ | PROT_WRITE, MAP_PRIVATE, halves.size());
    const auto sink = Open(Path());
    if (!sink->Begin(81920).ok()) return false;
    // Swaps the halves.
    if (!sink->WriteAt(40960, Bytes({old, 40960})).ok()) return false;
    if (!sink->WriteAt(0, Bytes({old + 40960, 40960})).ok()) return false;
    if (!sink->Commit(81920).ok()) return false;
    return test::ReadFile(Path()) ==
               std::string(40960, 'b') + std::string(40960, 'a') &&
           std::string(old, halves.size()) == halves;
  });
}

TEST_P(InPlaceTest, SharedMappingsOfTheTargetAreRefusedAndItIsKept) {
  ASSERT_TRUE(Save(Path(), std::string(5000, 'o')).ok());
  RunConfined([&] {
    const char* old = Map(PROT_READ, MAP_SHARED, 5000);
    const Status status = Save(Path(), "new");
    return status.code() == Code::kUnsupported && old[4999] == 'o' &&
           test::ReadFile(Path()) == std::string(5000, 'o');
  });
}

TEST_P(InPlaceTest, AWriteThatDoesNotEndLeavesTheOldContent) {
  ASSERT_TRUE(Save(Path(), "old").ok());
  RunConfined([&] {
    {
      const auto sink = Open(Path());
      if (!sink->Begin(3).ok()) return false;
      if (!sink->WriteAt(0, Bytes("new")).ok()) return false;
    }
    return test::ReadFile(Path()) == "old" && Save(Path(), "new").ok() &&
           test::ReadFile(Path()) == "new";
  });
}

TEST_P(InPlaceTest, ALimitOfSizeLeavesTheOldContent) {
  ASSERT_TRUE(Save(Path(), std::string(5000, 'o')).ok());
  RunConfined([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {100'000, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const Status status = Save(Path(), std::string(100'001, 'n'));
    return status.code() == Code::kIoError &&
           test::ReadFile(Path()) == std::string(5000, 'o');
  });
}

TEST_P(InPlaceTest, TheFileBehindALinkToReplaceIsNeverOverwritten) {
  ASSERT_TRUE(Save(Path(), "old").ok());
  fs::create_symlink("f", folder_ / "link");
  RunConfined([&] {
    const Status status = Save(Path("link"), "new", /*replaces_link=*/true);
    return status.code() == Code::kPermissionDenied &&
           test::ReadFile(Path()) == "old";
  });
}

TEST_P(InPlaceTest, ATargetThatIsReadIsNeverOverwritten) {
  ASSERT_TRUE(Save(Path(), "old").ok());
  RunConfined([&] {
    const auto sink =
        OpenFileSink(Path(), {.durability = GetParam(), .is_read = true});
    const Status status = (*sink)->Begin(3).status();
    return status.code() == Code::kPermissionDenied &&
           test::ReadFile(Path()) == "old";
  });
}

TEST_P(FileSinkTest, LeftoversOfKilledRunsAreRemovedAndThoseOfLiveOnesKept) {
  std::ofstream(Path(".f.1-0.haulway-tmp")) << "dead";
  std::ofstream(Path(".f.2-0.haulway-tmp")) << "alive";
  std::ofstream(Path(".other.1-0.haulway-tmp")) << "dead";
  const int alive = ::open(Path(".f.2-0.haulway-tmp").c_str(), O_RDONLY);
  ASSERT_EQ(::flock(alive, LOCK_EX), 0);
  ASSERT_TRUE(Save(Path(), "x").ok());
  EXPECT_THAT(Names(), ElementsAre(".f.2-0.haulway-tmp", "f"));
  ::close(alive);
}

TEST(FunctionSink, NullFunctionsAndStringsAreRefused) {
  EXPECT_EQ(MakeFunctionSink(nullptr)->Begin(1).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(MakeMemorySink(nullptr)->Begin(1).status().code(),
            Code::kInvalidArgument);
}

// Cleanup removes only names that this program makes, and does not wait for a
// pipe.
TEST_P(FileSinkTest, WhatOthersNamedAlikeIsKept) {
  const std::string names[] = {
      ".f..haulway-tmp",  ".f.1-.haulway-tmp",    ".f.1-0-1.haulway-tmp",
      ".f.1.haulway-tmp", ".f.a-1.haulway-tmp",   ".1-0.haulway-tmp",
      ".f.haulway-tmp",   ".f.notes.haulway-tmp", "f.1-0.haulway-tmp",
  };
  for (const std::string& name : names) std::ofstream(Path(name)) << "mine";
  ASSERT_EQ(::mkfifo(Path(".f.3-0.haulway-tmp").c_str(), 0600), 0);
  ASSERT_EQ(::mkdir(Path(".f.4-0.haulway-tmp").c_str(), 0700), 0);
  ASSERT_TRUE(Save(Path(), "x").ok());
  EXPECT_EQ(Names().size(), std::size(names) + 3);
}

// Other links lead to a file that is named by its hash.
TEST_P(FileSinkTest, ALinkToAFileNamedByItsHashIsReplaced) {
  for (const size_t digits : {40, 64}) {
    const std::string blob(digits, 'a');
    ASSERT_TRUE(Save(Path(blob), "old").ok());
    fs::create_symlink(blob, folder_ / "link");
    ASSERT_TRUE(Save(Path("link"), "new").ok());
    EXPECT_FALSE(fs::is_symlink(folder_ / "link"));
    EXPECT_EQ(test::ReadFile(Path("link")), "new");
    EXPECT_EQ(test::ReadFile(Path(blob)), "old");
    fs::remove(folder_ / "link");
  }
}

TEST_P(FileSinkTest, LongestNamesCanBeWritten) {
  const std::string name(255, 'n');
  ASSERT_TRUE(Save(Path(name), "x").ok());
  EXPECT_THAT(Names(), ElementsAre(name));
}

TEST_P(FileSinkTest, FoldersAndMissingFoldersAreErrors) {
  EXPECT_EQ(OpenFileSink(folder_).status().code(), Code::kUnsupported);
  EXPECT_EQ(OpenFileSink(Path() + "/").status().code(), Code::kUnsupported);
  EXPECT_EQ(OpenFileSink("").status().code(), Code::kInvalidArgument);
  const Status status = Save(Path("none/f"), "x");
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("cannot create"));
}

TEST_P(FileSinkTest, PipesAreWrittenInOrder) {
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  const int reader = ::open(Path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  const auto sink = Open(Path("pipe"));
  const auto traits = sink->Begin(4);
  ASSERT_TRUE(traits.ok());
  EXPECT_TRUE(traits->ordered);
  ASSERT_TRUE(sink->WriteAt(0, Bytes("ab")).ok());
  ASSERT_TRUE(sink->WriteAt(2, Bytes("cd")).ok());
  char got[8] = {};
  EXPECT_EQ(::read(reader, got, sizeof(got)), 4);
  EXPECT_STREQ(got, "abcd");
  ::close(reader);
}

bool HasDirectWrites(const fs::path& folder) {
  const int fd =
      ::open((folder / "probe").c_str(), O_CREAT | O_WRONLY | O_DIRECT, 0600);
  fs::remove(folder / "probe");
  return fd >= 0 && ::close(fd) == 0;
}

TEST(FileSink, DirectWritesMayBeOfAnyLengthAndOrder) {
  std::string pattern = ::testing::TempDir() + "haulway-direct-XXXXXX";
  const fs::path folder = ::mkdtemp(pattern.data());
  std::string expected(11'000'003, '\0');
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = static_cast<char>(i * 31 + i / 4096);
  }
  // Whole blocks, ranges that share blocks, more edges than are kept, and many
  // blocks.
  for (const size_t step :
       {size_t{65536}, size_t{65537}, size_t{4095}, size_t{9'000'000}}) {
    auto sink = *OpenFileSink(folder / "f", {.direct = true});
    const auto traits = sink->Begin(expected.size() + 2);
    ASSERT_TRUE(traits.ok()) << traits.status().message();
    std::vector<size_t> starts;
    for (size_t at = 0; at < expected.size(); at += step) starts.push_back(at);
    std::ranges::reverse(starts);
    for (const size_t at : starts) {
      const auto bytes =
          Bytes(expected).subspan(at, std::min(step, expected.size() - at));
      const std::span<const std::byte> parts[] = {
          bytes.first(bytes.size() / 3), {}, bytes.subspan(bytes.size() / 3)};
      ASSERT_TRUE(sink->WriteAt(at, parts).ok());
    }
    ASSERT_TRUE(sink->Commit(expected.size() + 2).ok());
    // Everything but the edges; nothing for ranges smaller than a block.
    const uint64_t most = expected.size();
    EXPECT_LE(sink->direct_bytes(), step == 4095 ? 0 : most);
    if (HasDirectWrites(folder) && step == 65536) {
      EXPECT_GE(sink->direct_bytes(), most - step);
    }
    EXPECT_TRUE(test::ReadFile(folder / "f") == expected + std::string(2, '\0'))
        << step;
  }
  fs::remove_all(folder);
}

TEST(FileSink, LackOfSpaceIsFoundBeforeAnythingIsWritten) {
  // On the file system of temporary files and, if available, on tmpfs.
  for (std::string place : {::testing::TempDir(), std::string("/dev/shm/")}) {
    std::string pattern = place + "haulway-space-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) continue;
    const fs::path folder = pattern;
    auto sink = *OpenFileSink(folder / "f");
    const auto traits = sink->Begin(uint64_t{1} << 50);
    EXPECT_EQ(traits.status().code(), Code::kIoError) << place;
    const int error = traits.status().os_error();
    EXPECT_TRUE(error == ENOSPC || error == EFBIG) << place;
    sink.reset();
    EXPECT_TRUE(fs::is_empty(folder));
    fs::remove_all(folder);
  }
}

TEST(FunctionSink, GetsEveryPartInTurnAndItsErrorsReachTheCaller) {
  std::string got;
  const auto sink = MakeFunctionSink([&](std::span<const std::byte> bytes) {
    got.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return got.size() > 4 ? Status(Code::kIoError, "full") : Status();
  });
  EXPECT_TRUE(sink->Begin(std::nullopt)->ordered);
  const std::span<const std::byte> parts[] = {Bytes("ab"), {}, Bytes("cd")};
  ASSERT_TRUE(sink->WriteAt(0, parts).ok());
  EXPECT_EQ(got, "abcd");
  EXPECT_EQ(sink->WriteAt(4, Bytes("e")).message(), "full");
}

TEST(MemorySink, GivesItsBytesAtCommit) {
  std::string out = "untouched";
  const auto sink = MakeMemorySink(&out);
  ASSERT_TRUE(sink->Begin(3).ok());
  ASSERT_TRUE(sink->WriteAt(0, Bytes("abc")).ok());
  EXPECT_EQ(out, "untouched");
  ASSERT_TRUE(sink->Commit(3).ok());
  EXPECT_EQ(out, "abc");
}

}  // namespace
}  // namespace haulway
