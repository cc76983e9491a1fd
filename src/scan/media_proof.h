// Recognises files of other programs that hold only data: images, audio,
// tables.

#pragma once

#include <string_view>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::scan {

// How files of SQLite begin.
inline constexpr std::string_view kDatabase = "SQLite format 3";

// Returns whether `source` is a PNG, JPEG, GIF, BMP or RIFF (WAV, WebP) file, a
// SentencePiece model, or a SQLite file without binary values, and ends where
// its own lengths say; or whether it consists only of zeros, which is an empty
// tar. Fails if reading the source fails.
Result<bool> IsMedia(const ByteSource& source);

}  // namespace haulway::scan
