// The listing of a folder with the files of the processes of a training, as a
// source that a format recognises.
//
// A codec: no I/O.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/status.h"

namespace haulway::ranks {

enum class ListKind : uint8_t { kTorch, kDeepSpeed };

// `files`: paths down from the folder, without NUL.
std::string EncodeRankList(ListKind kind, std::span<const std::string> files);

bool IsTorchList(std::span<const std::byte> head);
bool IsDeepSpeedList(std::span<const std::byte> head);

// Fails with kCorrupt for bytes that are no such listing.
Result<std::vector<std::string>> ParseRankList(
    std::span<const std::byte> bytes);

}  // namespace haulway::ranks
