#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/memory_file.h"
#include "haulway/publish.h"
#include "publish/name_folder.h"
#include "publish/publication_file.h"

namespace haulway {

namespace {

using publish::NameFolder;
using publish::PublicationFile;

// Returns whether a subscriber holds the file: /proc lists the locks of an open
// file.
bool IsSubscriber(uint32_t pid, const std::string& path) {
  std::ifstream in(
      fmt::format("/proc/{}/fdinfo{}", pid, path.substr(path.rfind('/'))));
  const std::string wanted = fmt::format(" {0} {0}", publish::kSubscriberLock);
  std::string line;
  while (std::getline(in, line)) {
    if (line.starts_with("lock:") && line.ends_with(wanted)) return true;
  }
  return false;
}

// Reads the facts from the header. Returns nullopt if the file is not a
// publication or is gone.
std::optional<PublicationFacts> ReadPublication(const std::string& path,
                                                uint64_t held_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return std::nullopt;
  const auto file = PublicationFile::Open(fd.get(), /*writable=*/false);
  if (!file.ok() || !publish::CheckName((*file)->name()).ok()) {
    return std::nullopt;
  }
  const uint64_t newest = (*file)->header().newest.load();
  PublicationFacts facts;
  facts.name = (*file)->name();
  facts.version = publish::VersionOf(newest);
  facts.held_bytes = held_bytes;
  if (facts.version != 0 && publish::SlotOf(newest) < publish::kSlots) {
    facts.bytes = (*file)->slot(publish::SlotOf(newest)).message_bytes.load();
  }
  if ((*file)->has_publisher()) {
    facts.publisher = (*file)->header().publisher.load();
  }
  return facts;
}

}  // namespace

Result<std::vector<PublicationFacts>> ListPublications() {
  std::map<ino_t, PublicationFacts> found;
  HAULWAY_TRY(VisitMemoryFiles(
      publish::kLabel, [&](uint32_t pid, const std::string& path) {
        struct stat facts;
        if (::stat(path.c_str(), &facts) != 0) return;
        if (!found.contains(facts.st_ino)) {
          auto read = ReadPublication(
              path, static_cast<uint64_t>(facts.st_blocks) * 512);
          if (!read.has_value()) return;
          found[facts.st_ino] = std::move(*read);
        }
        if (IsSubscriber(pid, path)) ++found[facts.st_ino].readers;
      }));
  std::vector<PublicationFacts> publications;
  for (auto& [inode, facts] : found) publications.push_back(std::move(facts));
  std::ranges::sort(publications, {}, &PublicationFacts::name);
  return publications;
}

Result<std::vector<std::string>> SweepPublications() {
  HAULWAY_ASSIGN(const NameFolder folder,
                 NameFolder::Open(NameFolder::Access::kAlone));
  return publish::RemoveDeadNames(folder, "");
}

}  // namespace haulway
