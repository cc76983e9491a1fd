// How the weights of a checkpoint are quantized, as far as it is known, and
// what became of them.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/dtype.h"
#include "haulway/fields.h"
#include "haulway/status.h"

namespace haulway {

// How the weights of a checkpoint are quantized: what config.json beside it
// declares, or what the names and types of its tensors show.
struct Quantization {
  // "fp8", "gptq", "gguf" and so on, as `quant_method` of config.json has it.
  std::string method;
  // The variant, such as a format of compressed-tensors; empty: there is only
  // one, or none is stated.
  std::string format;
  uint64_t weights = 0;  // Quantized weights.
};

inline constexpr FieldTable kQuantizationFields{

    Field("method", &Quantization::method, "name of the method"),
    Field("format", &Quantization::format, "variant of the method",
          Spelling::kTextOrNone),
    Field("weights", &Quantization::weights, "number of quantized weights"),
};
constexpr const auto& FieldsOf(const Quantization&) {
  return kQuantizationFields;
}

// What opening with OpenOptions::dequantize did.
struct Dequantized {
  Quantization quantization;
  DType dtype = DType::kBF16;  // The plain weights have it.
  // Tensors that the plain weights do not need, sorted by name.
  std::vector<std::string> dropped;
};

// What opening with OpenOptions::lora did.
struct Merged {
  uint64_t weights = 0;  // Adapters were merged into so many.
  // The model has a head of its own now, whose weights were those of the
  // embeddings.
  bool is_untied = false;
};

}  // namespace haulway
