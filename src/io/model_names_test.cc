#include "io/model_names.h"

#include <gtest/gtest.h>

#include <string_view>

namespace haulway {
namespace {

TEST(ModelNames, PartsHaveTheirNumberAndCount) {
  const auto part = ParsePart("a-b.fp16-00002-of-00003.safetensors");
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->stem, "a-b.fp16");
  EXPECT_EQ(part->number, 2u);
  EXPECT_EQ(part->count, 3u);
  EXPECT_EQ(part->Other(1), "a-b.fp16-00001-of-00003.safetensors");
  for (const std::string_view name :
       {"model.gguf", "model-00001-of-00001.gguf", "model-00004-of-00003.gguf",
        "model-00000-of-00002.gguf", "model-0001-of-0002.gguf",
        "model-00001-of-00002", "m-00001-of-0000x.bin", "", "-of-.bin"}) {
    EXPECT_FALSE(ParsePart(name).has_value()) << name;
  }
  EXPECT_EQ(ParsePart("-00001-of-00002.bin")->stem, "");
}

TEST(ModelNames, VariantsAreWhereHostsPutThem) {
  const auto names = AllUsualNames("fp16");
  EXPECT_EQ(names[0], "model.fp16.safetensors");
  EXPECT_EQ(names[1], "model.safetensors.index.fp16.json");
  for (const std::string& name : names) {
    EXPECT_TRUE(HasVariant(name, "FP16")) << name;
    EXPECT_FALSE(HasVariant(name, "16")) << name;
  }
  EXPECT_TRUE(HasVariant("m.Q8_0-00001-of-00002.gguf", "q8_0"));
  EXPECT_TRUE(HasVariant("m-Q8_0.gguf", "Q8_0"));
  EXPECT_FALSE(HasVariant("Q8_0.gguf", "Q8_0"));
  EXPECT_FALSE(HasVariant("model", "odel"));
}

TEST(ModelNames, IndexesMayHaveAVariant) {
  EXPECT_TRUE(IsIndexName("x.index.json"));
  EXPECT_TRUE(IsIndexName("x.index.bf16.json"));
  EXPECT_FALSE(IsIndexName("index.json"));
  EXPECT_FALSE(IsIndexName("model_index.json"));
  EXPECT_FALSE(IsIndexName("x.index.bf16.v2.json"));
}

TEST(ModelNames, ThingsBesideAModelAreNotIt) {
  for (const std::string_view name :
       {"optimizer.pt", "optimizer_1.bin", "rng_state_0.pth", "scaler.pt",
        "training_args.bin", "optim_world_size_8_rank_0.pt",
        "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "mp_rank_00_model_states.pt", "mmproj-model-f16.gguf",
        "model.imatrix.gguf"}) {
    EXPECT_NE(SideFile(name), "") << name;
  }
  for (const std::string_view name :
       {"model.safetensors", "my_optimizer_model.pt", "ckpt.pt", "rank_0.pt",
        "model_world_size_8_rank_0.pt", "scheduler_net.pt", ".pt", ""}) {
    EXPECT_EQ(SideFile(name), "") << name;
  }
}

}  // namespace
}  // namespace haulway
