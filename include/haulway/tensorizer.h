// What only tensorizer files have: paths, types and headers of tensors, their
// own layouts, writing one tensor after another, and editing a file in place.
//
// Everything else that can be done with a tensorizer file goes through the
// interfaces of all formats: checkpoint.h, load.h, save.h and verify.h.
//
// Units: sizes and offsets are bytes unless a field says otherwise.

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
#include "haulway/layout.h"
#include "haulway/options.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

enum class TensorizerType : uint8_t { kParameter, kBuffer, kStateDict };

// A step of a path: a key of a dict or a position in a list.
struct TensorizerStep {
  bool is_position = false;
  uint64_t position = 0;
  std::string key;
};

struct TensorizerTensor {
  std::vector<TensorizerStep> path;
  TensorizerType type = TensorizerType::kStateDict;
};

// Returns the paths and types of all tensors, parallel to the index's tensors.
// `of` is a checkpoint's reader(). Fails with kInvalidArgument if the file is
// not a tensorizer file.
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

// Checks the bytes of a tensor against its digests. Fails with kMismatch if
// they differ.
HAULWAY_EXPORT Status CheckPayload(const std::vector<PayloadDigest>& digests,
                                   std::span<const std::byte> payload);

// Derives a key from a passphrase, as libsodium's pwhash with Argon2id 1.3
// does. Requires: salt.size() == 16. Fails with kInvalidArgument for costs that
// the algorithm does not allow, and with kLimit if there is not enough memory.
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
  // The caller's memory, unchanged until the file is written, or a range of a
  // source, as in Payload.
  const std::byte* bytes = nullptr;
  const ByteSource* source = nullptr;
  uint64_t source_offset = 0;
};

// How a passphrase became the key. Stored in the file, so that readers can
// derive the key too.
struct TensorizerDerivation {
  uint64_t operations = 0;
  uint64_t memory_bytes = 0;
  std::array<std::byte, 16> salt{};
};

// Returns a new salt with libsodium's moderate cost: 3 operations and 256 MiB.
HAULWAY_EXPORT TensorizerDerivation NewTensorizerDerivation();

enum class TensorizerLayout : uint8_t {
  kInterleaved,  // Readable by released versions of tensorizer.
  // Index, headers and data in segments, which EditTensorizer() can change in
  // place. No released version of tensorizer reads it.
  kSegments,
  // Segments as PR #170 writes them, for its reader.
  kSegmentsPr170,
};

inline constexpr std::string_view kTensorizerLayoutWords[] = {
    "interleaved", "segments", "segments-pr170"};
constexpr std::span<const std::string_view> WordsOf(TensorizerLayout) {
  return kTensorizerLayoutWords;
}

struct TensorizerOptions {
  // A key, not a passphrase; empty: no encryption.
  Secret key;
  std::optional<TensorizerDerivation> derivation;
  // With a key: end the file with a record, so that names, types, shapes and
  // order cannot be changed undetected without the key. Tensorizer's readers
  // ignore the record. kInterleaved only.
  bool authenticate_metadata = true;
  // Data begins at multiples of this. Tensorizer writes 1; its readers accept
  // other values.
  uint64_t alignment = 1;
  // Returns the nonce of each tensor, which must never repeat for one key; the
  // removal of the record above cannot be detected then. Empty: random nonces.
  std::function<std::array<std::byte, 24>(size_t tensor)> nonce = nullptr;
  TensorizerLayout layout = TensorizerLayout::kInterleaved;

  // Segments only. Spare room for this many tensors before the segments must
  // grow: 256 bytes of index and 1024 bytes of headers each. With
  // kSegmentsPr170, room for this many tensors in total.
  uint64_t room_for = 16;
  // Text by key, stored with the tensors. Not with kSegmentsPr170.
  std::vector<std::pair<std::string, std::string>> metadata;
  // The name of a file beside this one that holds the data; empty: none. Write
  // the layout through OpenSplitSink(). Not with kSegmentsPr170.
  std::string data_file;
};

// The option `room_for` of every struct that has one.
inline constexpr std::string_view kRoomForMeaning =
    "for layout 'segments': number of tensors that can be appended before the "
    "file must be rearranged";

inline constexpr FieldTable kTensorizerOptionFields{

    Field("key", &TensorizerOptions::key, "key: 32 bytes",
          {.secret = true, .in_python = false, .flag = "-"}),
    Field("layout", &TensorizerOptions::layout,
          "'interleaved', which every release of tensorizer reads; 'segments', "
          "which edit() changes in place; or 'segments-pr170', that layout as "
          "tensorizer's pull request 170 has it",
          {.calls = "save", .formats = "tensorizer", .configured = false}),
    Field("room_for", &TensorizerOptions::room_for, kRoomForMeaning,
          {.calls = "save", .formats = "tensorizer", .configured = false}),
    Field("data_file", &TensorizerOptions::data_file,
          "for layout 'segments': the name of a second, new file beside this "
          "one for the data",
          {.calls = "save", .formats = "tensorizer", .configured = false}),
    Field("authenticate_metadata", &TensorizerOptions::authenticate_metadata,
          "let readers with the key of an encrypted file detect a changed "
          "name, type, shape or order",
          {.calls = "save", .formats = "tensorizer", .configured = false}),
    Field("alignment", &TensorizerOptions::alignment,
          "alignment of the data of tensors, in bytes", {.in_python = false}),
    Field("metadata", &TensorizerOptions::metadata,
          "text by key, stored with the tensors",
          {.in_python = false, .flag = "-"}),
};
constexpr const auto& FieldsOf(const TensorizerOptions&) {
  return kTensorizerOptionFields;
}

// Lays out a file in the lowest version that supports what is used; segments
// are always version 5. The index is 256 KiB, as tensorizer writes it, or
// larger if the names need more. Fails with kInvalidArgument for names that no
// reader accepts or that repeat, kLimit for names that are too long, and
// kUnsupported for quantized types and anything else that the layout cannot
// hold.
HAULWAY_EXPORT Result<std::unique_ptr<const Layout>> LayOutTensorizer(
    std::span<const TensorizerInput> tensors, const TensorizerOptions& options);

// A TensorizerStream writes a file whose tensors arrive one after another. Each
// tensor is written immediately, into a temporary file beside the target.
// Commit() turns it into the target; without Commit() no trace stays. Not for
// two threads at once.
class HAULWAY_EXPORT TensorizerStream {
 public:
  // Opens a stream to a local file. `path` is not touched before Commit().
  // Fails as LayOutTensorizer() does for the options; a data file is not
  // supported.
  static Result<std::unique_ptr<TensorizerStream>> Open(
      std::string path, const TensorizerOptions& options,
      const FileSinkOptions& file = {}, const WriteOptions& write = {});
  // Opens a stream to any sink. Written tensors wait in a temporary file in
  // `folder`.
  static Result<std::unique_ptr<TensorizerStream>> Open(
      std::unique_ptr<ByteSink> sink, const std::string& folder,
      const TensorizerOptions& options, const WriteOptions& write = {});
  virtual ~TensorizerStream() = default;

  // Fails as Append() and Commit() would for everything but the tensors' bytes.
  // Writes nothing and leaves the stream unchanged.
  virtual Status Check(std::span<const TensorizerInput> tensors) const = 0;

  // Writes tensors; their bytes may be reused on return. Fails as
  // LayOutTensorizer() and Write() do; the stream cannot be used afterwards.
  virtual Status Append(std::span<const TensorizerInput> tensors) = 0;

  // Writes the index and makes the file visible. Fails here if names repeat.
  // The statistics cover everything that was written.
  virtual Result<WriteStats> Commit() = 0;
};

struct TensorizerRename {
  std::string from;  // As in Entry::name.
  std::vector<TensorizerStep> to;
};

// Changes to a file in segments. All of them become visible at once.
struct TensorizerEdit {
  std::vector<TensorizerRename> rename;
  std::vector<TensorizerInput> append;
  std::vector<std::pair<std::string, std::string>> set;  // Metadata by key.
  std::vector<std::string> unset;  // Keys; unknown ones are ignored.
};

// How segments get more room.
enum class SegmentRoom : uint8_t {
  kAuto,    // kInsert if the file system supports it, else kMove.
  kInsert,  // Inserts blocks before the next segment; moves no data.
  kMove,    // Rewrites index and headers at the end of the file.
};

inline constexpr std::string_view kSegmentRoomWords[] = {"auto", "insert",
                                                         "move"};
constexpr std::span<const std::string_view> WordsOf(SegmentRoom) {
  return kSegmentRoomWords;
}

// The option `room` of every struct that has one.
inline constexpr std::string_view kRoomMeaning =
    "for layout 'segments', what to do if index or headers are full: 'insert' "
    "blocks, 'move' them to the end, or 'auto'";
inline constexpr Option kRoomOption = {
    .calls = "edit",
    .formats = "tensorizer",
    .configured = false,
    .flag = "--move",
    .off_meaning =
        "insert no blocks into segments, so that bytes keep their place for "
        "programs that have the file open"};

struct TensorizerEditOptions {
  // Needed to append and rename if the file is encrypted.
  EncryptionKey key;
  ParseLimits limits;
  // kNone is as safe if the process ends, but not if the machine stops.
  Durability durability = Durability::kFull;
  SegmentRoom room = SegmentRoom::kAuto;
  // Spare room for this many more tensors when segments grow.
  uint64_t room_for = 16;
  // Alignment of appended data; a power of two.
  uint64_t alignment = 8;
  int threads = 0;  // 0: as many as this process may use.
  // As in TensorizerOptions.
  std::function<std::array<std::byte, 24>(size_t tensor)> nonce = nullptr;
};

inline constexpr FieldTable kTensorizerEditOptionFields{

    FieldsOfMember(&TensorizerEditOptions::key),
    Field("durability", &TensorizerEditOptions::durability, kDurabilityMeaning,
          DurabilityOption("edit")),
    Field("room", &TensorizerEditOptions::room, kRoomMeaning, kRoomOption),
    Field("room_for", &TensorizerEditOptions::room_for, kRoomForMeaning,
          {.calls = "edit", .formats = "tensorizer", .configured = false}),
    Field("alignment", &TensorizerEditOptions::alignment,
          "alignment of appended data, in bytes: a power of two",
          {.unit = Quantity::kAlignment, .in_python = false}),
    Field("threads", &TensorizerEditOptions::threads, kThreadsMeaning,
          {.most = kMostThreads, .in_python = false}),
};
constexpr const auto& FieldsOf(const TensorizerEditOptions&) {
  return kTensorizerEditOptionFields;
}

struct TensorizerEditStats {
  uint64_t tensors = 0;         // In the file after the edit.
  uint64_t written_bytes = 0;   // By write calls, to both files.
  uint64_t inserted_bytes = 0;  // By the file system.
  bool moved = false;           // Index or headers are at another offset now.
};

inline constexpr FieldTable kTensorizerEditStatFields{
    Field("tensors", &TensorizerEditStats::tensors,
          "tensors in the file after the edit"),
    Field("written_bytes", &TensorizerEditStats::written_bytes,
          "bytes passed to write calls, for both files", Adding::kSum),
    Field("inserted_bytes", &TensorizerEditStats::inserted_bytes,
          "bytes that the file system inserted", Adding::kSum),
    Field("moved", &TensorizerEditStats::moved,
          "true if the index or the headers are at another offset now",
          Adding::kLargest),
};
constexpr const auto& FieldsOf(const TensorizerEditStats&) {
  return kTensorizerEditStatFields;
}

// Edits the local file `path`, and its data file if it has one: appends
// tensors, renames them, sets metadata.
//
// At every moment the file is the old one or the new one, complete: changes are
// written to unused space, and one write of 512 bytes activates them. Data
// appended by an interrupted edit is overwritten by the next one. Files of PR
// #170 (layout version 1) stay as they are if the changes fit their slack;
// otherwise they become files of layout version 2.
//
// If kInsert is allowed, no other process may have the file mapped or open and
// rely on the positions of its bytes. A renamed tensor is read and checked,
// because its digests cover its name; fails with kMismatch if they differ.
// Fails with kUnsupported for files that are not in segments, or if kInsert was
// requested and the file system does not support it; kNotFound if there is no
// tensor to rename; kUnavailable if another process edits the file;
// kInvalidArgument as LayOutTensorizer() does; and as opening and the system
// do. After a failure the file is unchanged, unless only making it durable
// failed.
HAULWAY_EXPORT Result<TensorizerEditStats> EditTensorizer(
    const std::string& path, const TensorizerEdit& edit,
    const TensorizerEditOptions& options = {});

}  // namespace haulway
