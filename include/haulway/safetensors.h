// What programs compare with the safetensors package.
//
// Files are opened and written through open.h and save.h, as those of every
// format. Functions here keep no state: any number of threads may call them.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "haulway/dtype.h"
#include "haulway/status.h"

namespace haulway {

// The dtypes of the format, in the order in which the package has them.
inline constexpr std::array kSafetensorsDTypes = {
    DType::kBool,   DType::kF4E2M1X2,   DType::kF6E2M3X4,   DType::kF6E3M2X4,
    DType::kU8,     DType::kI8,         DType::kF8E5M2,     DType::kF8E4M3,
    DType::kF8E8M0, DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ, DType::kI16,
    DType::kU16,    DType::kF16,        DType::kBF16,       DType::kI32,
    DType::kU32,    DType::kF32,        DType::kC64,        DType::kF64,
    DType::kI64,    DType::kU64,
};
// The longest header that the package reads, in bytes.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// The message with which the safetensors package, release 0.8.0, refuses a
// file whose header is `header` (the JSON with its padding) and which has
// `data_bytes` bytes behind the header. Returns nullopt if the package reads
// such a file. Needs memory of a few times the size of the header.
HAULWAY_EXPORT std::optional<std::string> SafetensorsRefusal(
    std::string_view header, uint64_t data_bytes);

}  // namespace haulway
