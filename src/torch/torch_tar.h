// The container of torch up to 0.1.9: a tar of four files. Nothing is
// extracted, and the pickles obey the same rules as those of every other
// format.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::torch {

// Returns whether the source starts with a tar header of one of the format's
// members.
bool IsTar(std::span<const std::byte> head);

// Opens the file by rule L02.
Result<std::unique_ptr<const FormatReader>> OpenTar(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);
Result<VerifyReport> VerifyTar(std::shared_ptr<const ByteSource> source,
                               const VerifyOptions& options);

// A pickle in one of the members of such a file.
struct TarPickle {
  std::string_view name;  // Name of the member; static.
  uint64_t offset;        // Offset in the file.
};

// Adds the positions of all pickles in the file. The positions depend on the
// contents of other pickles. Fails as opening the file does; the last pickle
// added is then the one that failed.
Status FindTarPickles(std::shared_ptr<const ByteSource> source,
                      const OpenOptions& options,
                      std::vector<TarPickle>* pickles);

}  // namespace haulway::torch
