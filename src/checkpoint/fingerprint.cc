#include "checkpoint/fingerprint.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/text.h"

namespace haulway {

namespace {

// Returns the version of the local file that has these bytes; empty if none.
std::string VersionAt(const ByteSource& source, uint64_t offset,
                      uint64_t length) {
  const auto at = source.InFile(offset, length);
  struct stat facts;
  if (!at.has_value() || ::fstat(at->fd, &facts) != 0 ||
      !S_ISREG(facts.st_mode)) {
    return "";
  }
  // A program may set the time of the last writing, but not this one.
  return fmt::format("{} {}.{:09}", facts.st_ino, facts.st_ctim.tv_sec,
                     facts.st_ctim.tv_nsec);
}

std::string VersionOnServer(const ByteSource& source) {
  const auto stats = source.remote_stats();
  return stats.has_value() ? stats->version : "";
}

Result<std::string> Line(std::string_view name, uint64_t bytes,
                         std::string_view version) {
  if (!version.empty()) {
    return fmt::format("{} {} {}\n", Escape(name), bytes, Escape(version));
  }
  return Status(Code::kUnsupported,
                "nothing tells whether it changes from one run to the next: "
                "expected a file, or an object with an ETag or a time of "
                "change")
      .Of(name);
}

}  // namespace

Result<std::string> FingerprintOfFiles(const CheckpointIndex& index,
                                       const ByteSource& source,
                                       const ByteSource& opened) {
  if (index.parts.empty()) {
    std::string version =
        VersionAt(source, 0, std::min<uint64_t>(1, opened.size()));
    if (version.empty()) version = VersionOnServer(opened);
    return Line(opened.name(), opened.size(), version);
  }
  std::string text;
  for (const Part& part : index.parts) {
    std::string version =
        VersionAt(source, part.offset, std::min<uint64_t>(1, part.bytes));
    if (version.empty()) {
      HAULWAY_ASSIGN(const auto file, opened.OpenNeighbour(part.name));
      version = VersionOnServer(*file);
    }
    HAULWAY_ASSIGN(const std::string line,
                   Line(part.name, part.bytes, version));
    text += line;
  }
  return text;
}

}  // namespace haulway
