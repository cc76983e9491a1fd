// Verifies every byte of an archive that a checksum covers.

#pragma once

#include <cstdint>
#include <functional>

#include "haulway/verify.h"
#include "zip/zip_reader.h"

namespace haulway::zip {

// Checks all frames and CRC-32s with `threads` threads. Adds faults, the number
// of checked bytes, and ranges without a checksum to the report. Requires: the
// offsets of all entries are set. Fails only if the source cannot be read.
Status VerifyRecords(
    const ZipReader& zip, int threads,
    const std::function<void(uint64_t done, uint64_t total)>& progress,
    VerifyReport* report);

}  // namespace haulway::zip
