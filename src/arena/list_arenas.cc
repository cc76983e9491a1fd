#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "arena/region.h"
#include "haulway/arena.h"
#include "haulway/worker.h"

namespace haulway {

namespace {

using Directory = std::unique_ptr<DIR, int (*)(DIR*)>;

bool IsNumber(const char* text) {
  if (*text == '\0') return false;
  for (; *text != '\0'; ++text) {
    if (std::isdigit(static_cast<unsigned char>(*text)) == 0) return false;
  }
  return true;
}

bool ProcessExists(uint32_t pid) {
  return ::access(fmt::format("/proc/{}", pid).c_str(), F_OK) == 0;
}

// What the header says now; nullopt if it is no arena, or gone.
std::optional<ArenaStats> ReadStats(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return std::nullopt;
  const Result<arena::ArenaFacts> facts = arena::ReadFacts(fd.get());
  if (!facts.ok()) return std::nullopt;
  void* page =
      ::mmap(nullptr, arena::kHeaderBytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) return std::nullopt;
  const ArenaStats stats =
      arena::MakeStats(*facts, *static_cast<const arena::ArenaHeader*>(page));
  (void)::munmap(page, arena::kHeaderBytes);
  return stats;
}

}  // namespace

Result<std::vector<ArenaHolding>> ListArenas() {
  const Directory processes(::opendir("/proc"), &::closedir);
  if (processes == nullptr)
    return Status::FromErrno(errno, "cannot read /proc");
  const std::string target =
      fmt::format("/memfd:{} (deleted)", arena::kArenaLabel);
  std::map<ino_t, ArenaHolding> found;
  while (const dirent* process = ::readdir(processes.get())) {
    if (!IsNumber(process->d_name)) continue;
    const std::string folder = fmt::format("/proc/{}/fd", process->d_name);
    // Processes of other users cannot be looked into.
    const Directory files(::opendir(folder.c_str()), &::closedir);
    if (files == nullptr) continue;
    const auto pid = static_cast<uint32_t>(std::stoul(process->d_name));
    while (const dirent* file = ::readdir(files.get())) {
      const std::string path = fmt::format("{}/{}", folder, file->d_name);
      char link[256];
      const ssize_t length = ::readlink(path.c_str(), link, sizeof(link));
      if (length < 0 || target != std::string_view(link, length)) continue;
      struct stat facts;
      if (::stat(path.c_str(), &facts) != 0) continue;
      auto& holding = found[facts.st_ino];
      if (holding.holders.empty()) {
        const std::optional<ArenaStats> stats = ReadStats(path);
        if (!stats.has_value()) {
          found.erase(facts.st_ino);
          continue;
        }
        holding.stats = *stats;
        holding.orphaned = !ProcessExists(stats->creator);
      }
      if (std::ranges::find(holding.holders, pid) == holding.holders.end()) {
        holding.holders.push_back(pid);
      }
    }
  }
  std::vector<ArenaHolding> arenas;
  for (auto& [inode, holding] : found) {
    std::ranges::sort(holding.holders);
    arenas.push_back(std::move(holding));
  }
  return arenas;
}

}  // namespace haulway
