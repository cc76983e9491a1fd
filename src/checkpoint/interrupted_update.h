// A folder to which versions of weights are applied, and how an update that was
// interrupted is seen.
//
// SGLang keeps `.weight_sync/state.json`, which states the version that the
// folder holds, and so do we. `.weight_sync/haulway` is there while an update
// changes the folder, `.weight_sync/haulway-version` until all of them have
// ended, and meanwhile `state.json` is not.

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "haulway/status.h"

namespace haulway {

inline constexpr std::string_view kSyncFolder = ".weight_sync";
inline constexpr std::string_view kSyncMarker = "state.json";
inline constexpr std::string_view kSyncUpdate = "haulway";
inline constexpr std::string_view kSyncHeld = "haulway-version";

// Returns whether an update of the local folder was interrupted, or goes on.
bool IsUpdateInterrupted(const std::string& folder);

// Returns the version that the local folder states there; nullopt if it states
// none. Fails with kCorrupt if the file that states it is damaged.
Result<std::optional<std::string>> ReadSyncMarker(const std::string& folder);

// Fails with kTruncated, and says how to go on, if the local file or folder
// `path` is, or is in, a folder whose update was interrupted.
Status CheckNotInterrupted(const std::string& path);

}  // namespace haulway
