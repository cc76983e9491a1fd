// The tensors of the newest version, in memory of our own.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/checkpoint.h"
#include "haulway/dtype.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway {

struct KeptTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  std::optional<Buffer> memory = std::nullopt;  // If it was loaded.
};

// Returns the bytes of a dense tensor. Fails with kInvalidArgument if there are
// too many, or a size is negative.
Result<uint64_t> BytesOfShape(DType dtype, std::span<const int64_t> shape);

// Fails with kInvalidArgument unless the tensor has so many bytes, in memory.
Status CheckLength(const TensorToWrite& tensor, uint64_t bytes);

// KeptWeights holds tensors in one allocation for each call that loads or
// copies some. Threads: one at a time; the memory of different tensors may be
// used by different threads.
class KeptWeights {
 public:
  // Adds a tensor without its bytes. Fails with kInvalidArgument if another one
  // has the name.
  Status Add(KeptTensor tensor);
  // Adds the tensors of a checkpoint without their bytes. Fails with
  // kUnsupported for tensors without data of their own.
  Status AddAll(const Checkpoint& checkpoint);
  // Copies tensors, the only ones.
  Status Copy(std::span<const TensorToWrite> tensors, int threads);
  // Loads the bytes of tensors, given by their rows, from the checkpoint. Fails
  // as reading does, and with kMismatch for tensors that are not the same
  // there; then none of them is loaded.
  Status Load(const Checkpoint& checkpoint, std::vector<size_t> rows,
              int threads);

  size_t size() const { return tensors_.size(); }
  const KeptTensor& operator[](size_t row) const { return tensors_[row]; }
  // Returns the row of a name.
  std::optional<size_t> Find(std::string_view name) const;

 private:
  Status Allocate(const std::vector<size_t>& rows);

  std::vector<KeptTensor> tensors_;
  std::map<std::string, size_t, std::less<>> rows_;
};

}  // namespace haulway
