// Laying out tensorizer files, for Write().

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "haulway/dtype.h"
#include "haulway/encryption.h"
#include "haulway/export.h"
#include "haulway/layout.h"
#include "haulway/status.h"
#include "haulway/tensorizer.h"

namespace haulway {

// A tensor to write: dense, in row-major order, in this machine's byte order.
struct TensorizerInput {
  std::vector<TensorizerStep> path;
  TensorizerType type = TensorizerType::kStateDict;
  uint16_t module_index = 0;
  DType dtype = DType::kU8;
  std::vector<uint64_t> shape;
  bool meta = false;  // Only the shape is written.
  // The caller's, unchanged until the file is written; or where they come from,
  // as a Payload has it.
  const std::byte* bytes = nullptr;
  const ByteSource* source = nullptr;
  uint64_t source_offset = 0;
};

// What turned a passphrase into the key: kept in the file, so that readers can
// do the same.
struct TensorizerDerivation {
  uint64_t operations = 0;
  uint64_t memory_bytes = 0;
  std::array<std::byte, 16> salt{};
};

// A new salt, and libsodium's moderate cost: 3 operations on 256 MiB.
HAULWAY_EXPORT TensorizerDerivation NewTensorizerDerivation();

enum class TensorizerLayout : uint8_t {
  kInterleaved,  // What released readers read.
  // Index, headers and data in segments, which EditTensorizer() can change in
  // place. No release of the reference reads it.
  kSegments,
  // The same as PR #170 writes it, for its reader.
  kSegmentsPr170,
};

struct TensorizerOptions {
  // A key, not a passphrase; empty: no encryption.
  Secret key;
  std::optional<TensorizerDerivation> derivation;
  // With a key: end the file with a record that lets no one without it change
  // names, types, shapes or order unseen. The reference's readers do not look
  // at it. Of kInterleaved only.
  bool authenticate_metadata = true;
  // Data begins at multiples of this. 1 is what the reference writes; with
  // others its readers read the file as well.
  uint64_t alignment = 1;
  // Gives the nonce of each tensor; must never repeat one for a key, and then
  // nothing tells that the record is missing when it was cut off. Empty:
  // random ones.
  std::function<std::array<std::byte, 24>(size_t tensor)> nonce = nullptr;
  TensorizerLayout layout = TensorizerLayout::kInterleaved;

  // Of segments only. Room for so many tensors to be appended before the
  // segments must grow: 256 bytes of index and 1024 of headers each. With
  // kSegmentsPr170, room for so many in all.
  uint64_t room_for = 16;
  // Text by key, kept with the tensors. Not with kSegmentsPr170.
  std::vector<std::pair<std::string, std::string>> metadata;
  // The name of a file beside this one for the data; empty: none. To be
  // written through MakeSplitSink(). Not with kSegmentsPr170.
  std::string data_file;
};

// The lowest version that holds what is used; segments are always version 5.
// The index is as long as the reference makes it, 256 KiB, or longer where the
// names need it. Fails with kInvalidArgument for names that no reader takes or
// that repeat, kLimit for ones that are too long, and kUnsupported for
// quantized types or what the layout cannot hold.
HAULWAY_EXPORT Result<std::unique_ptr<const Layout>> LayOutTensorizer(
    std::span<const TensorizerInput> tensors, const TensorizerOptions& options);

// A TensorizerStream writes a file whose tensors come one after another. They
// are written when they are given, into a temporary beside the target, which
// Commit() makes the file; without it, no trace stays. Not for two threads at
// once.
class HAULWAY_EXPORT TensorizerStream {
 public:
  // A local file. `path` is not touched before Commit(). Fails as
  // LayOutTensorizer() does for the options; a data file is not supported.
  static Result<std::unique_ptr<TensorizerStream>> Open(
      std::string path, const TensorizerOptions& options,
      const FileSinkOptions& file = {}, const WriteOptions& write = {});
  // Any sink. What is written waits in a temporary file in `folder`.
  static Result<std::unique_ptr<TensorizerStream>> Open(
      std::unique_ptr<ByteSink> sink, const std::string& folder,
      const TensorizerOptions& options, const WriteOptions& write = {});
  virtual ~TensorizerStream() = default;

  // Writes tensors, whose bytes are free for use again on return. Fails as
  // LayOutTensorizer() and Write() do; then the stream is spent.
  virtual Status Append(std::span<const TensorizerInput> tensors) = 0;

  // Writes the index, and makes the file visible. Names that repeat are found
  // here. What is told is of all that was written.
  virtual Result<WriteStats> Commit() = 0;
};

}  // namespace haulway
