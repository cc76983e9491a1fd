// The container of torch 0.1.10 to 1.5: consecutive pickles, then raw storages.
// Payloads have no checksum and any alignment.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::torch {

// From torch/serialization.py: MAGIC_NUMBER 0x1950A86A20F9469CFC6C as LONG1
// encodes it, and PROTOCOL_VERSION.
inline constexpr std::array<unsigned char, 10> kLegacyMagic = {
    0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19};
inline constexpr int64_t kLegacyVersion = 1001;

// Returns whether the source starts with the format's magic number.
bool IsLegacy(std::span<const std::byte> head);

// Opens the first object of the file. The fact "end" is where its data ends;
// another object, or anything else, may follow (rule L01).
Result<std::unique_ptr<const FormatReader>> OpenLegacy(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);

// Verifies every object in the file.
Result<VerifyReport> VerifyLegacy(std::shared_ptr<const ByteSource> source,
                                  const VerifyOptions& options);
// Returns where the storages of the object that begins at `start` end. Fails as
// opening the object does.
Result<uint64_t> EndOfLegacy(std::shared_ptr<const ByteSource> source,
                             uint64_t start, const OpenOptions& options);

}  // namespace haulway::torch
