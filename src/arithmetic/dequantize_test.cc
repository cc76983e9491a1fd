#include "arithmetic/dequantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic/declaration.h"
#include "decode/stored_tensor.h"
#include "format/flat_reader.h"
#include "haulway/buffer.h"

namespace haulway::arithmetic {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Bytes with files beside them.
class BesideSource : public ByteSource {
 public:
  BesideSource(std::vector<std::byte> bytes,
               std::map<std::string, std::string> files)
      : bytes_(std::move(bytes)), files_(std::move(files)) {}

  std::string_view name() const override { return "m.safetensors"; }
  uint64_t size() const override { return bytes_.size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(offset), out.size(),
                out.begin());
    return Status();
  }
  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override {
    const auto found = files_.find(std::string(name));
    if (found == files_.end()) return Status(Code::kNotFound, "no such file");
    return MakeMemorySource(std::as_bytes(std::span(found->second)),
                            found->first);
  }

 private:
  const std::vector<std::byte> bytes_;
  const std::map<std::string, std::string> files_;
};

// A model whose bytes count up.
struct Model {
  struct Row {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
  };
  std::vector<Row> rows;
  std::string config;

  std::pair<std::unique_ptr<const FormatReader>,
            std::shared_ptr<const ByteSource>>
  Open() const {
    std::vector<std::byte> bytes;
    for (const Row& row : rows) {
      for (uint64_t i = 0; i < Bytes(row); ++i) {
        bytes.push_back(static_cast<std::byte>(bytes.size() * 7 + 1));
      }
    }
    std::map<std::string, std::string> files;
    if (!config.empty()) files["config.json"] = config;
    auto source = std::make_shared<const BesideSource>(std::move(bytes), files);
    auto reader = std::make_unique<FlatReader>(Format::kSafetensors, source);
    uint64_t at = 0;
    for (const Row& row : rows) {
      EXPECT_TRUE(reader
                      ->Append({.name = row.name,
                                .dtype = row.dtype,
                                .shape = row.shape,
                                .offset = at,
                                .nbytes = Bytes(row)})
                      .ok());
      at += Bytes(row);
    }
    return {std::move(reader), std::move(source)};
  }

  static uint64_t Bytes(const Row& row) {
    uint64_t bytes = ItemBytes(row.dtype);
    for (const int64_t size : row.shape) bytes *= static_cast<uint64_t>(size);
    return bytes;
  }
};

Result<PlainCheckpoint> Plain(const Model& model,
                              std::optional<DType> to = std::nullopt) {
  auto [reader, source] = model.Open();
  return Dequantize(std::move(reader), *source, to);
}

const std::string kFp8 =
    R"({"quantization_config": {"quant_method": "fp8",
        "weight_block_size": [128, 128]}})";

Model Fp8() {
  return {{{"a.weight", DType::kF8E4M3, {200, 136}},
           {"a.weight_scale_inv", DType::kBF16, {2, 2}},
           {"b", DType::kBF16, {3}}},
          kFp8};
}

TEST(Dequantize, ShowsPlainWeights) {
  const auto plain = Plain(Fp8());
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  const CheckpointIndex& index = plain->reader->index();
  ASSERT_EQ(index.entries.size(), 2);
  EXPECT_EQ(index.entries[0].name, "a.weight");
  EXPECT_EQ(index.tensors[0].dtype, DType::kBF16);
  EXPECT_THAT(index.tensors[0].shape, ElementsAre(200, 136));
  EXPECT_EQ(index.tensors[0].nbytes, 200 * 136 * 2);
  EXPECT_THAT(plain->dequantized->dropped, ElementsAre("a.weight_scale_inv"));
  EXPECT_EQ(plain->dequantized->quantization.method, "fp8");
}

TEST(Dequantize, AnyRangeIsThatOfTheWhole) {
  const Model gptq = {{{"a.qweight", DType::kI32, {12, 64}},
                       {"a.qzeros", DType::kI32, {3, 8}},
                       {"a.scales", DType::kF16, {3, 64}}},
                      R"({"quantization_config": {"quant_method": "gptq",
                          "bits": 4, "group_size": 32}})"};
  const Model stacked = {{{"a_blocks", DType::kU8, {2, 40, 2, 16}},
                          {"a_scales", DType::kU8, {2, 40, 2}}},
                         R"({"quantization_config": {"quant_method":
                             "mxfp4"}})"};
  const Model blocks = {{{"a.weight", DType::kQ4K, {5, 288}}}, ""};
  for (const Model& model : {Fp8(), gptq, stacked, blocks}) {
    const auto plain = Plain(model);
    ASSERT_TRUE(plain.ok()) << plain.status().message();
    const FormatReader& reader = *plain->reader;
    const StorageInfo& storage = reader.index().storages[0];
    std::vector<std::byte> whole(storage.nbytes);
    ASSERT_TRUE(reader.source()->ReadAt(storage.offset, whole).ok());
    for (uint64_t begin = 0; begin < whole.size(); begin += 977) {
      for (const uint64_t length : {1, 3, 64, 1001}) {
        const uint64_t some = std::min(length, whole.size() - begin);
        std::vector<std::byte> part(some);
        ASSERT_TRUE(reader.source()->ReadAt(storage.offset + begin, part).ok());
        ASSERT_TRUE(std::equal(part.begin(), part.end(),
                               whole.begin() + static_cast<ptrdiff_t>(begin)));
      }
    }
    // Stored and computed bytes in one read.
    std::vector<std::byte> both(storage.offset + 100);
    ASSERT_TRUE(reader.source()->ReadAt(0, both).ok());
    EXPECT_TRUE(
        std::equal(whole.begin(), whole.begin() + 100, both.end() - 100));
  }
}

TEST(Dequantize, NothingQuantizedIsLeftAlone) {
  const Model model = {
      {{"a.weight", DType::kBF16, {4, 4}}, {"a_scale", DType::kF32, {4}}},
      "{}"};
  const auto plain = Plain(model);
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE(plain->dequantized.has_value());
  EXPECT_EQ(plain->reader->index().entries.size(), 2);
}

TEST(Dequantize, SharesStoragesThatStay) {
  const auto plain = Plain(Fp8());
  const FormatReader& reader = *plain->reader;
  std::vector<std::byte> found(6);
  ASSERT_TRUE(ReadTensor(reader, reader.index().tensors[1], found).ok());
  EXPECT_EQ(found[0], static_cast<std::byte>((200 * 136 + 8) * 7 + 1));
}

TEST(Declaration, IsReadInItsOrder) {
  const auto parse = [](std::string_view config, std::string_view modelopt) {
    const auto made = ParseDeclaration(config, modelopt);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return *made;
  };
  const std::string_view modelopt =
      R"({"quantization": {"quant_algo": "NVFP4"}})";
  EXPECT_EQ(parse(kFp8, modelopt).method, "fp8");
  EXPECT_EQ(parse("{}", modelopt).method, "modelopt");
  EXPECT_EQ(parse("{}", modelopt).format, "NVFP4");
  EXPECT_EQ(parse(R"({"compression_config": {"format": "x"}})", "").method,
            "compressed-tensors");
  EXPECT_EQ(parse(R"({"text_config": {"dtype": "float16",
                      "quantization_config": {"quant_method": "awq"}}})",
                  "")
                .method,
            "awq");
  EXPECT_EQ(parse(R"({"torch_dtype": "torch.float16"})", "").dtype,
            DType::kF16);
  EXPECT_EQ(parse("", "").method, "");
}

TEST(Declaration, WrongTypesAreErrors) {
  for (const std::string_view config :
       {"[]", "{", R"({"quantization_config": 3})",
        R"({"quantization_config": {"quant_method": 3}})",
        R"({"quantization_config": {"quant_method": "gptq", "bits": "4"}})",
        R"({"quantization_config": {"quant_method": "gptq", "bits": 0}})",
        R"({"quantization_config": {"quant_method": "fp8",
            "weight_block_size": [0, 1]}})",
        R"({"quantization_config": {"quant_method": "fp8",
            "weight_block_size": [128]}})"}) {
    EXPECT_EQ(ParseDeclaration(config, "").status().code(), Code::kCorrupt)
        << config;
  }
}

TEST(Declaration, GroupsAreFoundByNameThenPattern) {
  const auto declaration = ParseDeclaration(
      R"({"quantization_config": {"quant_method": "compressed-tensors",
          "config_groups": {
            "a": {"targets": ["Linear"], "weights": {"num_bits": 1}},
            "b": {"targets": ["re:.*attn"], "weights": {"num_bits": 2}},
            "c": {"targets": ["m.attn.q"], "weights": {"num_bits": 3}}}}})",
      "");
  ASSERT_TRUE(declaration.ok());
  const auto groups = GroupFinder::Make(*declaration);
  ASSERT_TRUE(groups.ok());
  EXPECT_EQ(groups->Find("m.mlp")->bits, 1);
  EXPECT_EQ(groups->Find("m.attn.k")->bits, 2);
  EXPECT_EQ(groups->Find("m.attn.q")->bits, 3);
}

TEST(Declaration, PatternsOfOtherSyntaxAreRefused) {
  const auto declaration = ParseDeclaration(
      R"({"quantization_config": {"quant_method": "compressed-tensors",
          "config_groups": {"a": {"targets": ["re:(?<!x)y"]}}}})",
      "");
  ASSERT_TRUE(declaration.ok());
  const auto groups = GroupFinder::Make(*declaration);
  EXPECT_EQ(groups.status().code(), Code::kUnsupported);
  EXPECT_THAT(std::string(groups.status().message()), HasSubstr("(?<!x)y"));
}

}  // namespace
}  // namespace haulway::arithmetic
