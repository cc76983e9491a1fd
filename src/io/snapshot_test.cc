// Tests that views of snapshots stay unchanged when the file changes.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/posix.h"
#include "haulway/options.h"
#include "haulway/source.h"

namespace haulway {
namespace {

constexpr uint64_t kFileSize = 5 * kMiB + 1234;

char ByteAt(uint64_t offset) {
  return static_cast<char>((offset * 7 + offset / 4096) % 251);
}

std::string Content(uint64_t size) {
  std::string content(size, '\0');
  for (uint64_t i = 0; i < size; ++i) content[i] = ByteAt(i);
  return content;
}

// A file that is removed at the end of the test.
class TestFile {
 public:
  explicit TestFile(uint64_t size = kFileSize,
                    const std::string& folder = ::testing::TempDir()) {
    path_ = folder + "/haulway-snapshot-XXXXXX";
    ::close(::mkstemp(path_.data()));
    std::ofstream(path_, std::ios::binary) << Content(size);
  }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;
  ~TestFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Result<std::shared_ptr<const ByteSource>> SnapshotOf(
    const std::string& path, std::vector<ByteRange> ranges) {
  HAULWAY_ASSIGN(const auto source, OpenFileSource(path));
  return source->Snapshot(ranges);
}

// Returns a view of the whole file.
Buffer ViewOf(const std::string& path, uint64_t size = kFileSize) {
  const auto source = SnapshotOf(path, {{0, size}});
  EXPECT_TRUE(source.ok()) << source.status().message();
  return source.ok() ? (*source)->View(0, size).value() : Buffer();
}

bool IsContent(const Buffer& view, uint64_t begin = 0) {
  for (uint64_t i = 0; i < view.size(); ++i) {
    if (static_cast<char>(view.data()[i]) != ByteAt(begin + i)) return false;
  }
  return true;
}

// There are no snapshots if the process's threads cannot be stopped.
class Snapshot : public testing::Test {
 protected:
  void SetUp() override {
    const TestFile file(5000);
    const Status status = SnapshotOf(file.path(), {{0, 5000}}).status();
    if (status.message().starts_with("threads cannot be stopped")) {
      GTEST_SKIP() << status.message();
    }
  }
};

struct Change {
  const char* name;
  void (*make)(const std::string& path);
};

void Overwrite(const std::string& path, int flags) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags));
  ASSERT_GE(fd.get(), 0);
  const std::string other(kFileSize, 'x');
  EXPECT_TRUE(
      WriteFully(fd.get(), 0, {{std::as_bytes(std::span(other))}}).ok());
}

constexpr Change kChanges[] = {
    {"Truncated",
     [](const std::string& path) {
       EXPECT_EQ(::truncate(path.c_str(), 100), 0);
     }},
    {"OpenedTruncating",
     [](const std::string& path) { Overwrite(path, O_TRUNC); }},
    {"Overwritten", [](const std::string& path) { Overwrite(path, 0); }},
    {"Punched",
     [](const std::string& path) {
       const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
       EXPECT_EQ(
           ::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                       4 * kMiB),
           0);
     }},
    {"MappedAndWritten",
     [](const std::string& path) {
       const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
       void* const map = ::mmap(nullptr, kFileSize, PROT_READ | PROT_WRITE,
                                MAP_SHARED, fd.get(), 0);
       ASSERT_NE(map, MAP_FAILED);
       std::memset(map, 'x', kFileSize);
       ::munmap(map, kFileSize);
     }},
    {"RenamedOver",
     [](const std::string& path) {
       const TestFile other(100);
       EXPECT_EQ(::rename(other.path().c_str(), path.c_str()), 0);
     }},
    {"Deleted",
     [](const std::string& path) { EXPECT_EQ(::unlink(path.c_str()), 0); }},
};

class SnapshotChange : public Snapshot,
                       public testing::WithParamInterface<Change> {};

TEST_P(SnapshotChange, ChangesNoView) {
  const TestFile file;
  const Buffer view = ViewOf(file.path());
  ASSERT_EQ(view.size(), kFileSize);
  GetParam().make(file.path());
  EXPECT_TRUE(IsContent(view));
}

TEST_P(SnapshotChange, KeepsWhatWasWritten) {
  const TestFile file;
  const Buffer view = ViewOf(file.path());
  ASSERT_EQ(view.size(), kFileSize);
  const auto bytes = view.mutable_bytes();
  for (uint64_t i = 0; i < kFileSize; i += 70'001) bytes[i] = std::byte{0xEE};
  GetParam().make(file.path());
  for (uint64_t i = 0; i < kFileSize; ++i) {
    const char expected = i % 70'001 == 0 ? '\xEE' : ByteAt(i);
    ASSERT_EQ(static_cast<char>(bytes[i]), expected) << i;
  }
  bytes[5] = std::byte{1};  // Still writable.
  EXPECT_EQ(bytes[5], std::byte{1});
}

INSTANTIATE_TEST_SUITE_P(Changes, SnapshotChange, testing::ValuesIn(kChanges),
                         [](const auto& info) { return info.param.name; });

TEST_F(Snapshot, BringsInWhatIsMissing) {
  const TestFile file;
  const UniqueFd fd(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::fdatasync(fd.get()), 0);
  const auto snapshot = SnapshotOf(file.path(), {{0, kFileSize}});
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
  const ByteRange whole{0, kFileSize};
  const ByteRange wanted{1 * kMiB + 17, 3 * kMiB};
  snapshot.value()->DropCache(0, kFileSize);
  // A tmpfs keeps its files in memory, so nothing is dropped.
  struct statfs system;
  ASSERT_EQ(::fstatfs(fd.get(), &system), 0);
  if (system.f_type != TMPFS_MAGIC) {
    EXPECT_LT(snapshot.value()->Look({&wanted, 1}).resident, 1);
  }
  ASSERT_TRUE(snapshot.value()->Prefetch(wanted.offset, wanted.length).ok());
  EXPECT_EQ(snapshot.value()->Look({&wanted, 1}).resident, 1);
  ASSERT_TRUE(snapshot.value()->Prefetch(0, kFileSize).ok());
  EXPECT_EQ(snapshot.value()->Look({&whole, 1}).resident, 1);
  const Buffer view = snapshot.value()->View(0, kFileSize).value();
  EXPECT_EQ(std::memcmp(view.data(), Content(kFileSize).data(), kFileSize), 0);
  // Ranges without views need no prefetching.
  EXPECT_TRUE(snapshot.value()->Prefetch(kFileSize - 10, 20 * kMiB).ok());
}

TEST_F(Snapshot, WritingNeverReachesTheFile) {
  const TestFile file;
  {
    const Buffer view = ViewOf(file.path());
    std::memset(view.mutable_bytes().data(), 'x', kFileSize);
  }
  std::ifstream in(file.path(), std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(content, Content(kFileSize));
}

TEST_F(Snapshot, HasViewsOfWhatWasAskedForAndReadsTheRest) {
  const TestFile file;
  const auto source =
      SnapshotOf(file.path(), {{kMiB + 100, 5000}, {3 * kMiB, 10}});
  ASSERT_TRUE(source.ok()) << source.status().message();
  const auto view = (*source)->View(kMiB + 100, 5000);
  ASSERT_TRUE(view.has_value());
  EXPECT_FALSE((*source)->View(2 * kMiB, 1).has_value());
  EXPECT_FALSE((*source)->View(0, 10).has_value());
  EXPECT_EQ(::truncate(file.path().c_str(), 0), 0);
  EXPECT_TRUE(IsContent(*view, kMiB + 100));
  // Neither do views made later.
  EXPECT_TRUE(IsContent((*source)->View(3 * kMiB, 10).value(), 3 * kMiB));
  std::byte byte;
  EXPECT_EQ((*source)->ReadAt(0, {&byte, 1}).code(), Code::kTruncated);
}

TEST_F(Snapshot, EachLoadHasBytesOfItsOwn) {
  const TestFile file;
  const auto source = *OpenFileSource(file.path());
  const std::vector<ByteRange> whole = {{0, kFileSize}};
  const Buffer one = (*source->Snapshot(whole))->View(0, kFileSize).value();
  const Buffer two = (*source->Snapshot(whole))->View(0, kFileSize).value();
  std::memset(one.mutable_bytes().data(), 'x', kFileSize);
  EXPECT_TRUE(IsContent(two));
  EXPECT_EQ(::truncate(file.path().c_str(), 0), 0);
  EXPECT_TRUE(IsContent(two));
  EXPECT_EQ(one.data()[kFileSize - 1], std::byte{'x'});
}

TEST_F(Snapshot, HoldsNobodyWhenItIsGone) {
  const TestFile file;
  (void)ViewOf(file.path());
  // Fails with EWOULDBLOCK under a lease.
  const UniqueFd fd(::open(file.path().c_str(), O_WRONLY | O_NONBLOCK));
  EXPECT_GE(fd.get(), 0);
}

TEST_F(Snapshot, WhatIsOpenForWritingHasNone) {
  const TestFile file;
  const UniqueFd writer(::open(file.path().c_str(), O_WRONLY | O_CLOEXEC));
  const Status status = SnapshotOf(file.path(), {{0, kFileSize}}).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_EQ(status.message(), "it is open for writing; of " + file.path());
}

TEST_F(Snapshot, WorksInSharedMemory) {
  const TestFile file(kFileSize, "/dev/shm");
  const Buffer view = ViewOf(file.path());
  ASSERT_EQ(view.size(), kFileSize);
  EXPECT_EQ(::truncate(file.path().c_str(), 0), 0);
  EXPECT_TRUE(IsContent(view));
}

TEST_F(Snapshot, ManyFilesAreBroughtInByOneThread) {
  std::vector<std::unique_ptr<TestFile>> files;
  std::vector<Buffer> views;
  for (int i = 0; i < 100; ++i) {
    files.push_back(std::make_unique<TestFile>(20'000 + i));
    views.push_back(ViewOf(files.back()->path(), 20'000 + i));
  }
  {
    std::vector<std::jthread> writers;
    for (int t = 0; t < 4; ++t) {
      writers.emplace_back([&, t] {
        for (size_t i = t; i < files.size(); i += 4) {
          EXPECT_EQ(::truncate(files[i]->path().c_str(), 0), 0);
        }
      });
    }
  }
  for (const Buffer& view : views) EXPECT_TRUE(IsContent(view));
}

// Threads write to a view by instructions and by system calls while its file is
// changed. Each thread has its own words on every page, and remembers the last
// value of each. All pages are written before the change, so that copying them,
// with the threads stopped, takes long.
TEST_F(Snapshot, NoWriteIsLostWhileTheFileChanges) {
  constexpr int kThreads = 3;
  constexpr int kRounds = 5;
  constexpr uint64_t kLarge = 16 * kMiB;
  constexpr uint64_t kSlots = kLarge / 64;
  for (int round = 0; round < kRounds; ++round) {
    const TestFile file(kLarge);
    const Buffer view = ViewOf(file.path(), kLarge);
    ASSERT_EQ(view.size(), kLarge);
    std::byte* const bytes = view.mutable_bytes().data();
    for (uint64_t i = 0; i < kLarge; i += 4096) bytes[i] = std::byte{1};
    std::atomic<bool> stop{false};
    std::atomic<bool> failed{false};
    std::atomic<int> started{0};
    std::vector<std::vector<uint64_t>> left(kThreads,
                                            std::vector<uint64_t>(kSlots, 0));
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        const UniqueFd zeros(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
        uint64_t random = static_cast<uint64_t>(t) + 1;
        ++started;
        while (!stop) {
          random = random * 6364136223846793005u + 1442695040888963407u;
          const uint64_t slot = (random >> 33) % kSlots;
          std::byte* const word = bytes + slot * 64 + 8 * (t + 1);
          *reinterpret_cast<volatile uint64_t*>(word) = random;
          left[t][slot] = random;
          if (t > 0) continue;
          const ssize_t got = ::read(zeros.get(), word, 8);
          // A call that fails has written nothing.
          if (got != 8 && (got != -1 || errno != EFAULT)) failed = true;
          if (got == 8) left[t][slot] = 0;
          if (*reinterpret_cast<volatile uint64_t*>(word) != left[t][slot]) {
            failed = true;
          }
        }
      });
    }
    while (started < kThreads) std::this_thread::yield();
    kChanges[round % 5].make(file.path());
    stop = true;
    threads.clear();
    EXPECT_FALSE(failed);
    int lost = 0;
    for (int t = 0; t < kThreads; ++t) {
      for (uint64_t slot = 0; slot < kSlots; ++slot) {
        if (t > 0 && left[t][slot] == 0) continue;
        uint64_t found;
        std::memcpy(&found, bytes + slot * 64 + 8 * (t + 1), 8);
        const bool untouched = t == 0 && found != 0 && left[t][slot] == 0;
        lost += !untouched && found != left[t][slot];
      }
    }
    EXPECT_EQ(lost, 0) << "round " << round;
  }
}

TEST_F(Snapshot, LoadsAndReleasesRaceWithWriters) {
  const TestFile file;
  std::atomic<bool> stop{false};
  std::jthread writer([&] {
    while (!stop) {
      const UniqueFd fd(::open(file.path().c_str(), O_RDWR | O_CLOEXEC));
      EXPECT_GE(fd.get(), 0);
    }
  });
  int snapshots = 0;
  for (int i = 0; i < 100'000 && snapshots < 10; ++i) {
    const auto source = SnapshotOf(file.path(), {{0, kFileSize}});
    if (!source.ok()) continue;  // The writer came first.
    ++snapshots;
    const Buffer view = (*source)->View(0, kFileSize).value();
    EXPECT_TRUE(IsContent(view));
  }
  stop = true;
  EXPECT_EQ(snapshots, 10);
}

// Runs `work` in a child process and returns its wait status.
int InChild(const std::function<bool()>& work) {
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(work() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST_F(Snapshot, AChildHasItToo) {
  const TestFile file;
  const Buffer view = ViewOf(file.path());
  view.mutable_bytes()[100] = std::byte{'w'};
  EXPECT_EQ(InChild([&] {
              if (::truncate(file.path().c_str(), 0) != 0) return false;
              if (view.data()[100] != std::byte{'w'}) return false;
              view.mutable_bytes()[100] = std::byte(ByteAt(100));
              if (!IsContent(view)) return false;
              // The child can make its own snapshots.
              const TestFile another;
              const Buffer own = ViewOf(another.path());
              return ::truncate(another.path().c_str(), 0) == 0 &&
                     IsContent(own);
            }),
            0);
  EXPECT_EQ(view.data()[100], std::byte{'w'});
}

TEST_F(Snapshot, ForksRaceWithLoads) {
  const TestFile file;
  std::atomic<bool> stop{false};
  std::vector<std::jthread> loaders;
  for (int t = 0; t < 2; ++t) {
    loaders.emplace_back([&] {
      while (!stop) {
        const auto source = SnapshotOf(file.path(), {{0, kFileSize}});
        if (source.ok()) {
          EXPECT_TRUE(IsContent((*source)->View(0, kFileSize).value()));
        }
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(InChild([] { return true; }), 0);
  }
  stop = true;
}

TEST_F(Snapshot, OutlivesItsDescriptors) {
  const TestFile file;
  struct statfs facts;
  ASSERT_EQ(::statfs(file.path().c_str(), &facts), 0);
  if (facts.f_type == OVERLAYFS_SUPER_MAGIC) {
    GTEST_SKIP() << "a mapping on overlay keeps another file open";
  }
  const TestFile other;
  EXPECT_EQ(InChild([&] {
              const Buffer view = ViewOf(file.path());
              ::syscall(SYS_close_range, 3u, ~0u, 0u);
              const UniqueFd reused(
                  ::open(other.path().c_str(), O_RDONLY | O_CLOEXEC));
              if (::truncate(file.path().c_str(), 0) != 0) return false;
              return IsContent(view) && ::fcntl(reused.get(), F_GETFD) >= 0;
            }),
            0);
}

TEST_F(Snapshot, AFileOfSomebodyElseHasNone) {
  if (::geteuid() != 0) GTEST_SKIP() << "root alone can be somebody else";
  const TestFile file;
  ASSERT_EQ(::chmod(file.path().c_str(), 0644), 0);
  EXPECT_EQ(
      InChild([&] {
        if (::setuid(65534) != 0) return false;
        return SnapshotOf(file.path(), {{0, kFileSize}}).status().code() ==
               Code::kUnsupported;
      }),
      0);
}

// A thread that waits in vfork(2) for its child. The child ends with this
// object.
class ThreadInVfork {
 public:
  ThreadInVfork() {
    EXPECT_EQ(::pipe2(ends_, O_CLOEXEC), 0);
    thread_ = std::jthread([this] {
      waits_ = true;
      const pid_t child = ::vfork();
      if (child == 0) {
        char none = 0;
        ::close(ends_[1]);
        (void)!::read(ends_[0], &none, 1);
        ::_exit(0);
      }
      ::waitpid(child, nullptr, 0);
    });
    while (!waits_) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ThreadInVfork(const ThreadInVfork&) = delete;
  ThreadInVfork& operator=(const ThreadInVfork&) = delete;
  ~ThreadInVfork() {
    ::close(ends_[1]);
    thread_.join();
    ::close(ends_[0]);
  }

 private:
  int ends_[2];
  std::atomic<bool> waits_{false};
  std::jthread thread_;
};

// Threads that count in the views. Each has its own view and increments one
// word on each page.
class CountingThreads {
 public:
  explicit CountingThreads(const std::vector<Buffer>& views)
      : views_(views), counts_(views.size()) {
    for (size_t t = 0; t < views_.size(); ++t) {
      std::byte* const bytes = views_[t].mutable_bytes().data();
      for (uint64_t at = 0; at < kCounted; at += 4096) {
        std::memset(bytes + at, 0, 8);
      }
      threads_.emplace_back([this, t, bytes] {
        for (; !stop_; ++counts_[t]) {
          for (uint64_t at = 0; at < kCounted; at += 4096) {
            auto* const word = reinterpret_cast<volatile uint64_t*>(bytes + at);
            *word = *word + 1;
          }
        }
      });
    }
  }

  // Ends the threads. Returns whether every write, and the file's content
  // beside the counters, is still there.
  bool NothingIsLost() {
    stop_ = true;
    threads_.clear();
    bool right = true;
    for (size_t t = 0; t < views_.size(); ++t) {
      std::byte* const bytes = views_[t].mutable_bytes().data();
      for (uint64_t at = 0; at < kCounted; at += 4096) {
        uint64_t found = 0;
        std::memcpy(&found, bytes + at, 8);
        right = right && found == counts_[t];
        for (uint64_t i = at; i < at + 8; ++i) bytes[i] = std::byte(ByteAt(i));
      }
      right = right && IsContent(views_[t]);
    }
    return right;
  }

 private:
  static constexpr uint64_t kCounted = kFileSize - 8;
  const std::vector<Buffer>& views_;
  std::vector<uint64_t> counts_;
  std::atomic<bool> stop_{false};
  std::vector<std::jthread> threads_;
};

// Changes the file of several loads while a thread waits for a child that
// shares the memory.
void ChangeBesideVfork(const std::function<void(const std::string&)>& change) {
  const TestFile file;
  std::vector<Buffer> views;
  for (int i = 0; i < 4; ++i) views.push_back(ViewOf(file.path()));
  const ThreadInVfork hanging;
  CountingThreads threads(views);
  const auto begin = std::chrono::steady_clock::now();
  change(file.path());
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_TRUE(threads.NothingIsLost());
  EXPECT_LT(took, std::chrono::seconds(4));
}

TEST_F(Snapshot, AThreadInVforkHoldsNoWriter) {
  ChangeBesideVfork(kChanges[1].make);
}

TEST_F(Snapshot, AThreadInVforkHoldsNoFork) {
  ChangeBesideVfork([](const std::string& path) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
    kChanges[1].make(path);
  });
}

// Ends the process if it calls ptrace(2).
bool RefusePtrace() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(code), code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                   SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

bool BecomeNobody() { return ::setgid(65534) == 0 && ::setuid(65534) == 0; }

// Ways for a program to drop privileges after loading.
struct Restriction {
  const char* name;
  bool (*take)();
  // Whether to drop root before the load, because root is exempt.
  bool as_user;
};

constexpr Restriction kRestrictions[] = {
    {"AnotherUser", BecomeNobody, false},
    {"NotDumpable",
     [] { return BecomeNobody() && ::prctl(PR_SET_DUMPABLE, 0) == 0; }, false},
    {"PtraceKills", RefusePtrace, false},
    {"NoProcesses",
     [] {
       const rlimit one{1, 1};
       return ::setrlimit(RLIMIT_NPROC, &one) == 0;
     },
     true},
};

class RestrictedSnapshot : public Snapshot,
                           public testing::WithParamInterface<Restriction> {};

TEST_P(RestrictedSnapshot, LosesNoWrite) {
  if (::geteuid() != 0) GTEST_SKIP() << "root alone can be somebody else";
  const TestFile file;
  if (GetParam().as_user) {
    ASSERT_EQ(::chown(file.path().c_str(), 65534, 65534), 0);
  }
  int begin[2];
  ASSERT_EQ(::pipe2(begin, O_CLOEXEC), 0);
  const pid_t loader = ::fork();
  if (loader == 0) {
    // Another process changes the file when this one tells it to.
    const pid_t writer = ::fork();
    if (writer == 0) {
      char word = 0;
      if (::read(begin[0], &word, 1) != 1) std::_Exit(1);
      kChanges[1].make(file.path());
      std::_Exit(0);
    }
    if (GetParam().as_user &&
        !(BecomeNobody() && ::prctl(PR_SET_DUMPABLE, 1) == 0)) {
      std::_Exit(2);
    }
    std::vector<Buffer> views;
    for (int i = 0; i < 6; ++i) views.push_back(ViewOf(file.path()));
    if (views.back().size() != kFileSize) std::_Exit(3);
    CountingThreads threads(views);
    if (!GetParam().take()) std::_Exit(4);
    if (::write(begin[1], "x", 1) != 1) std::_Exit(5);
    int status = 0;
    if (::waitpid(writer, &status, 0) != writer || status != 0) std::_Exit(6);
    std::_Exit(threads.NothingIsLost() ? 0 : 7);
  }
  ::close(begin[0]);
  ::close(begin[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(loader, &status, 0), loader);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Rights, RestrictedSnapshot, testing::ValuesIn(kRestrictions),
    [](const testing::TestParamInfo<Restriction>& test_case) {
      return std::string(test_case.param.name);
    });

// The child would have a mapping without a lease.
TEST_F(Snapshot, AForkThatNobodyIsToldOfHasNone) {
  const TestFile file;
  const Buffer view = ViewOf(file.path());
  ASSERT_EQ(view.size(), kFileSize);
  const auto child = static_cast<pid_t>(
      ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0));
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    const volatile std::byte* first = view.data();
    ::_exit(*first == std::byte{0} ? 1 : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(IsContent(view));
}

TEST_F(Snapshot, IsForWhoIsTracedToo) {
  const TestFile file;
  EXPECT_EQ(InChild([&] {
              const pid_t parent = ::getpid();
              int ends[2];
              if (::pipe(ends) != 0) return false;
              const pid_t tracer = ::fork();
              if (tracer == 0) {
                const long seized =
                    ::ptrace(PTRACE_SEIZE, parent, nullptr, nullptr);
                (void)!::write(ends[1], seized == 0 ? "y" : "n", 1);
                ::pause();
                std::_Exit(0);
              }
              char answer = 0;
              (void)!::read(ends[0], &answer, 1);
              const std::vector<Buffer> views = {ViewOf(file.path())};
              bool right = answer == 'y' && views.front().size() == kFileSize;
              if (right) {
                CountingThreads threads(views);
                kChanges[1].make(file.path());
                right = threads.NothingIsLost();
              }
              ::kill(tracer, SIGKILL);
              ::waitpid(tracer, nullptr, 0);
              return right;
            }),
            0);
}

// A system call that writes to a view is done whole, or fails with EFAULT.
TEST_F(Snapshot, SystemCallsThatWriteToAViewLoseNothing) {
  const TestFile file;
  const Buffer view = ViewOf(file.path());
  ASSERT_EQ(view.size(), kFileSize);
  std::byte* const bytes = view.mutable_bytes().data();
  std::atomic<bool> stop = false;
  std::vector<std::byte> last(kFileSize / 4096);
  for (size_t page = 0; page < last.size(); ++page)
    last[page] = bytes[page * 4096];
  std::atomic<bool> right = true;
  std::jthread writer([&] {
    const UniqueFd zero(::memfd_create("rounds", MFD_CLOEXEC));
    for (uint8_t round = 1; !stop && right; ++round) {
      if (::pwrite(zero.get(), &round, 1, 0) != 1) right = false;
      for (size_t page = 0; page < last.size(); ++page) {
        const ssize_t got = ::pread(zero.get(), bytes + page * 4096, 1, 0);
        if (got == 1) {
          last[page] = std::byte(round);
        } else if (got != -1 || errno != EFAULT) {
          right = false;
        }
      }
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  kChanges[1].make(file.path());
  stop = true;
  writer.join();
  EXPECT_TRUE(right);
  for (size_t page = 0; page < last.size(); ++page) {
    ASSERT_EQ(bytes[page * 4096], last[page]) << page;
  }
}

}  // namespace
}  // namespace haulway
