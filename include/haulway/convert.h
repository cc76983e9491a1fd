// Turning one file into another: converting between formats, rewriting a
// PyTorch checkpoint, editing, encrypting and decrypting, and repairing a
// damaged file.
//
// Convert() writes the tensors of a checkpoint of any format as a file of any
// writable format. Edit() changes names, metadata and tensors of a file.
//
// Elements are read, cast and written in pieces, by several threads at once, so
// memory use stays small. Content that cannot be written is refused by name or
// listed in the report; nothing is left out silently.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/archive.h"
#include "haulway/checkpoint.h"
#include "haulway/dtype.h"
#include "haulway/fields.h"
#include "haulway/index.h"
#include "haulway/layout.h"
#include "haulway/options.h"
#include "haulway/save.h"
#include "haulway/select.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/tensorizer.h"

namespace haulway {

// How to write tensors that share memory.
enum class Ties : uint8_t {
  kKeep,   // They share memory in the new file; refused if the format cannot.
  kDrop,   // Writes only the first by name of several equal tensors.
  kCopy,   // Each tensor is written in full.
  kError,  // Tensors that share memory are refused.
};

inline constexpr std::string_view kTiesWords[] = {"keep", "drop", "copy",
                                                  "error"};
constexpr std::span<const std::string_view> WordsOf(Ties) { return kTiesWords; }
// One of kTiesWords.
HAULWAY_EXPORT std::string_view Name(Ties ties);

// Returns the new name of a tensor.
using RenameFunction = std::function<std::string(std::string_view name)>;

// A Renaming is one rule for new names.
struct Renaming {
  RenameFunction apply;
  // The rule in messages. If it is not empty, the rule must change a name.
  std::string pattern = {};
};

// Returns a rule that replaces every match of a regular expression in the
// syntax of RE2: that of Perl and Python without look-around and
// back-references, matched in linear time. In `replacement`, \1 to \99 and
// \g<name> are groups, \0 and \g<0> the whole match. Fails with
// kInvalidArgument if `pattern` is not an expression or has no such group.
HAULWAY_EXPORT Result<Renaming> MakeRenaming(std::string_view pattern,
                                             std::string_view replacement);

// Returns whether casts apply to tensors of this dtype: floating-point numbers,
// one number in each item.
HAULWAY_EXPORT bool TakesCast(DType dtype);

using DTypeByName = std::map<std::string, DType, std::less<>>;

struct ConvertOptions {
  // By default the format that the path's ending names; an unknown ending is
  // refused.
  std::optional<Format> to = std::nullopt;
  // Cast floating-point tensors to this dtype, rounded as PyTorch does. Other
  // tensors stay unchanged.
  std::optional<DType> dtype = std::nullopt;
  // Floating-point tensors, by their names in the old file, to cast to a dtype
  // of their own instead.
  DTypeByName dtype_of = {};
  // Returns whether to write the tensor with this name; by default all are
  // written. Also called for content that is not a tensor: it is reported as
  // left out only if the result is true.
  std::function<bool(std::string_view name)> select = nullptr;
  // The same by patterns, each of which must match a name in the old file. If
  // both are set, both must accept a name.
  std::shared_ptr<const NameFilter> names = nullptr;
  // Rules for new names, applied one after another.
  std::vector<Renaming> rename = {};
  // Metadata to set in the new file, over that of the old file. Text for
  // formats that store text, any value for formats that store values.
  std::vector<Fact> metadata = {};
  // Maximum bytes of tensors in one file; 0: one file of any size.
  uint64_t shard_bytes = 0;
  Ties ties = Ties::kKeep;
  // Leave out bytes of storages that no tensor uses.
  bool compact = false;
  // Digest every tensor in the old file and, before the new file becomes
  // visible, in the new file. The digests must be equal.
  bool proof = false;
  // Keep each file that is whole in a hidden folder in `path`, which must be a
  // folder, and do not write again what an interrupted call kept there. That
  // call must have had the same source, unchanged, and the same options but for
  // those of `save.write`, `verify` and `durability`. Calls without it remove
  // what is kept. Fails with kUnsupported for a server, for kTorchDcp, and if
  // files are encrypted.
  bool resume = false;
  // Check the checksums of what is read.
  bool verify = true;
  // write.memory_budget limits the memory for reading ahead and assembling. A
  // compressed storage is read whole. `path` has no effect.
  SaveOptions save{};
  Durability durability = Durability::kFull;
  SinkOpener open = nullptr;  // By default OpenSink() of haulway/open.h.
};

inline constexpr FieldTable kConvertOptionFields{

    Field("shard", &ConvertOptions::shard_bytes, kShardMeaning,
          ShardOption("convert")),
    Field("ties", &ConvertOptions::ties,
          "tensors that share memory: 'keep' writes them so, and refuses if "
          "the format cannot; 'drop' writes only the first by name of several "
          "equal tensors; 'copy' writes each in full; 'error' refuses",
          {.calls = "convert", .configured = false, .in_python = false}),
    Field("compact", &ConvertOptions::compact,
          "leave out bytes of storages that no tensor uses",
          {.calls = "save convert", .formats = "torch", .configured = false}),
    Field("proof", &ConvertOptions::proof,
          "compare the SHA-256 of every tensor, as read and as written",
          {.calls = "convert", .configured = false, .flag = "-"}),
    Field("resume", &ConvertOptions::resume,
          "go on from the files that an interrupted conversion into the folder "
          "has written whole, and keep those of this one until all are written",
          {.calls = "convert", .configured = false}),
    Field("verify", &ConvertOptions::verify,
          "check the checksums of the bytes that are read",
          {.calls = "convert",
           .configured = false,
           .flag = "--no-verify",
           .off_meaning =
               "do not check the checksums of the bytes that are read"}),
    Field("durability", &ConvertOptions::durability, kDurabilityMeaning,
          DurabilityOption("convert")),
    FieldsOfMember(&ConvertOptions::save),
};
constexpr const auto& FieldsOf(const ConvertOptions&) {
  return kConvertOptionFields;
}

// A tensor as stored in the new file.
struct TensorProof {
  std::string name;
  std::array<std::byte, 32> sha256{};  // Over its elements, in row-major order.
};

inline constexpr FieldTable kTensorProofFields{

    Field("name", &TensorProof::name, "name of the tensor"),
    Field("sha256", &TensorProof::sha256,
          "digest of its elements, in row-major order"),
};
constexpr const auto& FieldsOf(const TensorProof&) {
  return kTensorProofFields;
}

// A tensor that shares memory with another tensor in the old file.
struct TieNote {
  std::string name;
  std::string with;
  bool dropped = false;  // False: written in full.

  std::string_view done() const { return dropped ? "dropped" : "copied"; }
};

inline constexpr FieldTable kTieNoteFields{

    Field("name", &TieNote::name, "name of the tensor"),
    Field("with", &TieNote::with, "tensor that it shares memory with"),
    Field("done", &TieNote::done, "\"dropped\" or \"copied\""),
};
constexpr const auto& FieldsOf(const TieNote&) { return kTieNoteFields; }

// Content of the old file that the new file does not have.
struct LeftOut {
  std::string name;
  std::string why;
};

inline constexpr FieldTable kLeftOutFields{

    Field("name", &LeftOut::name, "the content"),
    Field("why", &LeftOut::why, "the reason"),
};
constexpr const auto& FieldsOf(const LeftOut&) { return kLeftOutFields; }

struct ConvertReport {
  uint64_t tensors = 0;
  uint64_t bytes = 0;              // Total of all files, as write.bytes.
  std::vector<std::string> files;  // If there is an index, it is last.
  // Files of an older checkpoint of the same name in the same folder.
  std::vector<std::string> removed;
  std::vector<TensorProof> proof;  // Sorted by name.
  std::vector<TieNote> ties;
  std::vector<LeftOut> left_out;
  // The method with which the weights of the old file were quantized; empty:
  // none.
  std::string quantization;
  uint64_t dequantized = 0;  // Weights that are plain in the new file.
  uint64_t merged = 0;       // Weights that adapters were merged into.
  uint64_t ruled = 0;        // Tensors that rules made or renamed.
  // Tensors that only quantized weights need.
  std::vector<std::string> dropped;
  // Other files of the model that were copied into the folder.
  std::vector<std::string> copied;
  // Files that an interrupted conversion had written.
  std::vector<std::string> resumed;
  WriteStats write;  // Total of all files; `seconds` is the time of the call.
};

inline constexpr FieldTable kConvertReportFields{

    Field("tensors", &ConvertReport::tensors, "number of tensors written"),
    Field("files", &ConvertReport::files, "files written; an index is last",
          Spelling::kPath),
    Field("removed", &ConvertReport::removed,
          "files of an older checkpoint in the folder that were removed",
          Spelling::kPath),
    Field("proof", &ConvertReport::proof, "digests of the tensors"),
    Field("ties", &ConvertReport::ties,
          "tensors that share memory in the old file"),
    Field("left_out", &ConvertReport::left_out,
          "content that the new file does not have"),
    Field("quantization", &ConvertReport::quantization,
          "method with which the weights were quantized",
          Spelling::kTextOrNone),
    Field("dequantized", &ConvertReport::dequantized,
          "weights that were dequantized"),
    Field("merged", &ConvertReport::merged,
          "weights that adapters were merged into"),
    Field("ruled", &ConvertReport::ruled, "tensors that rules made or renamed"),
    Field("dropped", &ConvertReport::dropped,
          "tensors that only quantized weights need"),
    Field("copied", &ConvertReport::copied,
          "other files of the model that were copied into the folder",
          Spelling::kPath),
    Field("resumed", &ConvertReport::resumed,
          "files that an interrupted conversion had written", Spelling::kPath),
    FieldsOfMember(&ConvertReport::write),
};
constexpr const auto& FieldsOf(const ConvertReport&) {
  return kConvertReportFields;
}

// Returns the format with this name, as spelled by Name(), if Convert() writes
// it: one of FormatToWriteByName(), or "torch-dcp". Fails with kUnsupported.
HAULWAY_EXPORT Result<Format> FormatToConvertTo(std::string_view name);

// Writes the tensors of `from` to the file `path`. If shard_bytes is set and
// one file is not enough, writes several files beside `path` and an index,
// split and named as huggingface_hub does ("model-00001-of-00003.safetensors",
// "model.safetensors.index.json"). Nothing is visible before everything is
// written. If `path` ends in '/' or is a folder, the files go into the folder
// under the names that huggingface_hub gives them ("model.safetensors",
// "pytorch_model.bin"); `to` must be set, and files that an older checkpoint of
// these names left there are removed at the end. If the old file has a
// config.json beside it, it and the other files of the model that hold no
// weights are copied there; config.json then says the new dtype, and nothing of
// a quantization that is gone. With `to` kTorchDcp, `path` is always a folder,
// which is made a directory of torch.distributed.checkpoint with data files of
// shard_bytes: the directory holds the old checkpoint until its `.metadata` is
// replaced, last of all. A safetensors file gets the metadata "format": "pt" if
// it has no other metadata and the tensors are torch's.
//
// Fails with kInvalidArgument for a target dtype or a tensor in `dtype_of` that
// is not floating-point, equal names, and a `path` that is the source file
// itself or a folder that holds it under a name that is written; kNotFound for
// a name in `dtype_of` that does not exist, a pattern that matches no name, and
// a rule of `rename` that changes no name; kUnsupported for tensors that the
// format cannot hold (another dtype, sparse, quantized, meta, or shared memory)
// and for metadata that it cannot hold; kMismatch if a checksum or the proof
// differs; otherwise as reading and writing do.
HAULWAY_EXPORT Result<ConvertReport> Convert(
    std::shared_ptr<const Checkpoint> from, const std::string& path,
    const ConvertOptions& options = {});

// Changes to a file. Names are those of Entry::name, except keys of the
// outermost dict, which are spelled as in the dict.
struct FileEdit {
  struct Replacement {
    std::string name;
    // The tensor with that name in `from`, or its only tensor; the dtype and
    // shape are taken from it too.
    std::shared_ptr<const Checkpoint> from;
  };

  // Old name, new name.
  std::vector<std::pair<std::string, std::string>> rename;
  std::vector<std::string> drop;
  std::vector<std::pair<std::string, std::string>> set;  // Metadata by key.
  std::vector<std::string> unset;  // Keys; unknown ones are ignored.
  std::optional<DType> dtype;      // As in ConvertOptions.
  DTypeByName dtype_of;
  std::vector<Replacement> replace;
  // All their tensors are added.
  std::vector<std::shared_ptr<const Checkpoint>> merge;
  bool untie = false;  // Write tensors that share memory in full.
};

struct EditOptions {
  OpenOptions open;
  WriteOptions write;
  Durability durability = Durability::kFull;
  SegmentRoom room = SegmentRoom::kAuto;  // For tensorizer files in segments.
  // Write the edited file here and leave the original unchanged; empty: edit in
  // place.
  std::string output;
  // Write nothing, and report what would be written.
  bool dry_run = false;
  // Overwrite the header, of any size, where the file allows it, and fail
  // rather than write a new file; see Edit().
  bool in_place = false;
};

inline constexpr FieldTable kEditOptionFields{

    Field("in_place", &EditOptions::in_place,
          "overwrite the header in the file, or fail; after a crash the next "
          "edit or repair restores the old header",
          {.calls = "edit", .configured = false}),
    Field("dry_run", &EditOptions::dry_run,
          "write nothing; report what would be done and written",
          {.calls = "edit", .configured = false}),
    Field("room", &EditOptions::room, kRoomMeaning, kRoomOption),
    Field("durability", &EditOptions::durability, kDurabilityMeaning,
          DurabilityOption("edit")),
    FieldsOfMember(&EditOptions::write),
};
constexpr const auto& FieldsOf(const EditOptions&) { return kEditOptionFields; }

struct EditReport {
  // The changes made, one in each element, in words.
  std::vector<std::string> steps;
  uint64_t tensors = 0;
  bool in_place = false;
  uint64_t written_bytes = 0;
  uint64_t copied_bytes = 0;
  uint64_t inserted_bytes = 0;
  bool moved = false;
};

inline constexpr FieldTable kEditReportFields{
    Field("steps", &EditReport::steps, "the changes made, in words"),
    Field("tensors", &EditReport::tensors,
          "tensors in the file after the edit"),
    Field("in_place", &EditReport::in_place,
          "true if the file is changed in place; false if a new file takes its "
          "name"),
    Field("written_bytes", &EditReport::written_bytes,
          "bytes written by this process and by the kernel"),
    Field("copied_bytes", &EditReport::copied_bytes,
          "part of written_bytes that the kernel copied from the old file"),
    Field("inserted_bytes", &EditReport::inserted_bytes,
          "bytes that the file system inserted into segments"),
    Field("moved", &EditReport::moved,
          "true if the index or the headers of segments are at another offset "
          "now"),
};
constexpr const auto& FieldsOf(const EditReport&) { return kEditReportFields; }

// Edits the local file `path`, which keeps its format. At every moment the file
// is the old one or the new one, complete, even if the process ends or power is
// lost.
//
// If nothing moves and all changes lie in one sector of 512 bytes, that sector
// is overwritten: for example, a value in the header of a safetensors or GGUF
// file with spare room. Tensorizer files in segments are changed as
// EditTensorizer() does, if possible. In all other cases a new file is written
// beside the old one and takes its name; the kernel copies the unchanged bytes,
// or shares them where the file system can. A safetensors file written this way
// has spare room in its header, because its tensors begin at a multiple of 4
// KiB.
//
// With options.in_place, a header of several sectors is overwritten too, if the
// new one fits before the tensors and no tensor moves. The old bytes are saved
// and synced first in ".NAME.haulway-header" beside the file. If the process
// ends or power is lost in between, readers find a damaged header; the next
// Edit() or Repair() of the file puts the old one back.
//
// Fails with kNotFound for an unknown name; kInvalidArgument for two tensors
// with one name and for changes that contradict each other; kUnsupported for
// content that the format cannot hold, or if the file holds something that
// would be lost (an object other than a dict of tensors; renaming works in any
// PyTorch object) or, with options.in_place, if only a new file can hold the
// change; kUnavailable if another process edits the file; otherwise as
// Convert() does. After a failure the file is unchanged.
HAULWAY_EXPORT Result<EditReport> Edit(const std::string& path,
                                       const FileEdit& edit,
                                       const EditOptions& options = {});

// How Repack() rewrites a PyTorch checkpoint: as torch.save does, with another
// alignment or checksum, or without bytes that no tensor uses.
struct RepackOptions {
  ArchiveWriterOptions archive = {};
  // Leave out what no tensor uses: the bytes of a storage before the first and
  // after the last element in use, and storages that no tensor uses.
  bool compact = false;
};

inline constexpr FieldTable kRepackOptionFields{

    FieldsOfMember(&RepackOptions::archive),
    Field("compact", &RepackOptions::compact,
          "leave out storages, and ends of storages, that no tensor uses"),
};
constexpr const auto& FieldsOf(const RepackOptions&) {
  return kRepackOptionFields;
}

struct Repacked {
  std::unique_ptr<const Layout> layout;  // For Write().
  uint64_t storages = 0;
  uint64_t dropped_bytes = 0;  // Bytes of storages left out by `compact`.
};

// Lays out the object of a checkpoint again. Storages are numbered in the order
// in which the object mentions them; big-endian storages are byte-swapped.
// Blocks: storages that are not in memory are read. `checkpoint` must outlive
// the layout. Fails with kUnsupported for a checkpoint without a pickled object
// (TorchScript, torch.package, other formats) or from torch 0.3 and earlier,
// otherwise as reading does.
HAULWAY_EXPORT Result<Repacked> Repack(const Checkpoint& checkpoint,
                                       const RepackOptions& options = {});

struct EncryptStats {
  uint64_t tensors = 0;
  WriteStats write;
};

struct EncryptOptions {
  WriteOptions write;
  // As in TensorizerOptions.
  bool authenticate_metadata = true;
};

// Writes the content of a tensorizer file to `sink`, encrypted with `key`, or
// in plain text if `key` is empty. Checks every digest of `from`. A file in
// segments stays one and keeps its metadata, but becomes a single file. A
// passphrase becomes a key at libsodium's moderate cost (256 MiB), with a new
// salt. Holds all tensors in memory. Fails with kUnsupported for checkpoints of
// other formats, kAuth if `from` is encrypted and was opened without its key,
// and as reading and writing do.
HAULWAY_EXPORT Result<EncryptStats> EncryptCheckpoint(
    const Checkpoint& from, const EncryptionKey& key, ByteSink& sink,
    const EncryptOptions& options = {});

struct RepairOptions {
  // By default the format that the path's ending names.
  std::optional<Format> to = std::nullopt;
  OpenOptions open = {};  // For every file that is read.
  // As in ConvertOptions; `save.key` encrypts the new file.
  SaveOptions save = {};
  Durability durability = Durability::kFull;
  SinkOpener open_sink = nullptr;  // By default OpenSink() of haulway/open.h.
};

inline constexpr FieldTable kRepairOptionFields{

    Field("durability", &RepairOptions::durability, kDurabilityMeaning,
          DurabilityOption("repair")),
    FieldsOfMember(&RepairOptions::save),
};
constexpr const auto& FieldsOf(const RepairOptions&) {
  return kRepairOptionFields;
}

struct TakenTensor {
  std::string name;
  std::string from;  // The name of the source.
};

inline constexpr FieldTable kTakenTensorFields{

    Field("name", &TakenTensor::name, "name of the tensor"),
    Field("from", &TakenTensor::from, "the copy that it was taken from"),
};
constexpr const auto& FieldsOf(const TakenTensor&) {
  return kTakenTensorFields;
}

struct LostTensor {
  std::string name;
  std::string why;
};

inline constexpr FieldTable kLostTensorFields{

    Field("name", &LostTensor::name, "name of the tensor"),
    Field("why", &LostTensor::why, "the reason"),
};
constexpr const auto& FieldsOf(const LostTensor&) { return kLostTensorFields; }

// All lists are sorted by name.
struct RepairReport {
  std::vector<std::string> kept;  // Taken from the file itself.
  std::vector<TakenTensor> taken;
  // Not in the new file. If a truncated zip does not say what it held and there
  // is no copy, "?" stands for everything after the cut.
  std::vector<LostTensor> lost;
  std::vector<LeftOut> left_out;
  // Why the file could not be opened as usual, or not at all; empty if it
  // could.
  std::string fault;
  uint64_t bytes = 0;  // Size of the new file.

  bool ok() const { return lost.empty(); }
};

inline constexpr FieldTable kRepairReportFields{

    Field("ok", &RepairReport::ok, "true if nothing is lost"),
    Field("fault", &RepairReport::fault,
          "why the file could not be opened as usual", Spelling::kTextOrNone),
    Field("kept", &RepairReport::kept, "tensors of the file itself"),
    Field("taken", &RepairReport::taken, "tensors taken from copies"),
    Field("lost", &RepairReport::lost,
          "tensors that the new file does not have"),
    Field("left_out", &RepairReport::left_out,
          "content that the new file does not have"),
    Field("bytes", &RepairReport::bytes, "size of the new file"),
};
constexpr const auto& FieldsOf(const RepairReport&) {
  return kRepairReportFields;
}

// Writes the sound tensors of `file` to `path`: those whose bytes are present
// and agree with every checksum in the file. A tensor that is damaged, or that
// only `others` have, is taken from the first source in `others` where it is
// sound; its dtype and shape must be the same. If an edit of `file` in place
// was interrupted, its old header is put back first. Tensors that share memory
// are written in full. From a truncated zip, safetensors, GGUF or Tensorizer
// file, the complete tensors are saved. The new file becomes visible when all
// of it is written; if there is no tensor, no file is made.
//
// Fails with kInvalidArgument if `path` is one of the sources; kNotFound if no
// tensor is sound, with the file's own fault if there is no other source;
// kUnsupported as Convert() does; kAuth without the key that it needs.
HAULWAY_EXPORT Result<RepairReport> Repair(
    std::shared_ptr<const ByteSource> file,
    std::span<const std::shared_ptr<const ByteSource>> others,
    const std::string& path, const RepairOptions& options = {});

}  // namespace haulway
