#include "haulway/machine.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "haulway/options.h"

namespace haulway {
namespace {

// A root folder with some of the system's files.
class Root {
 public:
  Root() {
    std::string name = testing::TempDir() + "haulway-machine-XXXXXX";
    path_ = ::mkdtemp(name.data());
    Add({{"/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:  1048576 kB\n"}});
  }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;
  ~Root() { std::filesystem::remove_all(path_); }

  void Add(const std::map<std::string, std::string>& files) {
    for (const auto& [name, text] : files) {
      const std::filesystem::path file = path_ + name;
      std::filesystem::create_directories(file.parent_path());
      std::ofstream(file) << text;
    }
  }
  uint64_t memory() const { return LookAtMachine(path_).available_memory; }
  int cpus() const { return UsableCpus(path_); }

 private:
  std::string path_;
};

std::map<std::string, std::string> Version2(const std::string& folder,
                                            uint64_t most, uint64_t now) {
  return {{folder + "/memory.max", std::to_string(most) + "\n"},
          {folder + "/memory.current", std::to_string(now) + "\n"},
          {folder + "/memory.stat", "anon 5\nfile 10\n"},
          {folder + "/cpu.max", "50000 100000\n"}};
}

std::map<std::string, std::string> Version1(const std::string& group,
                                            uint64_t most, uint64_t now) {
  const std::string memory = "/sys/fs/cgroup/memory" + group + "/memory.";
  const std::string cpu = "/sys/fs/cgroup/cpu,cpuacct" + group;
  return {{memory + "limit_in_bytes", std::to_string(most) + "\n"},
          {memory + "usage_in_bytes", std::to_string(now) + "\n"},
          {memory + "stat", "cache 1\nhierarchical_memory_limit " +
                                std::to_string(most) + "\ntotal_cache 10\n"},
          {cpu + "/cpu.cfs_quota_us", "50000\n"},
          {cpu + "/cpu.cfs_period_us", "100000\n"}};
}

constexpr char kOldGroups[] =
    "9:memory:/a/b\n5:cpu,cpuacct:/a/b\n4:cpuset:/c\n1:name=systemd:/\n0::/\n";
constexpr char kUnlimited[] = "9223372036854771712\n";

TEST(Machine, HasMemoryAndACpu) {
  EXPECT_GE(LookAtMachine().cpus, 1);
  EXPECT_GT(LookAtMachine().available_memory, kMiB);
}

TEST(Machine, WithoutGroupsTheSystemCounts) {
  const Root root;
  EXPECT_EQ(root.memory(), kGiB);
  EXPECT_EQ(root.cpus(), UsableCpus("/nonexistent"));
}

TEST(Machine, TheSmallestLimitOfAGroupAndThoseAboveCounts) {
  Root root;
  root.Add({{"/proc/self/cgroup", "0::/a/b/c\n"},
            {"/sys/fs/cgroup/a/b/c/memory.max", "max\n"},
            {"/sys/fs/cgroup/a/b/c/memory.current", "1\n"},
            {"/sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n"}});
  EXPECT_EQ(root.memory(), kGiB);
  root.Add(Version2("/sys/fs/cgroup/a", 1000, 60));
  EXPECT_EQ(root.memory(), 950U);  // The page cache counts as free.
  EXPECT_EQ(root.cpus(), 1);
  root.Add(Version2("/sys/fs/cgroup/a/b", 100, 60));
  EXPECT_EQ(root.memory(), 50U);
  root.Add(Version2("/sys/fs/cgroup/a/b", 100, 600));
  EXPECT_EQ(root.memory(), 0U);
}

TEST(Machine, Version1IsKnownToo) {
  Root root;
  root.Add({{"/proc/self/cgroup", kOldGroups}});
  root.Add({{"/sys/fs/cgroup/memory/a/b/tasks", ""},
            {"/sys/fs/cgroup/cpu,cpuacct/a/b/tasks", ""}});
  root.Add(Version1("/a", 1000, 60));
  EXPECT_EQ(root.memory(), 950U);
  EXPECT_EQ(root.cpus(), 1);
  root.Add(Version1("/a/b", 100, 60));
  EXPECT_EQ(root.memory(), 50U);
  root.Add({{"/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n"}});
  EXPECT_EQ(root.cpus(), 1);
  root.Add({{"/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n"}});
  EXPECT_EQ(root.cpus(), UsableCpus("/nonexistent"));
}

TEST(Machine, ALimitAboveTheMountOfVersion1IsInTheStatistics) {
  Root root;
  root.Add({{"/proc/self/cgroup", kOldGroups}});
  root.Add(Version1("", 1000, 60));
  root.Add({{"/sys/fs/cgroup/memory/memory.limit_in_bytes", kUnlimited}});
  EXPECT_EQ(root.memory(), 950U);
}

// A container has its own group at the mount point, and perhaps groups below
// it, while /proc/self/cgroup names them from the top.
TEST(Machine, AGroupIsFoundInAContainer) {
  for (const char* own : {"0::/docker/x\n", kOldGroups}) {
    Root root;
    root.Add({{"/proc/self/cgroup", own}});
    root.Add(Version2("/sys/fs/cgroup", 1000, 60));
    root.Add(Version1("", 1000, 60));
    EXPECT_EQ(root.memory(), 950U);
    EXPECT_EQ(root.cpus(), 1);
  }
  Root root;
  root.Add({{"/proc/self/cgroup", "0::/docker/x/child\n"}});
  root.Add(Version2("/sys/fs/cgroup", 1000, 60));
  root.Add(Version2("/sys/fs/cgroup/child", 100, 60));
  EXPECT_EQ(root.memory(), 50U);
}

TEST(Machine, TheLimitOfAddressesCounts) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  Root root;
  root.Add({{"/proc/self/statm", "0 1 2\n"}});
  rlimit limit = before;
  limit.rlim_cur = kGiB / 2;
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  EXPECT_EQ(root.memory(), kGiB / 2);
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
}

}  // namespace
}  // namespace haulway
