// Every line of testdata/safetensors/verdicts.tsv, whose column on the
// reference is checked by python/tests/safetensors_files/test_safetensors.py.

#include <gtest/gtest.h>

#include <charconv>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "safetensors/header_for_test.h"

namespace haulway::safetensors {
namespace {

struct Case {
  std::string name, length, header, data_bytes, reference, strict, lenient;
};

std::vector<Case> Cases() {
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

// <NN> is a byte in hexadecimal, <N*c> is N times c.
std::string Expand(std::string_view text) {
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

std::string FileOf(const Case& one) {
  if (one.length.starts_with("none:")) return Expand(one.length.substr(5));
  std::string file =
      test::WithPrefix(Expand(one.header), std::stoul(one.data_bytes));
  if (one.length == "=") return file;
  const uint64_t length = std::stoull(one.length);
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i));
  return file;
}

std::string Verdict(const Case& one, Strictness strictness) {
  const auto parsed = test::Parse(FileOf(one), strictness);
  return parsed.ok() ? "ok" : std::string(CodeName(parsed.status().code()));
}

TEST(Verdicts, TheTableIsThere) { EXPECT_GE(Cases().size(), 100u); }

TEST(Verdicts, StrictReadingGivesThem) {
  for (const Case& one : Cases()) {
    EXPECT_EQ(Verdict(one, Strictness::kStrict), one.strict) << one.name;
  }
}

TEST(Verdicts, LenientReadingGivesThem) {
  for (const Case& one : Cases()) {
    EXPECT_EQ(Verdict(one, Strictness::kLenient), one.lenient) << one.name;
  }
}

// The one difference: no tensor can have a dimension of 2^63.
TEST(Verdicts, LenientReadingTakesWhatTheReferenceTakes) {
  for (const Case& one : Cases()) {
    if (one.lenient == "kUnsupported") continue;
    EXPECT_EQ(one.lenient == "ok", one.reference == "ok") << one.name;
  }
}

}  // namespace
}  // namespace haulway::safetensors
