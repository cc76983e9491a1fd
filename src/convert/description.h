// Describes which tensors of a checkpoint to write, for conversions and edits.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/tensor_source.h"
#include "haulway/checkpoint.h"
#include "haulway/convert.h"
#include "haulway/dtype.h"
#include "haulway/format.h"
#include "haulway/index.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway::convert {

// The dtypes that floating-point tensors are cast to: one for all, and others
// by name in the old file. Refers to the constructor's argument.
class Casts {
 public:
  explicit Casts(const ConvertOptions& options)
      : all_(options.dtype), by_name_(options.dtype_of) {}
  explicit Casts(const FileEdit& edit)
      : all_(edit.dtype), by_name_(edit.dtype_of) {}

  // Fails with kInvalidArgument if a dtype is not floating-point, and with
  // kNotFound for a name that no tensor has.
  Status Check(const CheckpointIndex& index) const;

  // Fails with kUnsupported, and names the tensor, if a tensor of `from` would
  // be cast, but has scales or is one of them, whatever its dtype. `name`: the
  // one that it has in the old file, if it has one.
  Status CheckScales(std::optional<std::string_view> name,
                     const Checkpoint& from, uint32_t tensor) const;

  // Returns the dtype that this tensor is written as. Fails as CheckScales(),
  // with kInvalidArgument if the tensor has an explicit cast but is not
  // floating-point, and with kUnsupported if there is no such cast. Only the
  // first names the tensor. Requires: Check().
  Result<DType> To(std::optional<std::string_view> name, const Checkpoint& from,
                   uint32_t tensor) const;

 private:
  const std::optional<DType>& all_;
  const DTypeByName& by_name_;
};

// A selected tensor.
struct Row {
  std::string name;  // Moved to the tensor that is written.
  uint32_t tensor = 0;
  DType to = DType::kU8;
  uint64_t bytes = 0;  // Size as written.
  // Byte range in its storage that the tensor reaches.
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct Description {
  TensorsToWrite what;
  std::vector<Row> rows;  // Parallel to what.tensors.
  std::vector<TieNote> ties;
  std::vector<LeftOut> left_out;
};

// Selects, renames and casts tensors by `options`, and resolves shared memory,
// for a file of format `to`. Reads and checks storages that have checksums but
// that the writer does not read whole. `from` must outlive the description.
// Fails as Convert() does for tensors that cannot be written so.
Result<Description> DescribeTensors(const Checkpoint& from, Format to,
                                    const ConvertOptions& options,
                                    const SourceOptions& source);

}  // namespace haulway::convert
