// The safetensors variant of torch.distributed.checkpoint: files that contain
// chunks of tensors, with the place of each chunk in the header.

#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/joined_reader.h"
#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway {

// Returns whether a file is named as this variant names the files of processes:
// "shard-00001-model-00001-of-00002.safetensors".
bool IsNamedAsDcpShard(std::string_view path);

// Returns whether the header of one of the files has the places of chunks.
bool AreDcpShards(std::span<const Shard> shards);

// Opens the whole tensors that the files contain together. Fails with kCorrupt,
// naming file or tensor, if the headers contradict one another, if chunks
// overlap or leave a hole, or, unless reading leniently, if the numbers in the
// file names show that a file is missing. Fails with kUnsupported for elements
// of less than a byte.
Result<std::unique_ptr<const FormatReader>> OpenDcpShards(
    std::vector<Shard> shards, const OpenOptions& options);

}  // namespace haulway
