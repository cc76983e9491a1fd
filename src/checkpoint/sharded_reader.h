// Opens a checkpoint in several files, given by an index or a list.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "checkpoint/sharded_index.h"
#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway {

// Opens every file of the index `source`, each in its own format, as one flat
// checkpoint. The files are neighbours of the index. kStrict refuses any
// difference between the map and the files: a tensor that is missing, in
// another file, in two files, or not in the map. kLenient takes from each file
// the tensors that the map assigns to it, as other readers do, and refuses only
// missing tensors. In a list, which has no map, no two files may have a tensor
// with the same name. An index cannot contain an index; a list can contain
// indexes of checkpoints.
Result<std::unique_ptr<const FormatReader>> OpenSharded(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);

// The same with only those files of an index that have a name for which
// `wanted` is true, unless none has.
Result<std::unique_ptr<const FormatReader>> OpenShardsWith(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options,
    const std::function<bool(std::string_view name)>& wanted);

// Reads and parses the index `source`. Fails as ParseShardedIndex() does.
Result<ShardedIndex> ReadShardedIndex(const ByteSource& source,
                                      const OpenOptions& options);
// Opens the files of an index that is not of a delta.
Result<std::unique_ptr<const FormatReader>> OpenFilesOf(
    const ByteSource& source, const ShardedIndex& index,
    const OpenOptions& options);

// Verifies every file, then the index itself. Fails with kUnsupported for JSON
// that is not an index.
Result<VerifyReport> VerifySharded(std::shared_ptr<const ByteSource> source,
                                   const VerifyOptions& options);
// Verifies the index against its files. Returns nullopt for JSON that is not an
// index, unless its name says that it is one. Verifies the files of a list too,
// as VerifySharded() does.
Result<std::optional<VerifyReport>> VerifyIndexAlone(
    const ByteSource& source, bool is_named_so, const VerifyOptions& options);

}  // namespace haulway
