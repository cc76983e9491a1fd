// JSON, and what programs run because of it.

#pragma once

#include <optional>
#include <string_view>

#include "scan/config_names.h"
#include "scan/text_proof.h"

namespace haulway::scan {

struct JsonFacts {
  // Whether the text is values of JSON to its last byte, one after another as
  // JSON lines have them, as Python's json module reads them: with NaN and
  // Infinity, and numbers of any length, which simdjson refuses and
  // tokenizers' configurations have.
  bool is_json = false;
  // The first doubt about a key or a value, if it is JSON.
  std::optional<Doubt> doubt;
};

JsonFacts WalkJson(std::string_view text, const ConfigPlace& place);

}  // namespace haulway::scan
