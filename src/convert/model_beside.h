// The other files of a model: its configuration, its tokenizer, its code.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/convert.h"
#include "haulway/dtype.h"
#include "haulway/status.h"

namespace haulway::convert {

// A file to write beside the tensors.
struct OtherFile {
  std::string name;  // Without a folder.
  std::string text;
};

// Reads the files in the folder of `from` that hold no weights, if config.json
// is there. A folder that cannot be listed is asked for the names that models
// usually have. Files of more than 256 MiB are added to `left_out`.
//
// If `from` was dequantized, config.json loses what it says of that, and
// hf_quant_config.json is left out. `dtype` replaces the dtype that it names;
// nothing: it stays. Fails as reading does, and with kCorrupt if config.json is
// no JSON object. If adapters gave the model a head of its own, config.json
// says so.
Result<std::vector<OtherFile>> ReadOthers(const Checkpoint& from,
                                          std::optional<DType> dtype,
                                          std::vector<LeftOut>* left_out);

// What changes in config.json.
struct ConfigChanges {
  std::optional<DType> dtype = std::nullopt;  // The new one.
  bool is_plain = false;   // It says nothing of a quantization any more.
  bool is_untied = false;  // The head has weights of its own.

  bool any() const { return dtype.has_value() || is_plain || is_untied; }
};

// All other values keep their spelling.
Result<std::string> ChangeConfig(std::string_view config,
                                 const ConfigChanges& changes);

}  // namespace haulway::convert
