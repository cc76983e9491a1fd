// Tests the contract of ByteSource for any implementation.

#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "haulway/source.h"

namespace haulway::test {

struct SourceCase {
  std::string name;  // Name of the test.
  // Returns a source of exactly these bytes, which are destroyed when the call
  // returns.
  std::function<std::shared_ptr<const ByteSource>(const std::string& bytes)>
      make;
  bool has_views = false;
};

inline void PrintTo(const SourceCase& one, std::ostream* out) {
  *out << one.name;
}
// Not inline, so that a test that uses it is linked with the suite's tests.
std::string NameOf(const ::testing::TestParamInfo<SourceCase>& info);

// Instantiate this with the cases of a module.
class SourceSuite : public ::testing::TestWithParam<SourceCase> {
 protected:
  // Returns bytes in which all runs of four differ.
  static std::string Pattern(size_t size);
  std::shared_ptr<const ByteSource> Make(const std::string& bytes) const {
    return GetParam().make(bytes);
  }
};

}  // namespace haulway::test
