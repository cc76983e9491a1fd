#include "haulway/nearest.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace haulway {
namespace {

std::string HintOf(std::string_view word) {
  const std::vector<std::string_view> names = {"model.weight", "model.bias",
                                               "norm.weight", "a", ".npz"};
  return haulway::HintOf(word, names, std::identity());
}

TEST(NearestName, IsAFewCharactersAway) {
  EXPECT_EQ(HintOf("modle.bias"), "; did you mean 'model.bias'?");
  EXPECT_EQ(HintOf("model.bia"), "; did you mean 'model.bias'?");
  EXPECT_EQ(HintOf("Norm.weights"), "; did you mean 'norm.weight'?");
  EXPECT_EQ(HintOf(".npx"), "; did you mean '.npz'?");
  EXPECT_EQ(HintOf(".nzp"), "; did you mean '.npz'?");
  EXPECT_EQ(HintOf("omdel.biass"), "; did you mean 'model.bias'?");
}

TEST(NearestName, MayBeNone) {
  EXPECT_EQ(HintOf("mdl.bs"), "");
  EXPECT_EQ(HintOf("decoder.norm.weight"), "");
  // Nearly every short word is near every other.
  EXPECT_EQ(HintOf("b"), "");
  EXPECT_EQ(HintOf(""), "");
}

TEST(NearestName, LetsWildcardsStandForCharacters) {
  EXPECT_EQ(HintOf("modle.*"), "; did you mean 'model.weight'?");
  EXPECT_EQ(HintOf("*.biass"), "; did you mean 'model.bias'?");
  EXPECT_EQ(HintOf("nrom.?eight"), "; did you mean 'norm.weight'?");
  EXPECT_EQ(HintOf("x*"), "");
  EXPECT_EQ(HintOf("decoder.*"), "");
}

}  // namespace
}  // namespace haulway
