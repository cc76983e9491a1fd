// Rules that make the tensors of a checkpoint into others: names, stacks, parts
// and simple arithmetic. docs/quantized.md describes them.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/status.h"

namespace haulway {

enum class DType : uint8_t;  // haulway/dtype.h

// A tensor that a function of a rule takes or returns, row-major.
struct RuleTensor {
  DType dtype;
  std::vector<int64_t> shape;
  Buffer bytes;
};

// Makes the tensors of a rule's sources, in their order, into those of its
// targets. Called from any thread, once when the checkpoint is opened and
// whenever a result is read and not in memory any more, so it must return the
// same for the same tensors.
using RuleFunction = std::function<Result<std::vector<RuleTensor>>(
    std::vector<RuleTensor> sources)>;

struct Rules {
  // A preset, or the path or URL of a file with rules as JSON,
  std::string name;
  // unless this is its text.
  std::string json;
  // What "apply": N of a rule calls.
  std::vector<RuleFunction> functions;

  bool empty() const { return name.empty() && json.empty(); }
};

}  // namespace haulway
