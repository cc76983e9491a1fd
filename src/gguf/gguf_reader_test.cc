#include "gguf/gguf_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <variant>
#include <vector>

#include "gguf/gguf_header.h"
#include "gguf/gguf_types.h"
#include "testing/gguf_builder.h"
#include "testing/test_sources.h"

namespace haulway::gguf {
namespace {

using test::Array;
using test::Example;
using test::File;
using test::KeyValue;
using test::Little;
using test::TensorRow;
using test::Text;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::string_literals;

Result<std::unique_ptr<const FormatReader>> Open(
    const std::string& bytes, Strictness strictness = Strictness::kStrict,
    const ParseLimits& limits = {}) {
  OpenOptions options;
  options.strictness = strictness;
  options.limits = limits;
  return OpenGguf(haulway::test::InMemory(bytes), options);
}

Code CodeOf(const std::string& bytes,
            Strictness strictness = Strictness::kStrict) {
  return Open(bytes, strictness).status().code();
}

std::string Message(const std::string& bytes) {
  return std::string(Open(bytes).status().message());
}

std::string Data(size_t bytes) { return std::string(bytes, 'd'); }

const FactValue& Metadata(const FormatReader& reader, std::string_view key) {
  for (const Fact& fact : *reader.index().metadata) {
    if (fact.name == key) return fact.value;
  }
  static const FactValue missing;
  return missing;
}

TEST(Gguf, BecomesAFlatIndexInNumpysOrder) {
  const std::string file = Example();
  const auto reader = Open(file);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  const CheckpointIndex& index = (*reader)->index();
  EXPECT_EQ(index.format, Format::kGguf);
  EXPECT_TRUE(index.flat);
  ASSERT_EQ(index.entries.size(), 2u);
  EXPECT_EQ(index.entries[0].name, "w");
  EXPECT_EQ(index.tensors[0].dtype, DType::kF32);
  EXPECT_THAT(index.tensors[0].shape, ElementsAre(2, 3));
  EXPECT_THAT(index.tensors[0].strides, ElementsAre(3, 1));
  EXPECT_EQ(index.storages[0].offset, file.size() - 96);
  EXPECT_EQ(index.tensors[1].dtype, DType::kQ4_0);
  EXPECT_THAT(index.tensors[1].shape, ElementsAre(36));
  EXPECT_THAT(ElementShape(DType::kQ4_0, index.tensors[1].shape),
              ElementsAre(64));
  EXPECT_EQ(index.tensors[1].nbytes, 36u);
  EXPECT_EQ(index.storages[1].offset, file.size() - 64);
}

TEST(Gguf, ValuesOfEveryTypeAreKept) {
  const auto reader = Open(File(
      {KeyValue("u8", 0, "\xFE"s), KeyValue("i8", 1, "\xFE"s),
       KeyValue("u16", 2, Little(65535, 2)), KeyValue("i16", 3, "\xFE\xFF"s),
       KeyValue("u32", 4, Little(0xFFFFFFFF, 4)),
       KeyValue("i32", 5, Little(0xFFFFFFFF, 4)),
       KeyValue("f32", 6, Little(0x3FC00000, 4)), KeyValue("yes", 7, "\1"s),
       KeyValue("text", 8, Text("t\0x"s)),
       KeyValue("u64", 10, Little(~0ull, 8)),
       KeyValue("i64", 11, Little(~0ull, 8)),
       KeyValue("f64", 12, Little(0xBFF8000000000000, 8)),
       KeyValue("bools", 9, Array(7, 3, "\1\0\1"s)),
       KeyValue("bytes", 9, Array(1, 2, "\1\xFF"s)),
       KeyValue("reals", 9, Array(6, 1, Little(0x3FC00000, 4))),
       KeyValue("words", 9, Array(8, 2, Text("a") + Text(""))),
       KeyValue("none", 9, Array(4, 0, ""))},
      {}, ""));
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  const auto value = [&](std::string_view key) -> const FactValue& {
    return Metadata(**reader, key);
  };
  EXPECT_EQ(value("u8"), FactValue(uint64_t{254}));
  EXPECT_EQ(value("i8"), FactValue(int64_t{-2}));
  EXPECT_EQ(value("u16"), FactValue(uint64_t{65535}));
  EXPECT_EQ(value("i16"), FactValue(int64_t{-2}));
  EXPECT_EQ(value("u32"), FactValue(uint64_t{0xFFFFFFFF}));
  EXPECT_EQ(value("i32"), FactValue(int64_t{-1}));
  EXPECT_EQ(value("f32"), FactValue(1.5));
  EXPECT_EQ(value("yes"), FactValue(true));
  EXPECT_EQ(value("text"), FactValue("t\0x"s));
  EXPECT_EQ(value("u64"), FactValue(~uint64_t{0}));
  EXPECT_EQ(value("i64"), FactValue(int64_t{-1}));
  EXPECT_EQ(value("f64"), FactValue(-1.5));
  EXPECT_EQ(value("bools"),
            FactValue(FactArray(std::vector<bool>{true, false, true})));
  EXPECT_EQ(value("bytes"), FactValue(FactArray(std::vector<int64_t>{1, -1})));
  EXPECT_EQ(value("reals"), FactValue(FactArray(std::vector<double>{1.5})));
  EXPECT_EQ(value("words"),
            FactValue(FactArray(std::vector<std::string>{"a", ""})));
  EXPECT_EQ(value("none"), FactValue(FactArray(std::vector<uint64_t>{})));
  EXPECT_EQ((*reader)->index().metadata->at(4).type, "u32");
  EXPECT_EQ((*reader)->index().metadata->at(13).type, "i8");
}

TEST(Gguf, EveryTypeOfTensorHasItsSize) {
  std::set<DType> seen;
  for (uint32_t id = 0; id < 50; ++id) {
    const auto dtype = TypeOf(id);
    if (!dtype.has_value()) {
      EXPECT_EQ(CodeOf(File({}, {TensorRow("t", {256}, id, 0)}, Data(4096))),
                Code::kUnsupported)
          << id;
      continue;
    }
    EXPECT_TRUE(seen.insert(*dtype).second) << id;
    EXPECT_EQ(IdOf(*dtype), id);
    const DTypeInfo& info = Describe(*dtype);
    const uint64_t bytes =
        info.block_bytes != 0 ? 2 * 256 / info.block_elements * info.block_bytes
                              : 2 * 256 * info.item_bytes;
    const std::string file = File({}, {TensorRow("t", {256, 2}, id, 0)},
                                  Data((bytes + 31) / 32 * 32));
    const auto reader = Open(file);
    ASSERT_TRUE(reader.ok()) << id << reader.status().message();
    const TensorInfo& tensor = (*reader)->index().tensors[0];
    EXPECT_EQ(tensor.nbytes, bytes) << info.name;
    EXPECT_THAT(ElementShape(tensor.dtype, tensor.shape), ElementsAre(2, 256));
  }
  EXPECT_EQ(seen.size(), 35u);
  EXPECT_EQ(IdOf(DType::kBool), std::nullopt);
}

TEST(Gguf, RefusesEveryTruncation) {
  const std::string file = Example();
  // No padding is needed after the last tensor.
  const size_t needed = file.size() - 28;
  for (size_t length = 0; length < file.size(); ++length) {
    const Code code = CodeOf(file.substr(0, length));
    EXPECT_EQ(code, length < needed ? Code::kTruncated : Code::kOk) << length;
  }
}

TEST(Gguf, StaysWithinTheFileWhateverBitIsFlipped) {
  const std::string file = Example();
  for (size_t bit = 0; bit < (file.size() - 96) * 8; ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    for (const Strictness strictness :
         {Strictness::kStrict, Strictness::kLenient}) {
      const auto reader = Open(flipped, strictness);
      if (!reader.ok()) continue;
      for (const StorageInfo& storage : (*reader)->index().storages) {
        ASSERT_LE(storage.frame_end, file.size()) << bit;
        ASSERT_LE(storage.offset, storage.frame_end) << bit;
      }
    }
  }
}

TEST(Gguf, RefusesOtherVersions) {
  EXPECT_TRUE(Open(File({}, {}, "", 32, 2)).ok());
  EXPECT_THAT(Message(File({}, {}, "", 32, 1)), HasSubstr("found 1"));
  EXPECT_THAT(Message(File({}, {}, "", 32, 4)), HasSubstr("found 4"));
  EXPECT_THAT(Message(File({}, {}, "", 32, 0x03000000)),
              HasSubstr("big-endian"));
  EXPECT_THAT(Message("GGML" + Example().substr(4)), HasSubstr("'GGUF'"));
}

TEST(Gguf, RefusesKeysAndValuesThatAreWrong) {
  const auto message = [](const std::string& key_value) {
    return Message(File({key_value, key_value}, {}, ""));
  };
  const std::string one = Little(1, 4);
  EXPECT_THAT(message(KeyValue("k", 4, one)), HasSubstr("duplicate key 'k'"));
  EXPECT_THAT(message(KeyValue("", 4, one)), HasSubstr("key is empty"));
  EXPECT_THAT(message(KeyValue("\xFF", 4, one)), HasSubstr("not UTF-8"));
  EXPECT_THAT(message(KeyValue(std::string(65536, 'k'), 4, one)),
              HasSubstr("65536 bytes"));
  EXPECT_THAT(message(KeyValue("k", 13, one)), HasSubstr("found 13"));
  EXPECT_THAT(message(KeyValue("k", 7, "\2")), HasSubstr("bool is wrong"));
  EXPECT_THAT(message(KeyValue("k", 9, Array(7, 2, "\1\2"))),
              HasSubstr("bool is wrong"));
  EXPECT_THAT(message(KeyValue("k", 9, Array(9, 1, Array(4, 1, one)))),
              HasSubstr("array of arrays is not read; at byte 37; in 'k'"));
  EXPECT_THAT(message(KeyValue("k", 9, Array(4, uint64_t{1} << 40, one))),
              HasSubstr("max_items"));
  EXPECT_THAT(message(KeyValue("k", 8, Little(~0ull, 8))),
              HasSubstr("header ends early"));
}

TEST(Gguf, HonoursTheAlignment) {
  const auto file = [](std::string_view key_value, uint64_t alignment) {
    return File({std::string(key_value)},
                {TensorRow("a", {1}, 0, 0), TensorRow("b", {1}, 0, alignment)},
                Data(2 * alignment), alignment);
  };
  const auto key = [](uint32_t value) {
    return KeyValue("general.alignment", 4, Little(value, 4));
  };
  EXPECT_TRUE(Open(file(key(8), 8)).ok());
  const auto reader = Open(file(key(4096), 4096));
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->index().storages[0].offset, 4096u);
  for (const uint32_t wrong : {0u, 3u, 24u, 0xFFFFFFFFu}) {
    EXPECT_EQ(CodeOf(file(key(wrong), 32)), Code::kCorrupt) << wrong;
  }
  EXPECT_EQ(CodeOf(file(KeyValue("general.alignment", 10, Little(32, 8)), 32)),
            Code::kCorrupt);
}

TEST(Gguf, RefusesTensorsThatAreWrong) {
  const auto message = [](const std::string& row) {
    return Message(File({}, {row}, Data(64)));
  };
  EXPECT_THAT(message(TensorRow(std::string(64, 'n'), {1}, 0, 0)),
              HasSubstr("64 bytes"));
  EXPECT_THAT(message(TensorRow("\xFF", {1}, 0, 0)), HasSubstr("not UTF-8"));
  EXPECT_THAT(message(TensorRow("t", {1, 1, 1, 1, 1}, 0, 0)),
              HasSubstr("5 dimensions"));
  EXPECT_THAT(message(TensorRow("t", {uint64_t{1} << 63}, 0, 0)),
              HasSubstr("2^63"));
  EXPECT_THAT(message(TensorRow("t", {1ull << 40, 1ull << 40}, 0, 0)),
              HasSubstr("overflows"));
  EXPECT_THAT(message(TensorRow("t", {33}, 2, 0)),
              HasSubstr("no whole blocks of Q4_0"));
  EXPECT_THAT(message(TensorRow("t", {}, 2, 0)), HasSubstr("no whole blocks"));
  EXPECT_THAT(message(TensorRow("t", {17}, 0, 0)), HasSubstr("past the file"));
  const std::string row = TensorRow("t", {1}, 0, 0);
  EXPECT_THAT(Message(File({}, {row, row}, Data(64))),
              HasSubstr("duplicate tensor 't'"));
  EXPECT_TRUE(Open(File({}, {TensorRow("s", {}, 0, 0)}, Data(4))).ok());
  EXPECT_TRUE(Open(File({}, {TensorRow("e", {0, 5}, 0, 0)}, "")).ok());
}

TEST(Gguf, RefusesHolesOverlapsAndBytesBehind) {
  const auto two = [](uint64_t first, uint64_t second, size_t bytes) {
    return File({},
                {TensorRow("a", {8}, 0, first), TensorRow("b", {8}, 0, second)},
                Data(bytes));
  };
  EXPECT_TRUE(Open(two(0, 32, 64)).ok());
  EXPECT_THAT(Message(two(0, 64, 96)), HasSubstr("hole"));
  EXPECT_THAT(Message(two(0, 0, 64)), HasSubstr("overlaps"));
  EXPECT_THAT(Message(two(0, 33, 96)), HasSubstr("not aligned"));
  EXPECT_THAT(Message(two(0, 32, 65)), HasSubstr("1 bytes follow"));
  // Lenient reading accepts gaps, but no shared bytes.
  for (const std::string& file :
       {two(0, 64, 96), two(32, 0, 64), two(0, 33, 96), two(0, 32, 65)}) {
    EXPECT_EQ(CodeOf(file, Strictness::kLenient), Code::kOk);
  }
  for (const std::string& file : {two(0, 0, 64), two(0, 31, 96)}) {
    EXPECT_EQ(CodeOf(file, Strictness::kLenient), Code::kCorrupt);
  }
}

TEST(Gguf, CountsThatTheFileCannotHoldCostNothing) {
  for (const uint64_t count : {uint64_t{1} << 62, uint64_t{1000}}) {
    std::string file = Example();
    file.replace(8, 8, Little(count, 8));
    EXPECT_EQ(CodeOf(file), Code::kTruncated);
    file = Example();
    file.replace(16, 8, Little(count, 8));
    EXPECT_EQ(CodeOf(file), Code::kTruncated);
  }
}

TEST(Gguf, NamesTheLimitThatIsPassed) {
  const auto message = [](auto set) {
    ParseLimits limits;
    set(&limits);
    return std::string(
        Open(Example(), Strictness::kStrict, limits).status().message());
  };
  EXPECT_THAT(message([](ParseLimits* l) { l->max_tensors = 1; }),
              HasSubstr("max_tensors 1"));
  EXPECT_THAT(message([](ParseLimits* l) { l->max_entries = 2; }),
              HasSubstr("max_entries 2"));
  EXPECT_THAT(message([](ParseLimits* l) { l->max_items = 1; }),
              HasSubstr("max_items 1"));
  EXPECT_THAT(message([](ParseLimits* l) { l->max_directory_bytes = 100; }),
              HasSubstr("max_directory_bytes 100"));
  EXPECT_EQ(message([](ParseLimits* l) {
              l->max_tensors = l->max_items = 2;
              l->max_entries = 3;
              l->max_directory_bytes = 64 * kKiB;
            }),
            "");
}

TEST(Gguf, ReadsALongHeaderInFewSteps) {
  std::string words;
  for (int i = 0; i < 40000; ++i) words += Text("word" + std::to_string(i));
  const std::string file = File({KeyValue("tokens", 9, Array(8, 40000, words))},
                                {TensorRow("t", {8}, 0, 0)}, Data(32));
  const auto source =
      std::make_shared<const haulway::test::CountingSource>(file);
  const auto reader = OpenGguf(source, {});
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ(source->reads, 3);  // 64, 256 and 1024 KiB.
  const auto* tokens = std::get_if<FactArray>(&Metadata(**reader, "tokens"));
  ASSERT_NE(tokens, nullptr);
  EXPECT_EQ(std::get<std::vector<std::string>>(*tokens).back(), "word39999");
}

TEST(Gguf, VerifySaysThatNothingIsChecked) {
  const auto report = VerifyGguf(haulway::test::InMemory(Example()), {});
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->ok);
  EXPECT_EQ(report->format, Format::kGguf);
  EXPECT_EQ(report->checked_bytes, 0u);
  ASSERT_EQ(report->unchecked.size(), 1u);
  const auto broken =
      VerifyGguf(haulway::test::InMemory(Example().substr(0, 90)), {});
  ASSERT_TRUE(broken.ok());
  EXPECT_FALSE(broken->ok);
  EXPECT_EQ(broken->findings.at(0).code, Code::kTruncated);
}

TEST(Gguf, SourceThatFailsIsNoFinding) {
  const auto source = std::make_shared<haulway::test::FaultSource>(
      Example(), Status::FromErrno(5, "injected"));
  source->end = 1;
  EXPECT_EQ(VerifyGguf(source, {}).status().os_error(), 5);
}

}  // namespace
}  // namespace haulway::gguf
