// Converting: the tensors of a checkpoint of any format, as a file of any that
// is written.
//
// Nothing is held that need not be: elements are read, cast and written piece
// by piece, by several threads at once. What cannot be written is refused by
// name, or told in the report; nothing is left out in silence.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/dtype.h"
#include "haulway/export.h"
#include "haulway/index.h"
#include "haulway/save.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

// What to do with tensors that share memory.
enum class Ties : uint8_t {
  kKeep,   // They share it in the new file; refused where that cannot say so.
  kDrop,   // Of equal ones the first by name is written.
  kCopy,   // Each is written in full.
  kError,  // Refused.
};

// "keep", "drop", "copy", "error".
HAULWAY_EXPORT std::string_view Name(Ties ties);
HAULWAY_EXPORT std::optional<Ties> TiesFromName(std::string_view name);

// What a tensor is to be called.
using RenameFunction = std::function<std::string(std::string_view name)>;

// Replaces every match of a POSIX extended regular expression; in
// `replacement`, \1 to \9 are its groups, and \0 all of it. Fails with
// kInvalidArgument for what is no expression.
HAULWAY_EXPORT Result<RenameFunction> MakeRenaming(
    std::string_view pattern, std::string_view replacement);

struct ConvertOptions {
  // By default what FormatToWrite() says of the path.
  std::optional<Format> to = std::nullopt;
  // Floating-point tensors are cast to this, as PyTorch rounds. The others
  // stay as they are.
  std::optional<DType> dtype = std::nullopt;
  // Whether to write a tensor of that name; by default all are written. Asked
  // of what is no tensor too: it is told as left out only if it was wanted.
  std::function<bool(std::string_view name)> select = nullptr;
  RenameFunction rename = nullptr;  // By default tensors keep their names.
  // Bytes of tensors in one file at most; 0: one file, whatever its size.
  uint64_t shard_bytes = 0;
  Ties ties = Ties::kKeep;
  // Leave out bytes of storages that no tensor uses.
  bool compact = false;
  // Digest every tensor in the old file and, before the new one is visible, in
  // it; both must be the same.
  bool proof = false;
  // Check the checksums of what is read.
  bool verify = true;
  // write.memory_budget bounds what is read ahead and brought together. A
  // compressed storage is brought whole. `path` has no effect.
  SaveOptions save{};
  Durability durability = Durability::kFull;
};

// A tensor as it stands in the new file.
struct TensorProof {
  std::string name;
  std::array<std::byte, 32> sha256{};  // Of its elements in row-major order.
};

// A tensor that shares memory with another one in the old file.
struct TieNote {
  std::string name;
  std::string with;
  bool dropped = false;  // Else it was written in full.
};

// What of the old file the new one does not have.
struct LeftOut {
  std::string name;
  std::string why;
};

struct ConvertReport {
  uint64_t tensors = 0;
  uint64_t bytes = 0;              // Of all files.
  std::vector<std::string> files;  // The index, if there is one, is the last.
  std::vector<TensorProof> proof;  // By name.
  std::vector<TieNote> ties;
  std::vector<LeftOut> left_out;
  WriteStats write;  // Of all files; `seconds` are those of the call.
};

// Writes the tensors of `from` to the file `path`; with shard_bytes to several
// beside it and an index, named and split as huggingface_hub does
// ("model-00001-of-00003.safetensors", "model.safetensors.index.json"), if one
// is not enough. Nothing is visible before all of it is written. Safetensors
// files get the metadata "format": "pt", if they have none and the tensors are
// torch's.
//
// Fails with kInvalidArgument for a dtype that is not floating-point, names
// that are equal, and a path that is the file itself; kUnsupported for
// tensors that the format cannot hold (of another dtype, sparse, quantized,
// meta ones, or that share memory); kMismatch where a checksum or the proof
// differs; else as reading and writing do.
HAULWAY_EXPORT Result<ConvertReport> Convert(
    std::shared_ptr<const Checkpoint> from, const std::string& path,
    const ConvertOptions& options = {});

}  // namespace haulway
