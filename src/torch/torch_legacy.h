// The container of torch 0.1.10 to 1.5: pickles in a row, then raw storages
// (spec 2.12). Its payloads carry no checksum and lie at any alignment.

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

// torch/serialization.py, MAGIC_NUMBER 0x1950A86A20F9469CFC6C as LONG1 has it,
// and PROTOCOL_VERSION.
inline constexpr std::array<unsigned char, 10> kLegacyMagic = {
    0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19};
inline constexpr int64_t kLegacyVersion = 1001;

// Whether the source starts with the format's magic number.
bool IsLegacy(std::span<const std::byte> head);

// Opens the first object of the file. Where its data ends is the fact "end";
// another object, or anything, may follow there. Rule L01.
Result<std::unique_ptr<const FormatReader>> OpenLegacy(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);

// Goes over every object in the file.
Result<VerifyReport> VerifyLegacy(std::shared_ptr<const ByteSource> source,
                                  const VerifyOptions& options);
// Where the storages of the object that begins at `start` end. Fails as opening
// it does.
Result<uint64_t> EndOfLegacy(std::shared_ptr<const ByteSource> source,
                             uint64_t start, const OpenOptions& options);

}  // namespace haulway::torch
