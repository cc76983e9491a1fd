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

TEST(ModelNames, FilesOfProcessesStateTheirRank) {
  const auto name = ParseRankName("extra_state_world_size_16_rank_3.pt");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->part, "extra_state");
  EXPECT_EQ(name->world, 16u);
  EXPECT_EQ(name->rank, 3u);
  EXPECT_EQ(name->Other(0), "extra_state_world_size_16_rank_0.pt");
  EXPECT_EQ(ParseRankName("m_world_size_2_rank_2.pt")->rank, 2u);
  const auto fsdp = ParseRankName("pytorch_model_fsdp_0_rank12.bin");
  ASSERT_TRUE(fsdp.has_value());
  EXPECT_EQ(fsdp->part, "pytorch_model_fsdp_0");
  EXPECT_EQ(fsdp->world, 0u);
  EXPECT_EQ(fsdp->rank, 12u);
  EXPECT_EQ(fsdp->Other(3), "pytorch_model_fsdp_0_rank3.bin");
  EXPECT_EQ(ParseRankName("pytorch_model_fsdp_rank0.bin")->rank, 0u);
  EXPECT_EQ(ParseRankName("optimizer_1_rank0.bin")->part, "optimizer_1");
  for (const std::string_view other :
       {"pytorch_model_fsdp.bin", "model_rank0.bin", "optimizer_rank00.bin",
        "optimizer_x_rank0.bin", "optimizer_rank0.pt", "optimizer_rank.bin",
        "model_world_size_4_rank_0.bin", "_world_size_4_rank_0.pt",
        "model_world_size_0_rank_0.pt", "model_world_size_04_rank_0.pt",
        "model_world_size_4_rank_00.pt", "model_world_size_4_rank_.pt",
        "model_world_size__rank_1.pt", "model_world_size_rank_1.pt",
        "model_rank_0_world_size_4.pt", "model_world_size_4_rank_-1.pt",
        "model_world_size_99999999999999999999_rank_1.pt", ""}) {
    EXPECT_FALSE(ParseRankName(other).has_value()) << other;
  }
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
