// From a part of a model to the whole model.

#pragma once

#include <memory>

#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// A source and its format.
struct Detected {
  std::shared_ptr<const ByteSource> source;
  const FormatEntry* format = nullptr;
  // The open source, if it had to be opened to know what it is; else null.
  std::unique_ptr<const FormatReader> reader = nullptr;
};

// Detects the format of `source`. If the file states that it is a part of a
// model, returns a list of all parts, its neighbours: a program that is given
// one part loads them all. With `alone`, returns every file as it is; under
// kLenient, the parts that exist. Fails as DetectFormat() does, and with
// kMismatch if a part is missing or the name of the file does not tell those of
// the others.
Result<Detected> DetectWhole(std::shared_ptr<const ByteSource> source,
                             const OpenOptions& options);

}  // namespace haulway
