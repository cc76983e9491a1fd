// What only tensorizer files have: paths, types and headers of tensors, layouts
// of their own, writing one tensor after another, and changing a file where it
// is.

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
#include "haulway/fields.h"
#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/save.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

enum class TensorizerType : uint8_t { kParameter, kBuffer, kStateDict };

// A step of a path: a key of a dict, or a position in a list.
struct TensorizerStep {
  bool is_position = false;
  uint64_t position = 0;
  std::string key;
};

struct TensorizerTensor {
  std::vector<TensorizerStep> path;
  TensorizerType type = TensorizerType::kStateDict;
};

// Of every tensor, parallel to the index's tensors. `of` is a checkpoint's
// reader(). Fails with kInvalidArgument if it is not of a tensorizer file.
HAULWAY_EXPORT Result<std::vector<TensorizerTensor>> TensorizerTensors(
    const FormatReader& of);

struct TensorizerHeader {
  uint16_t module_index = 0;
  std::vector<PayloadDigest> digests;
};

// Reads and checks the headers of the given rows of tensors. Fails as
// TensorizerTensors() and the format's rules do.
HAULWAY_EXPORT Result<std::vector<TensorizerHeader>> ReadTensorizerHeaders(
    const FormatReader& of, std::span<const uint32_t> rows);

// Whether a tensor of those bytes is what the digests are of. kMismatch if
// not.
HAULWAY_EXPORT Status CheckPayload(const std::vector<PayloadDigest>& digests,
                                   std::span<const std::byte> payload);

// The key that a passphrase gives, as libsodium's pwhash with Argon2id 1.3
// makes it. Requires: salt.size() == 16. Fails with kInvalidArgument for costs
// that the algorithm does not allow, and kLimit if there is no such memory.
HAULWAY_EXPORT Result<Secret> DeriveTensorizerKey(
    const Secret& passphrase, uint64_t operations, uint64_t memory_bytes,
    std::span<const std::byte> salt);

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

  // Fails as Append() and Commit() would for what the tensors are, their bytes
  // aside; writes nothing, and the stream stays as it is.
  virtual Status Check(std::span<const TensorizerInput> tensors) const = 0;

  // Writes tensors, whose bytes are free for use again on return. Fails as
  // LayOutTensorizer() and Write() do; then the stream is spent.
  virtual Status Append(std::span<const TensorizerInput> tensors) = 0;

  // Writes the index, and makes the file visible. Names that repeat are found
  // here. What is told is of all that was written.
  virtual Result<WriteStats> Commit() = 0;
};

struct TensorizerRename {
  std::string from;  // As Entry::name gives it.
  std::vector<TensorizerStep> to;
};

// A change of a file in segments. All of it becomes visible at once.
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

inline constexpr Field<TensorizerEditStats> kTensorizerEditStatFields[] = {
    {"tensors", &TensorizerEditStats::tensors, "now in the file"},
    {"written_bytes", &TensorizerEditStats::written_bytes,
     "by write calls, to both files", Adding::kSum},
    {"inserted_bytes", &TensorizerEditStats::inserted_bytes,
     "by the file system", Adding::kSum},
    {"moved", &TensorizerEditStats::moved,
     "index or headers stand elsewhere now", Adding::kLargest},
};
inline std::span<const Field<TensorizerEditStats>> FieldsOf(
    const TensorizerEditStats&) {
  return kTensorizerEditStatFields;
}

// Edits the local file `path`, and its data file if it has one: appends
// tensors, renames them, sets metadata.
//
// The file is at every moment the old one or the new one, whole: what changes
// is written where nothing lies, and one write of 512 bytes makes it count.
// What was appended before an interruption is overwritten by the next edit.
// Files by PR #170 (layout version 1) take what fits their slack as they are;
// otherwise they become files of layout version 2.
//
// Nobody may have the file mapped or open who expects bytes to stay where they
// are, if kInsert is allowed. A renamed tensor is read and checked, since its
// digests cover its name: kMismatch if it is not what they say. Fails with
// kUnsupported for files that are not in segments, or if kInsert was asked for
// and the file system cannot; kNotFound if there is no tensor to rename;
// kUnavailable if someone else edits the file; kInvalidArgument as
// LayOutTensorizer() does; and as opening and the system do. After a failure
// the file is as it was, unless only making it durable failed.
HAULWAY_EXPORT Result<TensorizerEditStats> EditTensorizer(
    const std::string& path, const TensorizerEdit& edit,
    const TensorizerEditOptions& options = {});

}  // namespace haulway
