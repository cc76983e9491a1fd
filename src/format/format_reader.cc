// Defaults for formats without units or digests, and what all reports say.

#include <fmt/format.h>

#include <string_view>
#include <vector>

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

std::optional<std::string> NoteOfCode(const CheckpointIndex& index) {
  if (index.object_status.ok()) return std::nullopt;
  const std::string_view message = index.object_status.message();
  return fmt::format(
      "its object needs code, which is not run: {}; haulway scan tells more",
      message.substr(0, message.find("; ")));
}

}  // namespace haulway
