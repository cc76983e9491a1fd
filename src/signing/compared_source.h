// The bytes of a file that a signature covers.

#pragma once

#include <memory>

#include "haulway/source.h"
#include "signing/compared_model.h"

namespace haulway::signing {

// Returns a source that reads each unit of `source` once, into memory, compares
// it, and takes all bytes from there. `file` belongs to `model`.
std::shared_ptr<const ByteSource> MakeComparedSource(
    std::shared_ptr<ComparedModel> model, ComparedFile* file,
    std::shared_ptr<const ByteSource> source);

}  // namespace haulway::signing
