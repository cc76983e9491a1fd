// Opens and checks the files in a list (rank_list.h).

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"
#include "ranks/assembled_reader.h"
#include "ranks/pieced_source.h"

namespace haulway::ranks {

Result<std::vector<std::string>> ReadList(const ByteSource& list);

// Opens neighbours of the list, several at once, as files of the processes 0,
// 1, ... The reader of a file named "" is null.
Result<std::vector<RankFile>> OpenFiles(const ByteSource& list,
                                        const std::vector<std::string>& names,
                                        const OpenOptions& options);

using JoinFunction = Result<std::unique_ptr<const AssembledReader>> (*)(
    std::shared_ptr<const ByteSource> list, const OpenOptions& options);

// Checks the checksums of all files in the list; if they match, opens them as a
// checkpoint and reads the tensors of which there are replicas, which compares
// these.
Result<VerifyReport> VerifyFiles(std::shared_ptr<const ByteSource> list,
                                 Format format, JoinFunction join,
                                 const VerifyOptions& options);

}  // namespace haulway::ranks
