// Defaults for formats without units or digests, and what all reports say.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "haulway/format.h"
#include "haulway/verify.h"

namespace haulway {

Result<uint64_t> FormatReader::UnitBytes(uint32_t,
                                         std::span<const std::byte>) const {
  return uint64_t{0};
}

Result<std::vector<PayloadDigest>> FormatReader::Digests(
    uint32_t, std::span<const std::byte>, std::span<const std::byte>) const {
  return std::vector<PayloadDigest>();
}

namespace {

// Says of the first tensor that is a part of another one what it is; "" if
// there is none.
std::string NoteOfPart(const CheckpointIndex& index) {
  const auto part =
      std::ranges::find_if(index.entries, [&](const Entry& entry) {
        return index.tensors[entry.tensor].sharding != kNoSharding;
      });
  if (part == index.entries.end()) return "";
  return fmt::format(
      "; {} is the part of a tensor that one process of several saved: open "
      "the folder with the files of all",
      Quote(part->name));
}

}  // namespace

std::optional<std::string> NoteOfCode(const CheckpointIndex& index) {
  if (index.object_status.ok()) return std::nullopt;
  const std::string_view message = index.object_status.message();
  return fmt::format(
      "its object needs code, which is not run: {}{}; haulway scan tells more",
      message.substr(0, message.find("; ")), NoteOfPart(index));
}

}  // namespace haulway
