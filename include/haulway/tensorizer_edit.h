// Changing tensorizer files in segments where they are: appending tensors,
// renaming, setting metadata.
//
// A file is at every moment the old one or the new one, whole: what changes is
// written where nothing lies, and one write of 512 bytes makes it count. What
// was appended before an interruption is overwritten by the next edit.
//
// Files by PR #170 (layout version 1) take what fits their slack as they are;
// otherwise they become files of layout version 2.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "haulway/encryption.h"
#include "haulway/export.h"
#include "haulway/limits.h"
#include "haulway/sink.h"
#include "haulway/status.h"
#include "haulway/tensorizer.h"
#include "haulway/tensorizer_writer.h"

namespace haulway {

struct TensorizerRename {
  std::string from;  // As Entry::name gives it.
  std::vector<TensorizerStep> to;
};

// All of it becomes visible at once.
struct TensorizerEdit {
  std::vector<TensorizerRename> rename;
  std::vector<TensorizerInput> append;
  std::vector<std::pair<std::string, std::string>> set;  // Metadata by key.
  std::vector<std::string> unset;  // Keys; those not there are no error.
};

// How segments get room.
enum class SegmentRoom : uint8_t {
  kAuto,    // kInsert where the file system can, else kMove.
  kInsert,  // Blocks are inserted before what follows; no data is written.
  kMove,    // Index and headers are written anew at the end of the file.
};

struct TensorizerEditOptions {
  // Needed if the file is encrypted, to append and to rename.
  EncryptionKey key;
  ParseLimits limits;
  // kNone is as safe from the end of the process, but not of the machine.
  Durability durability = Durability::kFull;
  SegmentRoom room = SegmentRoom::kAuto;
  // Room for so many tensors more, when segments grow.
  uint64_t room_for = 16;
  // Of what is appended; a power of two.
  uint64_t alignment = 8;
  int threads = 0;  // 0: as many as the machine lets this process use.
  // As TensorizerOptions has it.
  std::function<std::array<std::byte, 24>(size_t tensor)> nonce = nullptr;
};

struct TensorizerEditStats {
  uint64_t tensors = 0;         // Now in the file.
  uint64_t written_bytes = 0;   // By write calls, to both files.
  uint64_t inserted_bytes = 0;  // By the file system.
  bool moved = false;           // Index or headers stand elsewhere now.
};

// Edits the local file `path`, and its data file if it has one. Nobody may
// have the file mapped or open who expects bytes to stay where they are, if
// kInsert is allowed. A renamed tensor is read and checked, since its digests
// cover its name: kMismatch if it is not what they say. Fails with
// kUnsupported for files that are not in segments, or if kInsert was asked for
// and the file system cannot; kNotFound if there is no tensor to rename;
// kUnavailable if someone else edits the file; kInvalidArgument as
// LayOutTensorizer() does; and as opening and the system do. After a failure
// the file is as it was, unless only making it durable failed.
HAULWAY_EXPORT Result<TensorizerEditStats> EditTensorizer(
    const std::string& path, const TensorizerEdit& edit,
    const TensorizerEditOptions& options = {});

}  // namespace haulway
