#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "arena/region.h"
#include "base/memory_file.h"
#include "haulway/arena.h"
#include "haulway/worker.h"

namespace haulway {

namespace {

bool ProcessExists(uint32_t pid) {
  return ::access(fmt::format("/proc/{}", pid).c_str(), F_OK) == 0;
}

// Reads the statistics from the header. Returns nullopt if the file is not an
// arena or is gone.
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
  std::map<ino_t, ArenaHolding> found;
  HAULWAY_TRY(VisitMemoryFiles(
      fmt::format("{} (deleted)", arena::kArenaLabel),
      [&](uint32_t pid, const std::string& path) {
        struct stat facts;
        if (::stat(path.c_str(), &facts) != 0) return;
        auto& holding = found[facts.st_ino];
        if (holding.holders.empty()) {
          const std::optional<ArenaStats> stats = ReadStats(path);
          if (!stats.has_value()) {
            found.erase(facts.st_ino);
            return;
          }
          holding.stats = *stats;
          holding.orphaned = !ProcessExists(stats->creator);
        }
        if (std::ranges::find(holding.holders, pid) == holding.holders.end()) {
          holding.holders.push_back(pid);
        }
      }));
  std::vector<ArenaHolding> arenas;
  for (auto& [inode, holding] : found) {
    std::ranges::sort(holding.holders);
    arenas.push_back(std::move(holding));
  }
  return arenas;
}

}  // namespace haulway
