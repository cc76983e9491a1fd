// The safetensors flavour of torch.distributed.checkpoint: files that hold
// chunks of tensors, and say in their headers where in the tensors.

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

// Whether a file is called as that flavour calls the files of processes:
// "shard-00001-model-00001-of-00002.safetensors".
bool IsNamedAsDcpShard(std::string_view path);

// Whether the header of one of the files says where chunks lie.
bool AreDcpShards(std::span<const Shard> shards);

// The tensors, whole, that the files hold together. Fails with kCorrupt, naming
// file or tensor, if the headers contradict one another, chunks leave a hole or
// overlap, or, unless options are lenient, the numbers in the files' names show
// that a file is missing; and kUnsupported for elements of less than a byte.
Result<std::unique_ptr<const FormatReader>> OpenDcpShards(
    std::vector<Shard> shards, const OpenOptions& options);

}  // namespace haulway
