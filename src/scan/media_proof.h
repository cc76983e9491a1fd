// Files of other programs that hold data alone: pictures, sounds, tables.

#pragma once

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::scan {

// Whether `source` is a PNG, JPEG, GIF, BMP, RIFF (WAV, WebP) or SQLite file or
// a model of SentencePiece that ends where its own lengths say, or nothing but
// zeros, which is an empty tar. Fails if the source does.
Result<bool> IsMedia(const ByteSource& source);

}  // namespace haulway::scan
