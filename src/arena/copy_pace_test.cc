#include "arena/copy_pace.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>

#include "testing/shorthands.h"

namespace haulway::arena {
namespace {

using std::chrono::microseconds;

// Makes `copies` copies that take the given times. Returns how many used
// helpers.
int Copies(CopyPace& pace, int copies, size_t bytes, microseconds alone,
           microseconds company) {
  int shared = 0;
  for (int i = 0; i < copies; ++i) {
    const bool in_company = pace.InCompany(bytes);
    shared += in_company ? 1 : 0;
    pace.Learn(in_company, bytes, in_company ? company : alone);
  }
  return shared;
}

TEST(CopyPaceTest, CompanyThatPaysIsKept) {
  CopyPace pace;
  const int shared =
      Copies(pace, 200, 16 * test::kMib, microseconds(560), microseconds(250));
  EXPECT_GT(shared, 180);
  EXPECT_LT(shared, 200);  // Copying alone is tried from time to time.
}

TEST(CopyPaceTest, CompanyThatHardlyPaysIsNot) {
  CopyPace pace;
  const int shared =
      Copies(pace, 200, 16 * test::kMib, microseconds(560), microseconds(490));
  EXPECT_LT(shared, 20);
  EXPECT_GT(shared, 4);
}

TEST(CopyPaceTest, SizesAreApart) {
  CopyPace pace;
  Copies(pace, 100, 2 * test::kMib, microseconds(40), microseconds(400));
  EXPECT_GT(
      Copies(pace, 100, 4 * test::kMib, microseconds(100), microseconds(50)),
      85);
  EXPECT_LT(
      Copies(pace, 100, 2 * test::kMib, microseconds(40), microseconds(400)),
      10);
}

TEST(CopyPaceTest, LearnsAnew) {
  CopyPace pace;
  Copies(pace, 100, 16 * test::kMib, microseconds(500), microseconds(480));
  // From now on helpers are faster.
  Copies(pace, 300, 16 * test::kMib, microseconds(500), microseconds(240));
  EXPECT_GT(
      Copies(pace, 100, 16 * test::kMib, microseconds(500), microseconds(240)),
      90);
}

TEST(CopyPaceTest, OneInterruptionIsForgiven) {
  CopyPace pace;
  Copies(pace, 60, 16 * test::kMib, microseconds(500), microseconds(250));
  pace.Learn(true, 16 * test::kMib, microseconds(50'000));
  EXPECT_TRUE(pace.InCompany(16 * test::kMib));
}

TEST(CopyPaceTest, AnySizeHasAClass) {
  CopyPace pace;
  for (const size_t bytes : {size_t{1}, size_t{1} << 40, ~size_t{0}}) {
    EXPECT_GE(Copies(pace, 4, bytes, microseconds(2), microseconds(1)), 0);
  }
}

}  // namespace
}  // namespace haulway::arena
