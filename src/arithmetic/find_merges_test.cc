#include "arithmetic/find_merges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arithmetic/adapter_config.h"
#include "arithmetic/dequantize.h"
#include "format/flat_reader.h"
#include "haulway/source.h"
#include "tensor/cast.h"

namespace haulway::arithmetic {
namespace {

using testing::HasSubstr;

struct Row {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
};

// Owns the bytes and names of a checkpoint in memory.
struct Stored {
  std::vector<Row> rows;
  std::vector<std::byte> bytes;
  std::unique_ptr<FlatReader> reader;
};

// Returns tensors of small random numbers.
std::shared_ptr<Stored> Make(std::vector<Row> rows, uint32_t seed) {
  auto made = std::make_shared<Stored>();
  made->rows = std::move(rows);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint64_t> sizes;
  for (const Row& row : made->rows) {
    uint64_t count = 1;
    for (const int64_t size : row.shape) count *= static_cast<uint64_t>(size);
    std::vector<float> numbers(count);
    for (float& number : numbers) number = normal(random);
    sizes.push_back(count * ItemBytes(row.dtype));
    const size_t at = made->bytes.size();
    made->bytes.resize(at + sizes.back());
    CastElements(reinterpret_cast<const std::byte*>(numbers.data()),
                 DType::kF32, made->bytes.data() + at, row.dtype, count);
  }
  made->reader = std::make_unique<FlatReader>(
      Format::kSafetensors, MakeMemorySource(made->bytes, "memory"));
  uint64_t at = 0;
  for (size_t i = 0; i < made->rows.size(); ++i) {
    const Row& row = made->rows[i];
    EXPECT_TRUE(made->reader
                    ->Append({.name = row.name,
                              .dtype = row.dtype,
                              .shape = row.shape,
                              .offset = at,
                              .nbytes = sizes[i]})
                    .ok());
    at += sizes[i];
  }
  return made;
}

Adapter AdapterOf(const std::shared_ptr<Stored>& stored,
                  std::string_view config) {
  Adapter made;
  made.name = "adapter";
  made.reader =
      std::shared_ptr<const FormatReader>(stored, stored->reader.get());
  made.config = std::string(config);
  return made;
}

const std::vector<Row> kPair = {
    {"base_model.model.m.lora_A.weight", DType::kF32, {3, 70}},
    {"base_model.model.m.lora_B.weight", DType::kBF16, {40, 3}},
    {"base_model.model.m.lora_magnitude_vector", DType::kF32, {40}}};
constexpr std::string_view kDora =
    R"({"peft_type": "LORA", "r": 3, "lora_alpha": 6, "use_dora": true})";

TEST(Merge, AnyRangeIsThatOfTheWhole) {
  std::vector<Row> plain = kPair;
  plain.pop_back();
  constexpr std::string_view kPlain =
      R"({"peft_type": "LORA", "r": 3, "lora_alpha": 6})";
  for (const bool has_magnitudes : {false, true}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{40, 70}, std::vector<int64_t>{70, 40}}) {
      auto base =
          Make({{"n", DType::kF16, {3}}, {"m.weight", DType::kBF16, shape}}, 1);
      const std::vector<Adapter> adapters = {
          AdapterOf(Make(plain, 2), kPlain),
          AdapterOf(Make(has_magnitudes ? kPair : plain, 3),
                    has_magnitudes ? kDora : kPlain)};
      std::unique_ptr<const FormatReader> reader = std::move(base->reader);
      const auto beside = reader->source();
      const auto merged = MergeAdapters(*beside, adapters, &reader);
      ASSERT_TRUE(merged.ok()) << merged.status().message();
      EXPECT_EQ(merged->weights, 1);
      ASSERT_EQ(reader->index().entries[1].name, "m.weight");
      const StorageInfo& storage = reader->index().storages[1];
      std::vector<std::byte> whole(storage.nbytes);
      ASSERT_TRUE(reader->source()->ReadAt(storage.offset, whole).ok());
      EXPECT_FALSE(
          std::equal(whole.begin(), whole.end(),
                     base->bytes.end() - static_cast<ptrdiff_t>(whole.size())));
      for (uint64_t begin = 0; begin < whole.size(); begin += 97) {
        for (const uint64_t length : {1, 3, 64, 1001}) {
          const uint64_t some = std::min(length, whole.size() - begin);
          std::vector<std::byte> part(some);
          ASSERT_TRUE(
              reader->source()->ReadAt(storage.offset + begin, part).ok());
          ASSERT_TRUE(
              std::equal(part.begin(), part.end(),
                         whole.begin() + static_cast<ptrdiff_t>(begin)));
        }
      }
    }
  }
}

TEST(Merge, ShapesMustFit) {
  auto base = Make({{"m.weight", DType::kF32, {40, 71}}}, 1);
  const std::vector<Adapter> adapters = {AdapterOf(Make(kPair, 2), kDora)};
  const auto found =
      FindMerges(*base->reader, *base->reader->source(), adapters);
  EXPECT_EQ(found.status().code(), Code::kMismatch);
  EXPECT_THAT(std::string(found.status().message()),
              HasSubstr("m.lora_A.weight"));
}

TEST(AdapterConfig, TheFirstPatternCounts) {
  const auto config = ParseAdapterConfig(
      R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8,
          "rank_pattern": {"q": 2, "attn.q|v": 16},
          "alpha_pattern": {"b.v": 3.5}, "use_rslora": true})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->RankOf("a.attn.q"), 2);
  EXPECT_EQ(config->RankOf("a.bq"), 4);
  EXPECT_EQ(config->RankOf("b.v"), 16);
  EXPECT_EQ(config->ScaleOf("b.v"), 3.5 / 4);
  EXPECT_EQ(config->ScaleOf("c"), 4);
}

TEST(AdapterConfig, WrongValuesAreErrors) {
  for (const std::string_view config :
       {"[]", R"({"peft_type": "LORA", "r": "4"})",
        R"({"peft_type": "LORA", "r": 0})",
        R"({"peft_type": "LORA", "lora_alpha": true})",
        R"({"peft_type": "LORA", "rank_pattern": []})",
        R"({"peft_type": "LORA", "use_dora": 1})"}) {
    EXPECT_EQ(ParseAdapterConfig(config).status().code(), Code::kCorrupt)
        << config;
  }
}

}  // namespace
}  // namespace haulway::arithmetic
