#include "base/json_text.h"

#include <fmt/format.h>

#include <cstddef>

namespace haulway {

std::string JsonText(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      json += c;
    }
  }
  return json + '"';
}

void ReplaceNumbers(std::string* json) {
  bool is_text = false;
  for (size_t i = 0; i < json->size(); ++i) {
    const char c = (*json)[i];
    if (is_text && c == '\\') {
      ++i;
    } else if (c == '"') {
      is_text = !is_text;
    } else if (!is_text && (c == 'N' || c == 'I' || c == '-')) {
      for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
        if (!std::string_view(*json).substr(i).starts_with(word)) continue;
        std::string zero = c == '-' ? "-0." : "0.";
        zero.resize(word.size(), '0');
        json->replace(i, word.size(), zero);
        break;
      }
    }
  }
}

}  // namespace haulway
