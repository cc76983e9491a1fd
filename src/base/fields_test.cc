#include "haulway/fields.h"

#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <string_view>

#include "haulway/compare.h"
#include "haulway/load.h"
#include "haulway/open.h"
#include "haulway/save.h"
#include "haulway/tensorizer.h"

namespace haulway {
namespace {

template <class Struct>
size_t NamesOf(const Struct& object) {
  std::set<std::string_view> names;
  for (const auto& field : FieldsOf(object)) {
    EXPECT_FALSE(field.meaning.empty()) << field.name;
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    if (field.adding != Adding::kSum) continue;
    const bool is_number =
        std::holds_alternative<uint64_t Struct::*>(field.member) ||
        std::holds_alternative<double Struct::*>(field.member);
    EXPECT_TRUE(is_number) << field.name;
  }
  return names.size();
}

// A member without a row does not compile here.
TEST(Fields, EveryMemberHasARow) {
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o,
                                  p] = LoadStats();
    EXPECT_EQ(NamesOf(LoadStats()), 16u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] =
        WriteStats();
    EXPECT_EQ(NamesOf(WriteStats()), 13u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g] = TensorStats();
    EXPECT_EQ(NamesOf(TensorStats()), 7u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e, f] = NumberDifference();
    EXPECT_EQ(NamesOf(NumberDifference()), 6u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d, e] = DownloadStats();
    EXPECT_EQ(NamesOf(DownloadStats()), 5u);
  }
  {
    [[maybe_unused]] const auto& [a, b, c, d] = TensorizerEditStats();
    EXPECT_EQ(NamesOf(TensorizerEditStats()), 4u);
  }
  {
    // But for progress, cancel and allocate, which only C++ has.
    [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k] =
        LoadOptions();
    EXPECT_EQ(NamesOf(LoadOptions()), 8u);
  }
}

TEST(Fields, AddUpAsTheirTableSays) {
  LoadStats total;
  total.tensor_bytes = 1;
  total.threads = 2;
  total.seconds = 0.5;
  total.reason = "first";
  LoadStats more;
  more.tensor_bytes = 2;
  more.threads = 1;
  more.seconds = 0.25;
  more.reason = "second";
  AddUp(more, &total);
  EXPECT_EQ(total.tensor_bytes, 3u);
  EXPECT_EQ(total.threads, 2);
  EXPECT_EQ(total.seconds, 0.75);
  EXPECT_EQ(total.reason, "first");
}

TEST(Fields, FlagsAddUpToWhetherAnyIsSet) {
  WriteStats total;
  WriteStats more;
  more.direct = true;
  AddUp(more, &total);
  EXPECT_TRUE(total.direct);
  AddUp(WriteStats(), &total);
  EXPECT_TRUE(total.direct);
}

}  // namespace
}  // namespace haulway
