// Saving: tensors by name as a file of any format that is written.
//
// There is one description of what to write, TensorsToWrite, for every format.
// The bytes of a tensor are the caller's memory, a range of a source, or made
// when they are asked for; so what is written need not be in memory, all of it
// or any of it. Tensors that share memory say so, and formats that can keep
// that do.
//
// Units: sizes and offsets are bytes unless a field says otherwise.
// Elements are in this machine's byte order.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/dtype.h"
#include "haulway/encryption.h"
#include "haulway/export.h"
#include "haulway/index.h"
#include "haulway/layout.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// Bytes to write, and where they are. Of no bytes, nothing need be set.
struct BytesToWrite {
  uint64_t length = 0;
  // In memory, unchanged until they are written. `owner` keeps them alive, if
  // they are not the caller's to keep.
  const std::byte* bytes = nullptr;
  std::shared_ptr<const void> owner = nullptr;
  // Else `length` bytes of this source, read piece by piece as they are
  // written, from several threads at once. MakeProducedSource() makes one of a
  // function.
  std::shared_ptr<const ByteSource> source = nullptr;
  uint64_t source_offset = 0;
};

// A tensor that is part of a storage, as in StorageInfo and TensorInfo.
struct StorageView {
  uint32_t storage = 0;            // Row of TensorsToWrite::storages.
  uint64_t offset = 0;             // In elements, from the storage's start.
  std::vector<int64_t> strides{};  // In elements; none is negative.
};

struct TensorToWrite {
  std::string name{};
  DType dtype = DType::kU8;
  std::vector<int64_t> shape{};
  // All elements, dense and in row-major order; of no effect with a view.
  BytesToWrite bytes{};
  std::optional<StorageView> view = std::nullopt;
};

struct TensorsToWrite {
  std::vector<TensorToWrite> tensors{};  // In the order of the file, if it can.
  std::vector<BytesToWrite> storages{};  // Those that views are of.
  // Text by key, of formats that have room for it; none and an empty one may
  // be told apart.
  std::optional<std::vector<std::pair<std::string, std::string>>> metadata =
      std::nullopt;
  // The same with values of any kind, behind `metadata`, of formats that keep
  // them. A Fact's `type` says how a value is written; without one that is the
  // smallest signed type that holds it, or f32 if it is exact, else f64.
  std::vector<Fact> values{};
};

struct SaveOptions {
  WriteOptions write{};
  // Encrypts, in formats that can; a passphrase becomes a key at libsodium's
  // moderate cost (256 MiB), with a new salt.
  EncryptionKey key{};
  // Where payloads start, a multiple of this; by default as the format's own
  // library has it.
  std::optional<uint64_t> alignment = std::nullopt;
  // False leaves out the CRC-32 that torch's container may do without.
  bool checksums = true;
  // What the file will be called, which torch's container repeats inside.
  std::string path{};
};

// A source of `size` bytes that `produce` makes, all at once, when the first of
// them is asked for. They are let go when each was read once, and are made
// anew if they are asked for again. One call of `produce` at a time.
HAULWAY_EXPORT std::shared_ptr<const ByteSource> MakeProducedSource(
    uint64_t size, std::function<Result<Buffer>()> produce, std::string name);

// Lays out a file, for Write(); it keeps what it is given. A view of a format
// that has none is written in full if no other tensor is of the same memory.
//
// Fails with kInvalidArgument for names that are equal or that the format
// cannot hold, bytes that do not match the shape, and views that leave their
// storage; with kUnsupported for a format that is not written, dtypes,
// metadata and encryption that it lacks, and tensors that share memory where
// it cannot say so.
HAULWAY_EXPORT Result<std::unique_ptr<const Layout>> LayOut(
    TensorsToWrite tensors, Format format, const SaveOptions& options = {});

// Lays out a file and writes it: nothing is visible unless all is. Fails as
// LayOut() and Write() do.
HAULWAY_EXPORT Result<WriteStats> Save(TensorsToWrite tensors, Format format,
                                       ByteSink& sink,
                                       const SaveOptions& options = {});

// The format that a file of this name is written in: what its ending says,
// without regard to case, and torch's for an ending that means nothing. Fails
// with kUnsupported for the ending of a format that is not written, so that no
// file says what it is not.
HAULWAY_EXPORT Result<Format> FormatToWrite(std::string_view path);

// Fails with kUnsupported if the name ends as files of another format do.
HAULWAY_EXPORT Status CheckEnding(std::string_view path, Format format);

// The format of that name, as Name() spells it. Fails with kUnsupported for
// one that is not written.
HAULWAY_EXPORT Result<Format> FormatToWriteByName(std::string_view name);

}  // namespace haulway
