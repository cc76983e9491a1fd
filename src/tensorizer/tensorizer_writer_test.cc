// The writer: reproduces the released golden files byte for byte from their
// contents; chooses versions; refuses invalid input.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/tensorizer.h"
#include "tensorizer/tensorizer_name.h"
#include "tensorizer/tensorizer_reader.h"
#include "testing/layout_bytes.h"
#include "testing/tensorizer_goldens.h"

namespace haulway {
namespace {

using haulway::test::Assemble;
using haulway::test::TensorizerFile;
using haulway::test::TensorizerFiles;

Secret WriterKey() {
  std::array<std::byte, kKeyBytes> key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  return Secret(key);
}

// The contents of a file, as input for the writer.
struct Inputs {
  std::vector<TensorizerInput> tensors;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::array<std::byte, 24>> nonces;
  TensorizerOptions options;
};

Inputs InputsOf(const std::string& name, const std::string& file) {
  OpenOptions open;
  if (name.find("passphrase") != name.npos) {
    open.key.passphrase = Secret("test");
  } else if (name.find("key") != name.npos) {
    open.key.key = WriterKey();
  }
  const auto reader = tensorizer::Reader::Open(
      MakeMemorySource(std::as_bytes(std::span(file))), open);
  EXPECT_TRUE(reader.ok()) << reader.status().message();
  const auto source = (*reader)->source();
  Inputs inputs;
  const auto& index = (*reader)->tensor_index();
  for (uint32_t row = 0; row < index.entries.size(); ++row) {
    const tensorizer::IndexEntry& entry = index.entries[row];
    // In segments, the reader already has the headers.
    std::vector<std::byte> frame;
    if ((*reader)->preamble().layout == tensorizer::Layout::kInterleaved) {
      frame.resize(entry.data_offset - entry.header_offset);
      EXPECT_TRUE(source->ReadAt(entry.header_offset, frame).ok());
    }
    const auto header = (*reader)->HeaderOf(row, frame);
    EXPECT_TRUE(header.ok()) << header.status().message();
    inputs.nonces.push_back(header->crypt.nonce);
    if (header->crypt.derivation.has_value()) {
      const auto& derivation = *header->crypt.derivation;
      inputs.options.derivation = {derivation.operations,
                                   derivation.memory_bytes, derivation.salt};
      const auto key =
          DeriveTensorizerKey(Secret("test"), derivation.operations,
                              derivation.memory_bytes, derivation.salt);
      EXPECT_TRUE(key.ok());
      inputs.options.key = *key;
    } else if (!open.key.key.empty()) {
      inputs.options.key = open.key.key;
    }
    std::vector<std::byte>& bytes = inputs.bytes.emplace_back(entry.data_bytes);
    EXPECT_TRUE(source->ReadAt(entry.data_offset, bytes).ok());
    if (header->crypt.cipher != tensorizer::Cipher::kNone) {
      EXPECT_TRUE((*reader)->Decode(row, frame, 0, bytes, bytes).ok());
    }
    TensorizerInput tensor;
    const auto path = tensorizer::ParseName(entry.name, 1000);
    EXPECT_TRUE(path.ok());
    for (const tensorizer::PathStep& step : *path) {
      tensor.path.push_back({step.is_position, step.position, step.key});
    }
    tensor.type = static_cast<TensorizerType>(entry.type);
    tensor.module_index = header->fields.module_index;
    tensor.dtype = entry.dtype;
    for (const int64_t dim : index.shape(entry)) {
      tensor.shape.push_back(static_cast<uint64_t>(dim));
    }
    tensor.meta = entry.meta;
    inputs.tensors.push_back(tensor);
  }
  for (size_t i = 0; i < inputs.tensors.size(); ++i) {
    inputs.tensors[i].bytes = inputs.bytes[i].data();
  }
  inputs.options.authenticate_metadata = false;
  inputs.options.nonce = [nonces = inputs.nonces](size_t i) {
    return nonces[i];
  };
  return inputs;
}

std::vector<std::string> Released() {
  std::vector<std::string> files = TensorizerFiles();
  std::erase_if(files, [](const std::string& name) {
    // Has chunks of a size that Haulway does not write.
    return name.starts_with("pr") || name.starts_with("v3dev") ||
           name.starts_with("segments") || name.ends_with("meta_scalar") ||
           name.ends_with("2chunks");
  });
  return files;
}

class Rewritten : public ::testing::TestWithParam<std::string> {};

TEST_P(Rewritten, IsTheSameByteForByte) {
  const std::string file = TensorizerFile(GetParam());
  const Inputs inputs = InputsOf(GetParam(), file);
  const auto layout = LayOutTensorizer(inputs.tensors, inputs.options);
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  const std::string written = Assemble(**layout);
  ASSERT_EQ(written.size(), file.size());
  const auto [mine, theirs] = std::ranges::mismatch(written, file);
  EXPECT_TRUE(written == file) << "differs at byte " << mine - written.begin();
}

TEST_P(Rewritten, IsReadAlignedToo) {
  const std::string file = TensorizerFile(GetParam());
  Inputs inputs = InputsOf(GetParam(), file);
  inputs.options.alignment = 4096;
  const auto layout = LayOutTensorizer(inputs.tensors, inputs.options);
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  for (const Payload& payload : (*layout)->payloads()) {
    EXPECT_EQ(payload.offset % 4096, 0u);
  }
  const std::string written = Assemble(**layout);
  const Inputs again = InputsOf(GetParam(), written);
  EXPECT_EQ(again.bytes, inputs.bytes);
}

INSTANTIATE_TEST_SUITE_P(Files, Rewritten, ::testing::ValuesIn(Released()),
                         [](const auto& info) {
                           return haulway::test::TestName(info.param);
                         });

// Reproduces PR #170's own files byte for byte, except for the CRC-32, which PR
// #170 computes wrongly for tensors without data, and zeros after the end mark.
TEST(SegmentsOfPr170, AreTheSameByteForByte) {
  for (const std::string name :
       {"pr170_f32", "pr170_key", "pr170_key_meta", "pr170_max_tensors",
        "pr170_meta", "pr170_zero_bf16"}) {
    const std::string file = TensorizerFile(name);
    Inputs inputs = InputsOf(name, file);
    inputs.options.layout = TensorizerLayout::kSegmentsPr170;
    inputs.options.room_for = name == "pr170_max_tensors" ? 5 : 0;
    const auto layout = LayOutTensorizer(inputs.tensors, inputs.options);
    ASSERT_TRUE(layout.ok()) << layout.status().message();
    std::string written = Assemble(**layout);
    ASSERT_LE(written.size(), file.size());
    written.resize(file.size());
    size_t different = 0;
    for (size_t i = 0; i < file.size(); ++i) different += written[i] != file[i];
    const bool wrong_crc = name == "pr170_meta" || name == "pr170_zero_bf16";
    EXPECT_EQ(different, wrong_crc ? 4u : 0u) << name;
  }
}

class InSegments : public ::testing::TestWithParam<std::string> {};

TEST_P(InSegments, HoldsTheSame) {
  const std::string file = TensorizerFile(GetParam());
  Inputs inputs = InputsOf(GetParam(), file);
  for (const uint64_t alignment : {1, 64, 4096}) {
    inputs.options.layout = TensorizerLayout::kSegments;
    inputs.options.alignment = alignment;
    inputs.options.metadata = {{"step", "12"}, {"note", "\u00e4"}};
    const auto layout = LayOutTensorizer(inputs.tensors, inputs.options);
    ASSERT_TRUE(layout.ok()) << layout.status().message();
    for (const Payload& payload : (*layout)->payloads()) {
      if (payload.length == 0) continue;
      EXPECT_EQ(payload.offset % std::max<uint64_t>(8, alignment), 0u);
    }
    const std::string written = Assemble(**layout);
    const Inputs again = InputsOf(GetParam(), written);
    EXPECT_EQ(again.bytes, inputs.bytes);
    ASSERT_EQ(again.tensors.size(), inputs.tensors.size());
    for (size_t i = 0; i < again.tensors.size(); ++i) {
      EXPECT_EQ(again.tensors[i].shape, inputs.tensors[i].shape);
      EXPECT_EQ(again.tensors[i].dtype, inputs.tensors[i].dtype);
      EXPECT_EQ(again.tensors[i].module_index, inputs.tensors[i].module_index);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, InSegments, ::testing::ValuesIn(Released()),
                         [](const auto& info) {
                           return haulway::test::TestName(info.param);
                         });

TensorizerInput Tensor(std::string key, DType dtype,
                       std::vector<uint64_t> shape) {
  static const std::vector<std::byte> bytes(4096);
  TensorizerInput tensor;
  tensor.path = {{.is_position = false, .position = 0, .key = std::move(key)}};
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.bytes = bytes.data();
  return tensor;
}

TEST(TensorizerWriter, TakesTheLowestVersion) {
  const auto version = [](TensorizerInput tensor, bool encrypted) {
    TensorizerOptions options;
    if (encrypted) options.key = WriterKey();
    const std::vector<TensorizerInput> tensors = {std::move(tensor)};
    const auto layout = LayOutTensorizer(tensors, options);
    EXPECT_TRUE(layout.ok()) << layout.status().message();
    std::vector<std::byte> head((*layout)->frames()[0].length);
    EXPECT_TRUE((*layout)->EncodeFrame(0, {}, head).ok());
    return static_cast<int>(head[5]) * 10 + static_cast<int>(head[9]);
  };
  const TensorizerInput plain = Tensor("a", DType::kF32, {2});
  TensorizerInput meta = plain;
  meta.meta = true;
  TensorizerInput large = meta;
  large.shape = {uint64_t{1} << 32};
  EXPECT_EQ(version(plain, false), 10);
  EXPECT_EQ(version(Tensor("a", DType::kBF16, {2}), false), 20);
  EXPECT_EQ(version(plain, true), 30);
  EXPECT_EQ(version(Tensor("a", DType::kBF16, {2}), true), 30);
  EXPECT_EQ(version(meta, false), 40);
  EXPECT_EQ(version(meta, true), 41);
  EXPECT_EQ(version(Tensor("a", DType::kF32, {0}), true), 41);
  EXPECT_EQ(version(large, false), 52);
  EXPECT_EQ(version(large, true), 53);
}

TEST(TensorizerWriter, StoresScalarMetaTensorsAsZeros) {
  TensorizerInput scalar = Tensor("s", DType::kF32, {});
  scalar.meta = true;
  scalar.bytes = nullptr;
  for (const bool encrypted : {false, true}) {
    TensorizerOptions options;
    if (encrypted) options.key = WriterKey();
    const std::vector<TensorizerInput> tensors = {scalar};
    const auto layout = LayOutTensorizer(tensors, options);
    ASSERT_TRUE(layout.ok()) << layout.status().message();
    const Inputs read = InputsOf(encrypted ? "key" : "", Assemble(**layout));
    EXPECT_EQ(read.bytes[0], std::vector<std::byte>(4));
  }
}

TEST(TensorizerWriter, IndexGrowsWithTheNames) {
  std::vector<TensorizerInput> tensors;
  for (int i = 0; i < 10000; ++i) {
    tensors.push_back(
        Tensor(fmt::format("layer.{}.weight", i), DType::kU8, {1}));
  }
  const auto layout = LayOutTensorizer(tensors, {});
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  const std::string file = Assemble(**layout);
  const auto reader = tensorizer::Reader::Open(
      MakeMemorySource(std::as_bytes(std::span(file))), {});
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ((*reader)->index().entries.size(), 10000u);
  EXPECT_EQ((*reader)->preamble().index_bytes % 4096, 0u);
  EXPECT_GT((*reader)->preamble().index_bytes, 262144u);
}

TEST(TensorizerWriter, WritesAnEmptyFile) {
  const auto layout = LayOutTensorizer({}, {});
  ASSERT_TRUE(layout.ok());
  const std::string file = Assemble(**layout);
  const auto reader = tensorizer::Reader::Open(
      MakeMemorySource(std::as_bytes(std::span(file))), {});
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_TRUE((*reader)->index().entries.empty());
  EXPECT_TRUE((*reader)->index().root.is(Kind::kDict));
}

TEST(TensorizerWriter, RefusesWhatNobodyReads) {
  const auto code = [](std::vector<TensorizerInput> tensors,
                       TensorizerOptions options = {}) {
    return LayOutTensorizer(tensors, options).status().code();
  };
  const TensorizerInput a = Tensor("a", DType::kF32, {2});
  EXPECT_EQ(code({a, a}), Code::kInvalidArgument);
  TensorizerInput below = a;
  below.path.push_back({.is_position = false, .position = 0, .key = "b"});
  EXPECT_EQ(code({a, below}), Code::kInvalidArgument);
  below.type = TensorizerType::kParameter;
  EXPECT_EQ(code({below}), Code::kInvalidArgument);
  EXPECT_EQ(code({Tensor("", DType::kF32, {2})}), Code::kInvalidArgument);
  EXPECT_EQ(code({Tensor(std::string(70000, 'x'), DType::kF32, {2})}),
            Code::kLimit);
  EXPECT_EQ(code({Tensor("q", DType::kQI8, {2})}), Code::kUnsupported);
  EXPECT_EQ(code({Tensor("a", DType::kF32, {UINT64_MAX, 2})}),
            Code::kInvalidArgument);
  TensorizerInput nothing = a;
  nothing.bytes = nullptr;
  EXPECT_EQ(code({nothing}), Code::kInvalidArgument);
  TensorizerOptions options;
  options.key = Secret("short");
  EXPECT_EQ(code({a}, options), Code::kInvalidArgument);
}

}  // namespace
}  // namespace haulway
