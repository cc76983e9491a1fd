// One file into another: converting between formats, writing a PyTorch
// checkpoint anew, encrypting and decrypting, and mending a damaged one.
//
// Convert() writes the tensors of a checkpoint of any format as a file of any
// that is written. Edit() changes names, metadata and tensors of a file.
//
// Nothing is held that need not be: elements are read, cast and written piece
// by piece, by several threads at once. What cannot be written is refused by
// name, or told in the report; nothing is left out in silence.

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
#include "haulway/index.h"
#include "haulway/options.h"
#include "haulway/save.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/tensorizer.h"

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

// Replaces every match of a regular expression in the syntax of RE2: that of
// Perl and Python without look-around and back-references, matched in linear
// time. In `replacement`, \1 to \99 and \g<name> are groups, \0 and \g<0> the
// whole match. Fails with kInvalidArgument if `pattern` is not an expression or
// if it has no such group.
HAULWAY_EXPORT Result<RenameFunction> MakeRenaming(
    std::string_view pattern, std::string_view replacement);

// Whether tensors of this dtype are those that casts are for: floating-point
// numbers, one in each item.
HAULWAY_EXPORT bool TakesCast(DType dtype);

using DTypeByName = std::map<std::string, DType, std::less<>>;

struct ConvertOptions {
  // By default what the path ends as; an ending that means nothing is
  // refused.
  std::optional<Format> to = std::nullopt;
  // Floating-point tensors are cast to this, as PyTorch rounds. The others
  // stay as they are.
  std::optional<DType> dtype = std::nullopt;
  // Floating-point tensors, by their names in the old file, that are cast to
  // a dtype of their own instead.
  DTypeByName dtype_of = {};
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
  SinkOpener open = nullptr;  // By default OpenSink() of haulway/open.h.
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
  // Files of an older checkpoint of the same name in the same folder.
  std::vector<std::string> removed;
  std::vector<TensorProof> proof;  // By name.
  std::vector<TieNote> ties;
  std::vector<LeftOut> left_out;
  WriteStats write;  // Of all files; `seconds` are those of the call.
};

// Writes the tensors of `from` to the file `path`; with shard_bytes to several
// beside it and an index, named and split as huggingface_hub does
// ("model-00001-of-00003.safetensors", "model.safetensors.index.json"), if one
// is not enough. Nothing is visible before all of it is written. If `path` ends
// in '/' or is a folder, the files go into it under the names that
// huggingface_hub gives them ("model.safetensors", "pytorch_model.bin"), `to`
// must be set, and what an older checkpoint of these names left there is
// removed at the end. Safetensors
// files get the metadata "format": "pt", if they have none and the tensors are
// torch's.
//
// Fails with kInvalidArgument for a dtype that is not floating-point, or of a
// tensor that is not, names that are equal, and a path that is the file itself
// or a folder in which it lies under a name that is written;
// kNotFound for a name of `dtype_of` that is not there; kUnsupported for
// tensors that the format cannot hold (of another dtype, sparse, quantized,
// meta ones, or that share memory); kMismatch where a checksum or the proof
// differs; else as reading and writing do.
HAULWAY_EXPORT Result<ConvertReport> Convert(
    std::shared_ptr<const Checkpoint> from, const std::string& path,
    const ConvertOptions& options = {});

// What to change in a file. Names are those of Entry::name, but for keys of the
// outermost dict, which are as they stand in it.
struct FileEdit {
  struct Replacement {
    std::string name;
    // Its tensor of that name, or its only one: with dtype and shape.
    std::shared_ptr<const Checkpoint> from;
  };

  std::vector<std::pair<std::string, std::string>> rename;  // Old name, new.
  std::vector<std::string> drop;
  std::vector<std::pair<std::string, std::string>> set;  // Metadata by key.
  std::vector<std::string> unset;  // Keys; those not there are no error.
  std::optional<DType> dtype;      // As ConvertOptions has both.
  DTypeByName dtype_of;
  std::vector<Replacement> replace;
  std::vector<std::shared_ptr<const Checkpoint>> merge;  // All their tensors.
  bool untie = false;  // Tensors that share memory are each written in full.
};

struct EditOptions {
  OpenOptions open;
  WriteOptions write;
  Durability durability = Durability::kFull;
  SegmentRoom room = SegmentRoom::kAuto;  // Of tensorizer files in segments.
  // Where to write what the file would become, leaving it as it is.
  std::string output;
  // Write nothing, and tell what would be written.
  bool dry_run = false;
};

struct EditReport {
  // What is done, one change each, in words.
  std::vector<std::string> steps;
  uint64_t tensors = 0;
  bool in_place = false;
  uint64_t written_bytes = 0;
  uint64_t copied_bytes = 0;
  uint64_t inserted_bytes = 0;
  bool moved = false;
};

inline constexpr Field<EditReport> kEditReportFields[] = {
    {"tensors", &EditReport::tensors, "now in the file"},
    {"in_place", &EditReport::in_place,
     "the file is changed where it is; else a new one takes its name"},
    {"written_bytes", &EditReport::written_bytes,
     "by this process and by the kernel"},
    {"copied_bytes", &EditReport::copied_bytes,
     "of these, by the kernel from the old file"},
    {"inserted_bytes", &EditReport::inserted_bytes,
     "by the file system, into segments"},
    {"moved", &EditReport::moved,
     "of segments: index or headers stand elsewhere now"},
};
inline std::span<const Field<EditReport>> FieldsOf(const EditReport&) {
  return kEditReportFields;
}

// Changes the local file `path`, which keeps its format. The file is at every
// moment the old one or the new one, whole, whenever the process ends or power
// is lost.
//
// Where nothing moves and all that changes lies in one sector of 512 bytes,
// that is written over the file: a value in the header of a safetensors or GGUF
// file that has room for it. Tensorizer files in segments are changed as
// EditTensorizer() does, where that can be. Else a file is written beside it,
// to which the kernel copies what stays (sharing it, where the file system
// can), and takes the name; a safetensors file has room from then on, since
// its tensors begin at a multiple of 4 KiB.
//
// Fails with kNotFound for a name that is not there; kInvalidArgument for two
// tensors of one name; kUnsupported for what the format cannot hold, or where
// the file holds what would be lost (another object than a dict of tensors,
// but for names, which change anywhere in a PyTorch object); kUnavailable if
// someone else edits the file; else as Convert() does. Then the file is as it
// was.
HAULWAY_EXPORT Result<EditReport> Edit(const std::string& path,
                                       const FileEdit& edit,
                                       const EditOptions& options = {});

// How Repack() writes a PyTorch checkpoint anew: as torch.save does, with
// another alignment or checksum, or without bytes that no tensor uses.
struct RepackOptions {
  ArchiveWriterOptions archive = {};
  // Leave out what no tensor uses: bytes before the first and after the last
  // element that some tensor reaches, and storages that none reaches.
  bool compact = false;
};

struct Repacked {
  std::unique_ptr<const Layout> layout;  // For Write().
  uint64_t storages = 0;
  uint64_t dropped_bytes = 0;  // Of storages, by `compact`.
};

// Lays out the object of a checkpoint anew. Storages are numbered in the order
// in which the object names them; big-endian ones are turned around. Blocks:
// storages that are not in memory are read. `checkpoint` must outlive the
// layout. Fails with kUnsupported for a checkpoint without a pickled object
// (TorchScript, torch.package, other formats) or from
// torch 0.3 and before, else as reading does.
HAULWAY_EXPORT Result<Repacked> Repack(const Checkpoint& checkpoint,
                                       const RepackOptions& options = {});

struct EncryptStats {
  uint64_t tensors = 0;
  WriteStats write;
};

struct EncryptOptions {
  WriteOptions write;
  // As TensorizerOptions has it.
  bool authenticate_metadata = true;
};

// Writes what a tensorizer file holds to `sink`, encrypted with `key`, or as
// it is if that is empty; every digest of `from` is checked on the way. A file
// in segments stays one, with its metadata, but in one file. A passphrase
// becomes a key at libsodium's moderate cost (256 MiB), with a new salt. Holds
// all tensors in memory. Fails with kUnsupported for checkpoints of other
// formats, kAuth if `from` is encrypted and was opened without its key, and as
// reading and writing do.
HAULWAY_EXPORT Result<EncryptStats> EncryptCheckpoint(
    const Checkpoint& from, const EncryptionKey& key, ByteSink& sink,
    const EncryptOptions& options = {});

struct RepairOptions {
  // By default what the path ends as.
  std::optional<Format> to = std::nullopt;
  OpenOptions open = {};  // Of all that is read.
  // As ConvertOptions has them; `save.key` is that of the new file.
  SaveOptions save = {};
  Durability durability = Durability::kFull;
};

struct TakenTensor {
  std::string name;
  std::string from;  // The name of the source.
};

struct LostTensor {
  std::string name;
  std::string why;
};

// All by name.
struct RepairReport {
  std::vector<std::string> kept;  // Sound in the file itself.
  std::vector<TakenTensor> taken;
  // Not in the new file. Of a cut zip that does not say what it held, and
  // without a copy, "?" stands for whatever came after the cut.
  std::vector<LostTensor> lost;
  std::vector<LeftOut> left_out;
  // Why the file was not opened as it is, or not at all; empty if it was.
  std::string fault;
  uint64_t bytes = 0;  // Of the new file.
};

// Writes what is sound of `file` to `path`: tensors whose bytes are there and
// agree with every checksum that the file has of them. A tensor that is not, or
// that only others have, is taken from the first of `others` in which it is
// sound, and of the same dtype and shape. Tensors that share memory are written
// in full. Of a cut zip, safetensors, GGUF or Tensorizer file the tensors that
// are whole are saved. The new file appears when all of it is there; none does
// if there is no tensor.
//
// Fails with kInvalidArgument where `path` is one of the sources, kNotFound if
// no tensor is sound, with the file's fault if there is nothing else to read;
// kUnsupported as Convert() does; kAuth without the key that it takes.
HAULWAY_EXPORT Result<RepairReport> Repair(
    std::shared_ptr<const ByteSource> file,
    std::span<const std::shared_ptr<const ByteSource>> others,
    const std::string& path, const RepairOptions& options = {});

}  // namespace haulway
