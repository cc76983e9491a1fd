#include "haulway/save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/format.h"
#include "haulway/verify.h"

namespace haulway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<float> Numbers(size_t count, float first = 0) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

BytesToWrite Borrow(const std::vector<float>& numbers) {
  return {.length = numbers.size() * sizeof(float),
          .bytes = std::as_bytes(std::span(numbers)).data()};
}

std::shared_ptr<const ByteSource> SourceOf(const std::vector<float>& numbers) {
  return MakeMemorySource(std::as_bytes(std::span(numbers)));
}

TensorToWrite Dense(std::string name, std::vector<int64_t> shape,
                    BytesToWrite bytes) {
  return {.name = std::move(name),
          .dtype = DType::kF32,
          .shape = std::move(shape),
          .bytes = std::move(bytes)};
}

TensorToWrite View(std::string name, std::vector<int64_t> shape,
                   uint64_t offset, std::vector<int64_t> strides) {
  return {.name = std::move(name),
          .dtype = DType::kF32,
          .shape = std::move(shape),
          .bytes = {},
          .view = StorageView{0, offset, std::move(strides)}};
}

// A saved checkpoint, opened; null if that failed.
struct Saved {
  std::string file;
  std::shared_ptr<const Checkpoint> checkpoint;

  std::vector<float> Read(std::string_view name) const {
    const TensorInfo* tensor = checkpoint->Find(name);
    if (tensor == nullptr) return {};
    std::vector<float> numbers(tensor->nbytes / sizeof(float));
    EXPECT_TRUE(
        checkpoint->Read(*tensor, std::as_writable_bytes(std::span(numbers)))
            .ok());
    return numbers;
  }
};

// Adds values that the format requires.
void AddNeeded(Format format, TensorsToWrite* tensors) {
  if (format != Format::kGguf) return;
  tensors->values.push_back({"general.architecture", std::string("test")});
}

std::unique_ptr<Saved> SaveAs(Format format, TensorsToWrite tensors,
                              const SaveOptions& options = {}) {
  AddNeeded(format, &tensors);
  auto saved = std::make_unique<Saved>();
  const auto sink = MakeMemorySink(&saved->file);
  const auto stats = Save(std::move(tensors), format, *sink, options);
  EXPECT_TRUE(stats.ok()) << stats.status().message();
  if (!stats.ok()) return nullptr;
  EXPECT_EQ(stats->bytes, saved->file.size());
  const auto source = MakeMemorySource(std::as_bytes(std::span(saved->file)));
  VerifyOptions verify;
  verify.open.key = options.key;
  const auto report = Verify(source, verify);
  EXPECT_TRUE(report.ok() && report->findings.empty());
  auto opened = Checkpoint::Open(source, verify.open);
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  if (!opened.ok()) return nullptr;
  saved->checkpoint = *opened;
  EXPECT_EQ(saved->checkpoint->index().format, format);
  return saved;
}

Status Refusal(Format format, TensorsToWrite tensors,
               const SaveOptions& options = {}) {
  AddNeeded(format, &tensors);
  std::string file = "old";
  const auto sink = MakeMemorySink(&file);
  const Status status =
      Save(std::move(tensors), format, *sink, options).status();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(file, "old");
  return status;
}

// Formats of named tensors. An npy file has only one array.
std::vector<Format> Written() {
  std::vector<Format> written;
  for (const FormatEntry& format : Formats()) {
    if (format.lay_out != nullptr && format.id != Format::kNpy) {
      written.push_back(format.id);
    }
  }
  return written;
}

class SaveAny : public ::testing::TestWithParam<Format> {};

INSTANTIATE_TEST_SUITE_P(Formats, SaveAny, ::testing::ValuesIn(Written()),
                         [](const auto& info) {
                           return std::string(Name(info.param));
                         });

TEST_P(SaveAny, ComesBack) {
  const std::vector<float> a = Numbers(6), b = Numbers(4, 10), c = {7};
  const auto saved = SaveAs(
      GetParam(), {.tensors = {Dense("layer.0.weight", {2, 3}, Borrow(a)),
                               Dense("b", {4}, Borrow(b)),
                               Dense("scalar", {1}, Borrow(c))}});
  ASSERT_NE(saved, nullptr);
  EXPECT_EQ(saved->checkpoint->entries().size(), 3);
  EXPECT_EQ(saved->Read("layer.0.weight"), a);
  EXPECT_EQ(saved->Read("b"), b);
  EXPECT_EQ(saved->Read("scalar"), c);
  EXPECT_THAT(saved->checkpoint->Find("layer.0.weight")->shape,
              ElementsAre(2, 3));
}

TEST(Save, OfAnNpyFileTakesOneTensor) {
  const std::vector<float> a = Numbers(6);
  const auto saved =
      SaveAs(Format::kNpy, {.tensors = {Dense("any", {2, 3}, Borrow(a))}});
  ASSERT_NE(saved, nullptr);
  EXPECT_EQ(saved->Read("tensor"), a);
}

TEST(Save, ValuesThatAreNoTextAreRefusedByFormatsWithoutThem) {
  for (const FormatEntry& format : Formats()) {
    if (format.lay_out == nullptr || format.id == Format::kNpy) continue;
    TensorsToWrite tensors;
    tensors.values = {{"n", int64_t{1}}};
    AddNeeded(format.id, &tensors);
    EXPECT_EQ(LayOut(tensors, format.id).status().code(),
              format.can.values ? Code::kOk : Code::kUnsupported)
        << format.name;
  }
}

TEST_P(SaveAny, IsTheSameFromMemoryAndFromSources) {
  const std::vector<float> large = Numbers(1 << 20);
  const std::vector<float> small = Numbers(3);
  const auto from_memory =
      SaveAs(GetParam(), {.tensors = {Dense("large", {1 << 20}, Borrow(large)),
                                      Dense("small", {3}, Borrow(small))}});
  BytesToWrite range = {.length = 12, .source = SourceOf(large)};
  int produced = 0;
  const auto produce = [&]() -> Result<Buffer> {
    ++produced;
    HAULWAY_ASSIGN(Buffer made, AllocateBuffer(large.size() * sizeof(float)));
    std::memcpy(made.mutable_bytes().data(), large.data(), made.size());
    return made;
  };
  const BytesToWrite made = {
      .length = large.size() * sizeof(float),
      .source = MakeProducedSource(large.size() * sizeof(float), produce, "t")};
  const auto from_sources =
      SaveAs(GetParam(), {.tensors = {Dense("large", {1 << 20}, made),
                                      Dense("small", {3}, std::move(range))}});
  ASSERT_NE(from_memory, nullptr);
  ASSERT_NE(from_sources, nullptr);
  EXPECT_TRUE(from_memory->file == from_sources->file);
  // If digests need the bytes in order, an ordered sink reads them twice.
  const bool in_order =
      GetParam() == Format::kTensorizer || GetParam() == Format::kNpz;
  EXPECT_LE(produced, in_order ? 2 : 1);
}

TEST_P(SaveAny, WritesAViewOfItsOwnMemory) {
  const std::vector<float> storage = Numbers(8);
  for (const bool from_source : {false, true}) {
    BytesToWrite bytes = Borrow(storage);
    if (from_source) bytes = {.length = 32, .source = SourceOf(storage)};
    const auto turned = SaveAs(
        GetParam(),
        {.tensors = {View("t", {3, 2}, 1, {1, 3})}, .storages = {bytes}});
    ASSERT_NE(turned, nullptr);
    EXPECT_THAT(turned->Read("t"), ElementsAre(1, 4, 2, 5, 3, 6));
    const auto cut = SaveAs(
        GetParam(), {.tensors = {View("t", {2}, 5, {1})}, .storages = {bytes}});
    ASSERT_NE(cut, nullptr);
    EXPECT_THAT(cut->Read("t"), ElementsAre(5, 6));
  }
}

TEST_P(SaveAny, KeepsTensorsThatShareMemoryOrRefusesThem) {
  const std::vector<float> storage = Numbers(8);
  const TensorsToWrite tied = {
      .tensors = {View("all", {8}, 0, {1}), View("turned", {2, 4}, 0, {1, 2})},
      .storages = {Borrow(storage)}};
  if (!EntryOf(GetParam()).can.views) {
    const Status refused = Refusal(GetParam(), tied);
    EXPECT_EQ(refused.code(), Code::kUnsupported);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("'all' and 'turned' share memory"));
    return;
  }
  const auto saved = SaveAs(GetParam(), tied);
  ASSERT_NE(saved, nullptr);
  EXPECT_EQ(saved->checkpoint->index().storages.size(), 1);
  EXPECT_EQ(saved->Read("all"), storage);
  EXPECT_THAT(saved->Read("turned"), ElementsAre(0, 2, 4, 6, 1, 3, 5, 7));
}

TEST_P(SaveAny, KeepsMetadataOrRefusesIt) {
  const std::vector<float> a = Numbers(1);
  const TensorsToWrite noted = {.tensors = {Dense("a", {1}, Borrow(a))},
                                .metadata = {{{"step", "12"}}}};
  if (!EntryOf(GetParam()).can.metadata) {
    EXPECT_EQ(Refusal(GetParam(), noted).code(), Code::kUnsupported);
    return;
  }
  const auto saved = SaveAs(GetParam(), noted);
  ASSERT_NE(saved, nullptr);
  const auto& metadata = saved->checkpoint->index().metadata;
  ASSERT_TRUE(metadata.has_value());
  const auto step =
      std::ranges::find(*metadata, std::string("step"), &Fact::name);
  ASSERT_NE(step, metadata->end());
  EXPECT_EQ(std::get<std::string>(step->value), "12");
}

TEST_P(SaveAny, EncryptsOrRefuses) {
  const std::vector<float> a = Numbers(5);
  const TensorsToWrite tensors = {.tensors = {Dense("a", {5}, Borrow(a))}};
  SaveOptions options;
  options.key.key =
      Secret(std::string_view("0123456789abcdef0123456789abcdef"));
  if (!EntryOf(GetParam()).can.encrypt) {
    EXPECT_EQ(Refusal(GetParam(), tensors, options).code(), Code::kUnsupported);
    return;
  }
  const auto saved = SaveAs(GetParam(), tensors, options);
  ASSERT_NE(saved, nullptr);
  EXPECT_EQ(saved->Read("a"), a);
  EXPECT_EQ(saved->checkpoint->index().storages[0].encoding,
            Encoding::kEncrypted);
}

TEST_P(SaveAny, RefusesKeysOfAWrongLengthAndTwoSecrets) {
  const std::vector<float> a = Numbers(5);
  const TensorsToWrite tensors = {.tensors = {Dense("a", {5}, Borrow(a))}};
  const Code code = EntryOf(GetParam()).can.encrypt ? Code::kInvalidArgument
                                                    : Code::kUnsupported;
  for (const size_t bytes : {1, 31, 33, 64}) {
    SaveOptions options;
    options.key.key = Secret(std::string(bytes, 'k'));
    EXPECT_EQ(Refusal(GetParam(), tensors, options).code(), code) << bytes;
  }
  SaveOptions both;
  both.key = {.key = Secret(std::string(kKeyBytes, 'k')),
              .passphrase = Secret(std::string_view("p"))};
  EXPECT_EQ(Refusal(GetParam(), tensors, both).code(), code);
}

TEST_P(SaveAny, RefusesWhatIsNoTensor) {
  const std::vector<float> a = Numbers(4);
  const auto refused = [&](TensorToWrite tensor) {
    return Refusal(GetParam(),
                   {.tensors = {std::move(tensor)}, .storages = {Borrow(a)}})
        .code();
  };
  EXPECT_EQ(refused(Dense("short", {5}, Borrow(a))), Code::kInvalidArgument);
  EXPECT_EQ(refused(Dense("negative", {-4}, Borrow(a))),
            Code::kInvalidArgument);
  EXPECT_EQ(refused(Dense("huge", {INT64_MAX, INT64_MAX}, Borrow(a))),
            Code::kInvalidArgument);
  EXPECT_EQ(refused(Dense("nowhere", {4}, {.length = 16})),
            Code::kInvalidArgument);
  EXPECT_EQ(
      refused(Dense("past", {4},
                    {.length = 16, .source = SourceOf(a), .source_offset = 4})),
      Code::kInvalidArgument);
  EXPECT_EQ(refused(Dense("\xFF", {4}, Borrow(a))), Code::kInvalidArgument);
  EXPECT_EQ(refused(View("leaves", {4}, 1, {1})), Code::kInvalidArgument);
  EXPECT_EQ(refused(View("strides", {4}, 0, {1, 1})), Code::kInvalidArgument);
  EXPECT_EQ(refused(View("backwards", {4}, 3, {-1})), Code::kInvalidArgument);
  TensorToWrite nowhere = View("no storage", {4}, 0, {1});
  nowhere.view->storage = 1;
  EXPECT_EQ(refused(nowhere), Code::kInvalidArgument);
}

TEST_P(SaveAny, RefusesEqualNames) {
  const std::vector<float> a = Numbers(1);
  const Status refused = Refusal(
      GetParam(),
      {.tensors = {Dense("a", {1}, Borrow(a)), Dense("a", {1}, Borrow(a))}});
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("two tensors are named 'a'"));
}

TEST_P(SaveAny, FailsAsTheProducerDoes) {
  const auto produce = [] {
    return Result<Buffer>(Status(Code::kUnavailable, "no such tensor now"));
  };
  BytesToWrite bytes = {.length = 4,
                        .source = MakeProducedSource(4, produce, "t")};
  EXPECT_EQ(
      Refusal(GetParam(), {.tensors = {Dense("a", {1}, std::move(bytes))}})
          .code(),
      Code::kUnavailable);
  const auto short_of_it = [] { return AllocateBuffer(3); };
  bytes = {.length = 4, .source = MakeProducedSource(4, short_of_it, "t")};
  EXPECT_EQ(
      Refusal(GetParam(), {.tensors = {Dense("a", {1}, std::move(bytes))}})
          .code(),
      Code::kInvalidArgument);
}

TEST(Save, RefusesFormatsThatAreOnlyRead) {
  for (const FormatEntry& format : Formats()) {
    if (format.lay_out != nullptr) continue;
    EXPECT_EQ(Refusal(format.id, {}).code(), Code::kUnsupported) << format.name;
  }
}

TEST(Save, TorchRefusesAStorageOfTwoDtypesAndQuantizedOnes) {
  const std::vector<float> a = Numbers(2);
  TensorToWrite other = View("as integers", {2}, 0, {1});
  other.dtype = DType::kI32;
  EXPECT_EQ(Refusal(Format::kTorch,
                    {.tensors = {View("as floats", {2}, 0, {1}), other},
                     .storages = {Borrow(a)}})
                .code(),
            Code::kUnsupported);
  TensorToWrite quantized = Dense("q", {2}, Borrow(a));
  quantized.dtype = DType::kQI32;
  const Status refused = Refusal(Format::kTorch, {.tensors = {quantized}});
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("QI32; in 'q'"));
}

TEST(Save, TorchNamesItsFolderAfterTheFile) {
  const std::vector<float> a = Numbers(1);
  SaveOptions options;
  options.path = "/models/step-7.pt";
  const auto saved = SaveAs(Format::kTorch,
                            {.tensors = {Dense("a", {1}, Borrow(a))}}, options);
  ASSERT_NE(saved, nullptr);
  EXPECT_THAT(saved->file, HasSubstr("step-7/data.pkl"));
}

}  // namespace
}  // namespace haulway
