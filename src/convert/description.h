// What is to be written of a checkpoint, whatever it is written for.

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

// What floating-point tensors are cast to: all of them, and some by their names
// in the old file. It refers to what it is made of.
class Casts {
 public:
  explicit Casts(const ConvertOptions& options)
      : all_(options.dtype), by_name_(options.dtype_of) {}
  explicit Casts(const FileEdit& edit)
      : all_(edit.dtype), by_name_(edit.dtype_of) {}

  // Fails with kInvalidArgument for what is no floating-point dtype, and with
  // kNotFound for a name that no tensor has.
  Status Check(const CheckpointIndex& index) const;

  // What a tensor of that name, if it has one there, and dtype is written as.
  // Fails with kInvalidArgument for one that is not floating-point but has a
  // dtype of its own, and with kUnsupported where there is no such cast.
  // Requires: Check().
  Result<DType> To(std::optional<std::string_view> name, DType dtype) const;

 private:
  const std::optional<DType>& all_;
  const DTypeByName& by_name_;
};

// A tensor that was chosen.
struct Row {
  std::string name;
  uint32_t tensor = 0;
  DType to = DType::kU8;
  uint64_t bytes = 0;  // As written.
  // In its storage, of what it reaches.
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct Description {
  TensorsToWrite what;
  std::vector<Row> rows;  // Parallel to what.tensors.
  std::vector<TieNote> ties;
  std::vector<LeftOut> left_out;
};

// Chooses, renames and casts as `options` say, and settles ties, for a file of
// the format `to`. Reads what has checksums but is not read whole by who writes
// it. `from` must outlive the description. Fails as Convert() does for what
// cannot be written so.
Result<Description> DescribeTensors(const Checkpoint& from, Format to,
                                    const ConvertOptions& options,
                                    const SourceOptions& source);

}  // namespace haulway::convert
