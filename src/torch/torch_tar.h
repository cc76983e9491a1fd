// The container of torch up to 0.1.9: a tar of four files (spec 2.13). Nothing
// is extracted, and the pickles obey the policy of every other format.

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

// Whether the source starts with a tar header that names one of the format's
// members.
bool IsTar(std::span<const std::byte> head);

// Rule L02.
Result<std::unique_ptr<const FormatReader>> OpenTar(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);
Result<VerifyReport> VerifyTar(std::shared_ptr<const ByteSource> source,
                               const VerifyOptions& options);

// A pickle of such a file, in one of its members.
struct TarPickle {
  std::string_view name;  // The member's name; static.
  uint64_t offset;        // In the file.
};

// Adds where every pickle of the file begins; what stands between them depends
// on what they hold. Fails as opening the file does; the pickle where that
// failed is the last.
Status FindTarPickles(std::shared_ptr<const ByteSource> source,
                      const OpenOptions& options,
                      std::vector<TarPickle>* pickles);

}  // namespace haulway::torch
