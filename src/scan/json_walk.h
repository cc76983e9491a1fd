// Checks whether a text is JSON, and what it makes programs run.

#pragma once

#include <optional>
#include <string_view>

#include "scan/config_names.h"
#include "scan/text_proof.h"

namespace haulway::scan {

struct JsonFacts {
  // True if the whole text consists of JSON values, one after another as in
  // JSON lines, by the rules of Python's json module: NaN, Infinity and numbers
  // of any length are allowed. simdjson refuses these, and tokenizer
  // configurations have them.
  bool is_json = false;
  // If the text is JSON: the first doubt about a key or a value.
  std::optional<Doubt> doubt;
};

JsonFacts WalkJson(std::string_view text, const ConfigPlace& place);

}  // namespace haulway::scan
