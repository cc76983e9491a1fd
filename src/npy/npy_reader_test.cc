#include "npy/npy_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "npy/npy_header.h"
#include "testing/npy_builder.h"
#include "testing/test_sources.h"

namespace haulway::npy {
namespace {

using test::Array;
using test::Npy;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::string_literals;

Result<std::unique_ptr<const FormatReader>> Open(
    const std::string& bytes, Strictness strictness = Strictness::kStrict,
    const ParseLimits& limits = {}) {
  OpenOptions options;
  options.strictness = strictness;
  options.limits = limits;
  return OpenNpy(haulway::test::InMemory(bytes), options);
}

std::string Message(const std::string& bytes) {
  return std::string(Open(bytes).status().message());
}

std::string Example() { return Array("'<f4'", "(2, 3)", std::string(24, 'd')); }

TEST(Npy, IsTheArrayItself) {
  const auto reader = Open(Example());
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  const CheckpointIndex& index = (*reader)->index();
  EXPECT_EQ(index.format, Format::kNpy);
  EXPECT_FALSE(index.flat);
  ASSERT_TRUE(index.root.is(Kind::kObject));
  EXPECT_EQ(index.root.object().tensor, 0u);
  ASSERT_EQ(index.entries.size(), 1u);
  EXPECT_EQ(index.entries[0].name, "tensor");
  EXPECT_EQ(index.tensors[0].dtype, DType::kF32);
  EXPECT_THAT(index.tensors[0].shape, ElementsAre(2, 3));
  EXPECT_THAT(index.tensors[0].strides, ElementsAre(3, 1));
  EXPECT_EQ(index.storages[0].offset, 128u);
  EXPECT_EQ(index.storages[0].swap_bytes, 1);
}

TEST(Npy, FortranOrderIsAMatterOfStrides) {
  const auto reader =
      Open(Array("'<f4'", "(2, 3)", std::string(24, 'd'), true));
  ASSERT_TRUE(reader.ok());
  EXPECT_THAT((*reader)->index().tensors[0].shape, ElementsAre(2, 3));
  EXPECT_THAT((*reader)->index().tensors[0].strides, ElementsAre(1, 2));
}

TEST(Npy, EveryTypeOfNumberIsKnownInBothOrders) {
  const std::pair<const char*, DType> kTypes[] = {
      {"b1", DType::kBool}, {"i1", DType::kI8},   {"i2", DType::kI16},
      {"i4", DType::kI32},  {"i8", DType::kI64},  {"u1", DType::kU8},
      {"u2", DType::kU16},  {"u4", DType::kU32},  {"u8", DType::kU64},
      {"f2", DType::kF16},  {"f4", DType::kF32},  {"f8", DType::kF64},
      {"c8", DType::kC64},  {"c16", DType::kC128}};
  for (const auto& [code, dtype] : kTypes) {
    for (const char order : {'<', '>', '|'}) {
      const std::string data(2 * ItemBytes(dtype), '\1');
      const auto reader = Open(Array("'"s + order + code + "'", "(2,)", data));
      if (order == '|' && ItemBytes(dtype) > 1) {
        EXPECT_THAT(std::string(reader.status().message()),
                    HasSubstr("order its bytes"));
        continue;
      }
      ASSERT_TRUE(reader.ok()) << code << reader.status().message();
      EXPECT_EQ((*reader)->index().tensors[0].dtype, dtype);
      EXPECT_EQ((*reader)->index().storages[0].swap_bytes,
                order == '>' ? Describe(dtype).swap_bytes : 1)
          << code;
    }
  }
}

TEST(Npy, ElementsThatAreNoNumbersAreRefusedByName) {
  const auto refused = [](const char* descr) {
    return Open(Array(descr, "(2,)", "12345678")).status();
  };
  EXPECT_EQ(refused("'|O'").code(), Code::kUnsafe);
  EXPECT_THAT(std::string(refused("'|O'").message()),
              HasSubstr("array of type '|O' holds Python objects, which are "
                        "never loaded; at byte 20"));
  const std::pair<const char*, const char*> kOthers[] = {
      {"'<U4'", "holds text, which Haulway does not read"},
      {"'|S8'", "byte strings"},
      {"'<M8[ns]'", "times"},
      {"'<m8[s]'", "spans of time"},
      {"'|V2'", "raw bytes"},
      {"'<f16'", "numbers of an unusual size, which Haulway does not read"},
      {"'<q9'", "not known"},
      {"''", "not known"},
      {"[('a', '<f4'), ('b]', 'O')]", "structures"},
      {"('<f4', (2,))", "structures"}};
  for (const auto& [descr, what] : kOthers) {
    EXPECT_EQ(refused(descr).code(), Code::kUnsupported) << descr;
    EXPECT_THAT(std::string(refused(descr).message()), HasSubstr(what));
  }
}

TEST(Npy, RefusesEveryTruncationAndBytesBehind) {
  const std::string file = Example();
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_EQ(Open(file.substr(0, length)).status().code(), Code::kTruncated)
        << length;
  }
  EXPECT_THAT(Message(file + "x"), HasSubstr("1 bytes follow the array"));
  EXPECT_TRUE(Open(file + "x", Strictness::kLenient).ok());
}

TEST(Npy, StaysWithinTheFileWhateverBitIsFlipped) {
  const std::string file = Example();
  for (size_t bit = 0; bit < 128 * 8; ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    for (const Strictness strictness :
         {Strictness::kStrict, Strictness::kLenient}) {
      const auto reader = Open(flipped, strictness);
      if (!reader.ok()) continue;
      ASSERT_LE((*reader)->index().storages[0].frame_end, file.size()) << bit;
    }
  }
}

TEST(Npy, TakesEveryVersionAndForm) {
  const std::string data(24, 'd');
  for (const int version : {1, 2, 3}) {
    for (const char* header :
         {"{'descr':'<f4','fortran_order':False,'shape':(2,3)}",
          "{ 'shape' : (2, 3,) , \"descr\" : \"<f4\" , 'fortran_order' : False "
          ", } \n"}) {
      const auto reader = Open(Npy(header, data, version));
      EXPECT_TRUE(reader.ok()) << reader.status().message();
    }
  }
  const std::string python2 =
      "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }\n";
  EXPECT_TRUE(Open(Npy(python2, data)).ok());
  EXPECT_FALSE(Open(Npy(python2, data, 3)).ok());
  const auto scalar = Open(Array("'<f4'", "()", "1234"));
  ASSERT_TRUE(scalar.ok());
  EXPECT_TRUE((*scalar)->index().tensors[0].shape.empty());
  EXPECT_TRUE(Open(Array("'<f4'", "(0, 9223372036854775807)", "")).ok());
  for (const int version : {0, 4}) {
    EXPECT_EQ(Open(Npy(python2, data, version)).status().code(),
              Code::kUnsupported);
  }
  std::string minor = Example();
  minor[7] = 1;
  EXPECT_THAT(Message(minor), HasSubstr("found 1.1"));
}

TEST(Npy, RefusesHeadersThatAreNotOfTheOneForm) {
  const std::string order = "'fortran_order': False";
  const std::string shape = "'shape': (2, 3)";
  const std::string descr = "'descr': '<f4'";
  const std::pair<std::string, const char*> kWrong[] = {
      {"", "expected '{'"},
      {"[" + descr + "]", "expected '{'"},
      {"{" + descr + "," + order + "}", "lacks a key"},
      {"{" + descr + "," + order + "," + shape, "expected '}'"},
      {"{" + descr + " " + order + "," + shape + "}", "expected '}'"},
      {"{" + descr + "," + descr + "," + shape + "}", "there twice"},
      {"{" + descr + "," + order + "," + shape + ",'x': 1}",
       "'x' is not known"},
      {"{" + descr + "," + order + "," + shape + "} x", "goes on"},
      {"{" + descr + "," + order + ",'shape': (3)}", "is a number"},
      {"{" + descr + "," + order + ",'shape': [2, 3]}", "expected '('"},
      {"{" + descr + "," + order + ",'shape': (2 3)}", "expected ','"},
      {"{" + descr + "," + order + ",'shape': (-2,)}", "dimension is wrong"},
      {"{" + descr + "," + order + ",'shape': (02,)}", "dimension is wrong"},
      {"{" + descr + "," + order + ",'shape': (9223372036854775808,)}",
       "dimension is wrong"},
      {"{" + descr + "," + order + ",'shape': (1<<3,)}", "expected ','"},
      {"{" + descr + "," + order + ",'shape': (4611686018427387904,)}",
       "overflows"},
      {"{" + descr + ",'fortran_order': 0," + shape + "}", "True or False"},
      {"{'descr': 'a\\x41'," + order + "," + shape + "}", "escapes"},
      {"{'descr': <f4," + order + "," + shape + "}", "expected a string"},
      {"{'descr': [('a'," + order + "," + shape + "}", "does not end"},
      {"{'descr': [(])," + order + "," + shape + "}", "does not end"}};
  for (const auto& [header, what] : kWrong) {
    EXPECT_THAT(Message(Npy(header, std::string(24, 'd'))), HasSubstr(what))
        << header;
    EXPECT_EQ(Open(Npy(header, std::string(24, 'd'))).status().code(),
              Code::kCorrupt);
  }
}

TEST(Npy, NamesTheLimitThatIsPassed) {
  ParseLimits limits;
  limits.max_rank = 1;
  EXPECT_THAT(
      std::string(
          Open(Example(), Strictness::kStrict, limits).status().message()),
      HasSubstr("max_rank 1"));
  limits = {.max_npy_header_bytes = 117};
  EXPECT_THAT(
      std::string(
          Open(Example(), Strictness::kStrict, limits).status().message()),
      HasSubstr("max_npy_header_bytes 117"));
  limits = {.max_npy_header_bytes = 118, .max_rank = 2};
  EXPECT_TRUE(Open(Example(), Strictness::kStrict, limits).ok());
}

TEST(Npy, ReadsAHeaderLongerThanTheFirstRead) {
  std::string header =
      "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  header.resize(5000, ' ');
  EXPECT_TRUE(Open(Npy(header, std::string(24, 'd'), 2)).ok());
}

TEST(Npy, VerifySaysWhatIsWrong) {
  EXPECT_TRUE(VerifyNpy(haulway::test::InMemory(Example()), {})->ok);
  EXPECT_FALSE(
      VerifyNpy(haulway::test::InMemory(Example().substr(0, 140)), {})->ok);
}

}  // namespace
}  // namespace haulway::npy
