// Tokens of time stamping authorities (RFC 3161), over a signature.

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "signing/trusted_root.h"

namespace haulway::signing {

// Returns the time that a token proves for `message`, by one of the
// authorities; nullopt if the token does not verify.
std::optional<int64_t> CheckTimeStamp(
    std::string_view token, std::string_view message,
    const std::vector<Authority>& authorities);

}  // namespace haulway::signing
