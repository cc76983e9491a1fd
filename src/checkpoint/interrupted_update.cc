#include "checkpoint/interrupted_update.h"

#include <fmt/format.h>
#include <simdjson.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <system_error>

#include "base/posix.h"
#include "base/text.h"
#include "haulway/source.h"
#include "io/temporary_file.h"

namespace haulway {

namespace {

// A marker is a few bytes.
constexpr uint64_t kLongestMarker = 64 * kKiB;

// Returns the version in the text of a marker.
std::optional<std::string> VersionIn(std::string_view text) {
  simdjson::dom::parser parser;
  simdjson::dom::object object;
  simdjson::dom::element found;
  const simdjson::padded_string json(text);
  if (parser.parse(json).get(object) != simdjson::SUCCESS ||
      object["version"].get(found) != simdjson::SUCCESS) {
    return std::nullopt;
  }
  std::string_view version;
  if (found.get(version) == simdjson::SUCCESS && !version.empty()) {
    return std::string(version);
  }
  uint64_t number = 0;
  if (found.get(number) != simdjson::SUCCESS) return std::nullopt;
  return fmt::format("{:06}", number);
}

}  // namespace

bool IsUpdateInterrupted(const std::string& folder) {
  struct stat facts;
  std::string sync = folder;
  sync.append("/").append(kSyncFolder);
  // Nearly every folder that is opened has none.
  if (::stat(sync.c_str(), &facts) != 0) return false;
  const auto has = [&](std::string_view name) {
    return ::stat(fmt::format("{}/{}", sync, name).c_str(), &facts) == 0;
  };
  return (has(kSyncUpdate) || has(kSyncHeld)) && !has(kSyncMarker);
}

Result<std::optional<std::string>> ReadSyncMarker(const std::string& folder) {
  const std::string path =
      fmt::format("{}/{}/{}", folder, kSyncFolder, kSyncMarker);
  HAULWAY_ASSIGN(const auto text, ReadSmallFile(path, kLongestMarker));
  if (!text.has_value()) return std::optional<std::string>();
  auto version = VersionIn(*text);
  if (version.has_value()) return version;
  return Status(
             Code::kCorrupt,
             "the file states no version: expected {\"version\": \"000001\"}")
      .Of(path);
}

Status CheckNotInterrupted(const std::string& path) {
  std::string folder = path;
  struct stat facts;
  bool is_there = ::lstat(path.c_str(), &facts) == 0;
  const bool is_link = is_there && S_ISLNK(facts.st_mode);
  if (is_link) is_there = ::stat(path.c_str(), &facts) == 0;
  if (is_there && !S_ISDIR(facts.st_mode)) {
    std::error_code error;
    if (is_link) {  // The file lies in another folder.
      const auto file = std::filesystem::canonical(path, error);
      if (!error) HAULWAY_TRY(CheckNotInterrupted(file.string()));
    }
    folder = FolderOfPath(path);
  }
  if (!IsUpdateInterrupted(folder)) return Status();
  return Status(Code::kTruncated,
                fmt::format("folder {} was interrupted while a version of "
                            "weights was applied to it, or is being changed: "
                            "call haulway.delta.apply() or haulway delta apply "
                            "for it again, which ends that",
                            QuotePath(folder)));
}

}  // namespace haulway
