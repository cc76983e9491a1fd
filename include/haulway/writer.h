// Writing a model whose tensors come one after another, or in pieces.
//
// What is added waits in a file without a name beside the target; Commit()
// makes the target of it, or its shards and their index. So a model may be
// larger than memory, and the file is what saving all of it at once would be.
// The disk holds the tensors twice meanwhile.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/dtype.h"
#include "haulway/export.h"
#include "haulway/index.h"
#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

struct TensorWriterOptions {
  // By default what FormatToWrite() says of the path.
  std::optional<Format> format = std::nullopt;
  // Bytes of tensors in one file at most, as ConvertOptions has it; 0: one
  // file.
  uint64_t shard_bytes = 0;
  std::optional<std::vector<std::pair<std::string, std::string>>> metadata =
      std::nullopt;
  SaveOptions save{};  // `path` has no effect.
  Durability durability = Durability::kFull;
};

struct WrittenFiles {
  std::vector<std::string> files;  // The index, if there is one, is the last.
  WriteStats write;                // Of all files.
};

// A TensorWriter writes one model. Without Commit() it leaves no trace.
//
// Threads: Write() may be called from many threads at once, for different
// tensors and for parts of one; the others not while any of them runs.
class HAULWAY_EXPORT TensorWriter {
 public:
  // Fails as FormatToWrite() and CheckEnding() do, and where no file can be
  // made beside `path`.
  static Result<std::unique_ptr<TensorWriter>> Open(
      std::string path, const TensorWriterOptions& options = {});
  virtual ~TensorWriter() = default;

  // Adds a dense tensor in row-major order, whose bytes are free for use again
  // on return. Fails with kInvalidArgument for a name that was added before
  // and bytes that do not match the shape, and as writing does.
  virtual Status Add(std::string_view name, DType dtype,
                     std::span<const int64_t> shape,
                     std::span<const std::byte> bytes) = 0;

  // Adds a tensor whose bytes come by Write(); gives its number.
  virtual Result<size_t> AddPart(std::string_view name, DType dtype,
                                 std::span<const int64_t> shape) = 0;
  // Writes bytes of such a tensor, `offset` from its start, in any order.
  // Fails with kInvalidArgument where they leave it.
  virtual Status Write(size_t tensor, uint64_t offset,
                       std::span<const std::byte> bytes) = 0;

  // Writes the files and makes them visible. Fails with kInvalidArgument,
  // and names the tensor, where bytes of one are missing, for what the format
  // cannot hold as LayOut() does, and as writing does. Once.
  virtual Result<WrittenFiles> Commit() = 0;
};

}  // namespace haulway
