// Defaults for formats without units or digests.

#include <vector>

#include "haulway/format.h"

namespace haulway {

Result<uint64_t> FormatReader::UnitBytes(uint32_t,
                                         std::span<const std::byte>) const {
  return uint64_t{0};
}

Result<std::vector<PayloadDigest>> FormatReader::Digests(
    uint32_t, std::span<const std::byte>, std::span<const std::byte>) const {
  return std::vector<PayloadDigest>();
}

}  // namespace haulway
