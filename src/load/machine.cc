#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>

#include "base/posix.h"
#include "haulway/options.h"
#include "load/choose_io.h"

namespace haulway {

namespace {

// Returns the first line of a small file, or an empty string if the file cannot
// be read.
std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::optional<uint64_t> Number(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

// Reads MemAvailable from /proc/meminfo.
std::optional<uint64_t> SystemMemory() {
  std::ifstream in("/proc/meminfo");
  std::string line;
  constexpr std::string_view kName = "MemAvailable:";
  while (std::getline(in, line)) {
    if (!line.starts_with(kName)) continue;
    std::string_view rest = std::string_view(line).substr(kName.size());
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    const auto kib = Number(rest);
    if (kib.has_value()) return *kib * kKiB;
  }
  return std::nullopt;
}

// Returns how many bytes the cgroup at `folder` can still allocate. The page
// cache that is charged to the group counts as free.
std::optional<uint64_t> GroupMemory(const std::string& folder) {
  const auto most = Number(FirstLine(folder + "/memory.max"));
  const auto now = Number(FirstLine(folder + "/memory.current"));
  if (!most.has_value() || !now.has_value()) return std::nullopt;
  uint64_t cached = 0;
  std::ifstream in(folder + "/memory.stat");
  std::string name;
  uint64_t value = 0;
  while (in >> name >> value) {
    if (name == "file") cached = value;
  }
  const uint64_t held = *now - std::min(*now, cached);
  return *most - std::min(*most, held);
}

}  // namespace

Machine LookAtMachine() {
  Machine machine;
  machine.cpus = UsableCpus();
  machine.available_memory = SystemMemory().value_or(UINT64_MAX);
  for (const std::string& folder : CgroupFolders()) {
    const auto most = GroupMemory(folder);
    if (most.has_value()) {
      machine.available_memory = std::min(machine.available_memory, *most);
    }
  }
  return machine;
}

}  // namespace haulway
