// Recognises files of other programs that hold only data: images, audio,
// tables.

#pragma once

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::scan {

// Returns whether `source` is a PNG, JPEG, GIF, BMP, RIFF (WAV, WebP) or SQLite
// file or a SentencePiece model that ends where its own lengths say, or
// consists only of zeros, which is an empty tar. Fails if reading the source
// fails.
Result<bool> IsMedia(const ByteSource& source);

}  // namespace haulway::scan
