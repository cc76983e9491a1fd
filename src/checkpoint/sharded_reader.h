// A checkpoint in several files, by an index or as a list.

#pragma once

#include <memory>
#include <optional>

#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway {

// Opens every file of the index `source`, beside it, as one flat checkpoint,
// each in the format that it is of. kStrict refuses a difference between the
// map and the files: a tensor that is missing, in another file, in two or in
// none of the map. kLenient does as readers do and takes of each file what the
// map says; it refuses missing tensors only. In a list, which has no map, no
// two files may hold one name. An index cannot name an index; a list can, of
// files.
Result<std::unique_ptr<const FormatReader>> OpenSharded(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);

// What Verify() says of every file, then of the index itself. Fails with
// kUnsupported for JSON that is no index.
Result<VerifyReport> VerifySharded(std::shared_ptr<const ByteSource> source,
                                   const VerifyOptions& options);
// Whether the files of the index agree with it; nullopt for JSON that is no
// index, unless it is to be one by its name. The files of a list are verified
// with it, as by VerifySharded().
Result<std::optional<VerifyReport>> VerifyIndexAlone(
    const ByteSource& source, bool is_named_so, const VerifyOptions& options);

}  // namespace haulway
