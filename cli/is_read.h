// Keeps verbs from overwriting the files that they read.

#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "haulway/checkpoint.h"
#include "haulway/open.h"
#include "haulway/source.h"

namespace haulway::cli {

// Returns whether both names lead to one local file, which exists.
inline bool IsSame(const std::string& a, const std::string& b) {
  std::error_code none;
  return !a.empty() && !b.empty() && std::filesystem::equivalent(a, b, none);
}

// Returns whether `out` is a local file of the checkpoint that was opened as
// `file`.
inline bool IsReadFrom(const Checkpoint& checkpoint, const std::string& file,
                       const std::string& out) {
  // A folder, or a name with "file://", does not name the opened file directly.
  const auto there = checkpoint.source().InFile(0, checkpoint.source().size());
  if (there.has_value() &&
      IsSame(fmt::format("/proc/self/fd/{}", there->fd), out)) {
    return true;
  }
  std::filesystem::path folder = file;
  if (!IsFolder(file)) folder = folder.parent_path();
  return IsSame(file, out) ||
         std::ranges::any_of(checkpoint.index().parts, [&](const Part& part) {
           return IsSame(folder / part.name, out);
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
