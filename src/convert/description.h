// What is to be written of a checkpoint, whatever it is written for.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "convert/tensor_source.h"
#include "haulway/checkpoint.h"
#include "haulway/convert.h"
#include "haulway/dtype.h"
#include "haulway/format.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway::convert {

// Fails with kInvalidArgument where floating-point tensors are to be cast to
// what is no floating-point dtype.
Status CheckCast(const std::optional<DType>& floating);

// What a tensor of `dtype` is written as where floating-point ones are cast to
// `floating`. Fails with kUnsupported where there is no such cast. Requires:
// CheckCast().
Result<DType> DTypeToWrite(DType dtype, const std::optional<DType>& floating);

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
