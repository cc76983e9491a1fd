// The lines of testdata/safetensors/verdicts.tsv, for tests.
// python/tests/safetensors_files/test_safetensors.py checks the column of the
// reference.

#pragma once

#include <charconv>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace haulway::safetensors::test {

struct Case {
  std::string name, length, header, data_bytes, reference, strict, lenient;
};

inline std::vector<Case> Cases() {
  std::vector<Case> cases;
  std::ifstream file(HAULWAY_TESTDATA "/safetensors/verdicts.tsv");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream fields(line);
    Case one;
    for (std::string* field :
         {&one.name, &one.length, &one.header, &one.data_bytes, &one.reference,
          &one.strict, &one.lenient}) {
      std::getline(fields, *field, '\t');
    }
    cases.push_back(one);
  }
  return cases;
}

// Expands <NN> to a byte in hexadecimal, and <N*c> to N times c.
inline std::string Expand(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const size_t close = text[at] == '<' ? text.find('>', at) : text.npos;
    if (close == text.npos) {
      out.push_back(text[at]);
      continue;
    }
    const std::string_view code = text.substr(at + 1, close - at - 1);
    const bool repeats = code.find('*') != code.npos;
    unsigned number = 0;
    std::from_chars(code.data(), code.data() + code.size(), number,
                    repeats ? 10 : 16);
    out.append(repeats ? number : 1,
               repeats ? code.back() : static_cast<char>(number));
    at = close;
  }
  return out;
}

}  // namespace haulway::safetensors::test
