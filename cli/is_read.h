// Keeps verbs from overwriting the files that they read.

#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "haulway/checkpoint.h"
#include "haulway/open.h"
#include "haulway/source.h"

namespace haulway::cli {

inline bool IsSame(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Returns whether `out` is a local file of the checkpoint that was opened as
// `file`.
inline bool IsReadFrom(const Checkpoint& checkpoint, const std::string& file,
                       const std::string& out) {
  struct stat target, one;
  if (::stat(out.c_str(), &target) != 0) return false;
  const auto is_at = [&](const std::string& path) {
    return ::stat(path.c_str(), &one) == 0 && IsSame(target, one);
  };
  // A folder, or a name with "file://", does not name the opened file directly.
  const auto there = checkpoint.source().InFile(0, checkpoint.source().size());
  if (there.has_value() && ::fstat(there->fd, &one) == 0 &&
      IsSame(target, one)) {
    return true;
  }
  std::filesystem::path folder = file;
  if (!IsFolder(file)) folder = folder.parent_path();
  return is_at(file) ||
         std::ranges::any_of(checkpoint.index().parts, [&](const Part& part) {
           return is_at(folder / part.name);
         });
}

inline Status WouldOverwrite(const std::string& out) {
  return Status(Code::kInvalidArgument,
                "a file that is read would be overwritten")
      .Of(out);
}

// Fails if writing `out` would overwrite such a file.
inline Status CheckNotRead(const Checkpoint& checkpoint,
                           const std::string& file, const std::string& out) {
  return IsReadFrom(checkpoint, file, out) ? WouldOverwrite(out) : Status();
}

}  // namespace haulway::cli
