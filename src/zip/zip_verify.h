// Checking every byte of an archive that a checksum covers.

#pragma once

#include <cstdint>
#include <functional>

#include "haulway/verify.h"
#include "zip/zip_reader.h"

namespace haulway::zip {

// Checks all frames and CRC-32s with `threads` threads and adds what is wrong,
// what was checked and what no checksum covers to the report. Offsets of all
// entries must be set. Fails only if the source cannot be read.
Status VerifyRecords(
    const ZipReader& zip, int threads,
    const std::function<void(uint64_t done, uint64_t total)>& progress,
    VerifyReport* report);

}  // namespace haulway::zip
