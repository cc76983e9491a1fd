// Finds the quantized weights of a checkpoint.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arithmetic/declaration.h"
#include "arithmetic/weight.h"
#include "haulway/dtype.h"
#include "haulway/format.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

// A tensor of the result under a name that is not stored.
struct AddedEntry {
  std::string name;
  uint32_t entry = 0;   // The entry of the tensor that it is,
  uint32_t weight = 0;  // unless this is the number of a weight.
};

struct FoundWeights {
  std::string method;  // Empty if nothing is quantized or declared to be.
  std::string format;
  std::vector<Weight> weights;
  // By entry of the index: the weight whose root it is; kIsKept for a tensor
  // that stays as it is, kIsDropped for one that belongs to a weight.
  std::vector<uint32_t> weight_of;
  std::vector<AddedEntry> added;
};
inline constexpr uint32_t kIsKept = 0xFFFFFFFF;
inline constexpr uint32_t kIsDropped = 0xFFFFFFFE;

// Finds the weights by their names, dtypes and shapes; reads only the shapes
// that tensors hold. A weight is quantized if its companions are there.
//
// `to`: the dtype of the results; by default that of the declaration, else
// BF16; F32 for ggml's types. `widens_halves`: F16 and BF16 of a GGUF file are
// weights, too, as they are for gguf.quants.dequantize().
//
// Fails with kUnsupported, naming the method or type, for one that is not
// known, and for weights that nothing declares; with kMismatch, naming the
// tensor, for a quantized tensor without its companions, a companion without
// its tensor, and shapes or dtypes that do not fit; and as reading does.
Result<FoundWeights> FindWeights(const FormatReader& reader,
                                 const Declaration& declaration,
                                 std::optional<DType> to, bool widens_halves);

// Returns the methods that are known.
std::vector<std::string_view> KnownMethods();

}  // namespace haulway::arithmetic
