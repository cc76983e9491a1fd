// Reads every line of testdata/safetensors/verdicts.tsv, and compares the
// result with the line.

#include <gtest/gtest.h>

#include <string>

#include "safetensors/header_for_test.h"
#include "safetensors/verdict_cases.h"

namespace haulway::safetensors {
namespace {

using test::Case;
using test::Cases;
using test::Expand;

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

// One difference is allowed: Haulway cannot express a dimension of 2^63.
TEST(Verdicts, LenientReadingTakesWhatTheReferenceTakes) {
  for (const Case& one : Cases()) {
    if (one.lenient == "kUnsupported") continue;
    EXPECT_EQ(one.lenient == "ok", one.reference == "ok") << one.name;
  }
}

}  // namespace
}  // namespace haulway::safetensors
