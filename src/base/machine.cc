// Reads the limits of this process and its groups.
//
// Design: a limit of any group that the process is in, or that is above one of
// them, applies. Both versions of cgroups may be in use at once, one controller
// in each. The files are read at each use, which takes some ten microseconds.
// /proc/self/mountinfo, which says where groups are mounted, was left out: it
// may have thousands of lines.

#include "haulway/machine.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/page_bytes.h"
#include "haulway/options.h"

namespace haulway {

namespace {

// The folder of a group of version 1 or 2.
struct Group {
  std::string folder;
  bool is_version_2;
};

// Returns the folders of this process's group for a controller, and of those
// above it (cgroups(7)).
std::vector<Group> GroupsOf(const std::string& controller,
                            const std::string& root) {
  std::vector<Group> found;
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    // A number, controllers, and the group. Version 2 has no controllers.
    const size_t first = line.find(':') + 1;
    const size_t second = line.find(':', first);
    if (first == 0 || second == std::string::npos) continue;
    const std::string controllers = line.substr(first, second - first);
    const bool is_version_2 = controllers.empty();
    if (!is_version_2 &&
        ("," + controllers + ",").find("," + controller + ",") ==
            std::string::npos) {
      continue;
    }
    const std::string mount =
        root + "/sys/fs/cgroup" + (is_version_2 ? "" : "/" + controllers);
    // A container may have its own group at the mount point, while its name
    // begins at the topmost group.
    std::string group = line.substr(second + 1);
    while (group.size() > 1 && !std::filesystem::exists(mount + group)) {
      group.erase(0, std::min(group.find('/', 1), group.size()));
    }
    for (; group.size() > 1; group.resize(group.rfind('/'))) {
      found.push_back({mount + group, is_version_2});
    }
    found.push_back({mount, is_version_2});
  }
  return found;
}

std::optional<uint64_t> NumberIn(const std::string& path) {
  std::ifstream in(path);
  uint64_t number = 0;
  // "max" in place of a number means that there is no limit.
  if (!(in >> number)) return std::nullopt;
  return number;
}

// Returns the value of a name in a file with a name and a value in each line.
std::optional<uint64_t> ValueIn(const std::string& path,
                                std::string_view wanted) {
  std::ifstream in(path);
  std::string name;
  for (std::string line; std::getline(in, line);) {
    uint64_t value = 0;
    std::istringstream words(line);
    if (words >> name >> value && name == wanted) return value;
  }
  return std::nullopt;
}

// Returns how many bytes a group can still allocate. The page cache that is
// charged to it counts as free.
uint64_t MemoryOf(const Group& group) {
  const bool is_new = group.is_version_2;
  const std::string name = group.folder + "/memory.";
  const std::string stat = name + "stat";
  auto most = NumberIn(name + (is_new ? "max" : "limit_in_bytes"));
  const auto now = NumberIn(name + (is_new ? "current" : "usage_in_bytes"));
  if (!most.has_value() || !now.has_value()) return UINT64_MAX;
  if (!is_new) {
    // Groups above the mount point are known by their limit alone.
    most = std::min(
        *most, ValueIn(stat, "hierarchical_memory_limit").value_or(UINT64_MAX));
  }
  const uint64_t cached =
      ValueIn(stat, is_new ? "file" : "total_cache").value_or(0);
  const uint64_t held = *now - std::min(*now, cached);
  return *most - std::min(*most, held);
}

// Returns how many CPUs a group's quota allows, rounded up.
int CpusOf(const Group& group) {
  int64_t quota = 0;
  int64_t period = 0;
  if (group.is_version_2) {
    std::ifstream(group.folder + "/cpu.max") >> quota >> period;
  } else {
    std::ifstream(group.folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(group.folder + "/cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return INT_MAX;
  return static_cast<int>(std::min<int64_t>(
      INT_MAX, quota / period + (quota % period != 0 ? 1 : 0)));
}

// Returns how many bytes RLIMIT_AS leaves.
uint64_t AddressSpace(const std::string& root) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return UINT64_MAX;
  }
  const uint64_t used =
      NumberIn(root + "/proc/self/statm").value_or(0) * PageBytes();
  return limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, used);
}

}  // namespace

Machine LookAtMachine(const std::string& root) {
  Machine machine{UsableCpus(root), AddressSpace(root)};
  const auto free = ValueIn(root + "/proc/meminfo", "MemAvailable:");
  if (free.has_value()) {
    machine.available_memory = std::min(machine.available_memory, *free * kKiB);
  }
  for (const Group& group : GroupsOf("memory", root)) {
    machine.available_memory =
        std::min(machine.available_memory, MemoryOf(group));
  }
  return machine;
}

int UsableCpus(const std::string& root) {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = 1;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) cpus = CPU_COUNT(&set);
  for (const Group& group : GroupsOf("cpu", root)) {
    cpus = std::min(cpus, CpusOf(group));
  }
  return std::max(1, cpus);
}

}  // namespace haulway
