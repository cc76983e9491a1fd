// Tests every golden file, joined with another one, against the file alone.

#include "checkpoint/joined_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/open.h"
#include "haulway/options.h"
#include "haulway/verify.h"
#include "safetensors/header_for_test.h"
#include "testing/goldens.h"

namespace haulway {
namespace {

using ::testing::HasSubstr;

using SourcePtr = std::shared_ptr<const ByteSource>;

SourcePtr Memory(const std::string& bytes, std::string name = "memory") {
  const auto owned = std::make_shared<std::string>(bytes);
  return MakeBufferSource(
      Buffer(owned, std::as_writable_bytes(std::span(*owned)), false),
      std::move(name));
}

SourcePtr OneTensor(const std::string& name) {
  return Memory(safetensors::test::WithPrefix(
      R"({")" + name + R"(":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
      3));
}

Result<std::vector<std::byte>> Bytes(const Checkpoint& checkpoint,
                                     const TensorInfo& tensor) {
  std::vector<std::byte> bytes(tensor.nbytes);
  HAULWAY_TRY(checkpoint.Read(tensor, bytes));
  return bytes;
}

class Joined : public testing::TestWithParam<std::string> {};

TEST_P(Joined, HasTheTensorsOfEachFile) {
  const SourcePtr golden = Memory(test::ReadGolden(GetParam()), GetParam());
  OpenOptions options;
  options.strictness = Strictness::kLenient;
  const auto alone = Checkpoint::Open(golden, options);
  const auto list = ListSources({OneTensor("first of all"), golden});
  ASSERT_TRUE(list.ok());
  const auto joined = Checkpoint::Open(*list, options);
  if (!alone.ok()) {
    ASSERT_FALSE(joined.ok());
    EXPECT_EQ(joined.status().code(), alone.status().code());
    return;
  }
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  EXPECT_TRUE((*joined)->index().flat);
  const auto& entries = (*alone)->entries();
  ASSERT_EQ((*joined)->entries().size(), entries.size() + 1);
  for (const Entry& entry : entries) {
    const TensorInfo& expected = (*alone)->index().tensors[entry.tensor];
    const TensorInfo* found = (*joined)->Find(entry.name);
    ASSERT_NE(found, nullptr) << entry.name;
    EXPECT_EQ(found->kind, expected.kind);
    EXPECT_EQ(found->dtype, expected.dtype);
    EXPECT_TRUE(std::ranges::equal(found->shape, expected.shape));
    EXPECT_TRUE(std::ranges::equal(found->strides, expected.strides));
    if (expected.storage == kNoStorage) continue;
    // Some files have a meta tensor of 4 GiB; no file has that much data.
    if (expected.nbytes > 64 * kMiB) continue;
    const auto wanted = Bytes(**alone, expected);
    const auto read = Bytes(**joined, *found);
    ASSERT_EQ(read.ok(), wanted.ok()) << entry.name;
    if (wanted.ok()) {
      EXPECT_EQ(*read, *wanted) << entry.name;
    }
  }
}

TEST_P(Joined, IsVerifiedAsEachFileIs) {
  const SourcePtr golden = Memory(test::ReadGolden(GetParam()), GetParam());
  const auto alone = Verify(golden);
  const auto joined = Verify(*ListSources({OneTensor("first of all"), golden}));
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(joined->ok, alone->ok);
  EXPECT_EQ(joined->checked_bytes, alone->checked_bytes);
  if (!alone->ok) {
    EXPECT_THAT(joined->findings.at(0).message, HasSubstr(GetParam()));
  }
}

std::vector<std::string> AllGoldens() {
  std::vector<std::string> names;
  for (const char* ending : {".pt", ".tensors"}) {
    for (const std::string& name : test::GoldenNames(ending)) {
      names.push_back(name);
    }
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Files, Joined, testing::ValuesIn(AllGoldens()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace_if(
                               name, [](char c) { return !std::isalnum(c); },
                               '_');
                           return name;
                         });

TEST(SourceList, RefusesOneNameInTwoFiles) {
  const auto list = ListSources({OneTensor("a"), OneTensor("a")});
  ASSERT_TRUE(list.ok());
  const auto opened = Checkpoint::Open(*list);
  EXPECT_EQ(opened.status().code(), Code::kMismatch);
  EXPECT_THAT(std::string(opened.status().message()),
              HasSubstr("tensor 'a' is in two shards: in 'memory' too; of "
                        "memory (2)"));
}

TEST(SourceList, TakesNoNullsAndNoEmptyList) {
  EXPECT_EQ(ListSources({}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ListSources({OneTensor("a"), nullptr}).status().code(),
            Code::kInvalidArgument);
}

TEST(SourceList, HoldsListsButNoFileCan) {
  const SourcePtr inner = *ListSources({OneTensor("a"), OneTensor("b")});
  const auto outer = ListSources({inner, OneTensor("c")});
  EXPECT_EQ(Checkpoint::Open(*outer).status().code(), Code::kCorrupt);
  EXPECT_EQ(Verify(*outer)->findings.at(0).code, Code::kCorrupt);
}

TEST(SourceList, SaysWhatFormatsItHolds) {
  const auto opened = Checkpoint::Open(*ListSources(
      {OneTensor("x"), Memory(test::ReadGolden("tied.pt"), "tied.pt")}));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const auto& facts = (*opened)->index().facts;
  ASSERT_EQ(facts.size(), 2u);
  EXPECT_EQ(std::get<uint64_t>(facts[0].value), 2u);
  EXPECT_EQ(std::get<std::string>(facts[1].value), "safetensors, torch");
  EXPECT_EQ((*opened)->index().parts[1].name, "tied.pt");
}

TEST(SourceList, CountsTensorsAgainstTheLimitTogether) {
  OpenOptions options;
  options.limits.max_tensors = 1;
  const auto opened =
      Checkpoint::Open(*ListSources({OneTensor("a"), OneTensor("b")}), options);
  EXPECT_EQ(opened.status().code(), Code::kLimit);
}

TEST(SourceList, TakesAKeyOnlyForWhatCanBeEncrypted) {
  OpenOptions options;
  options.key.passphrase = Secret(std::string_view("secret"));
  const auto opened =
      Checkpoint::Open(*ListSources({OneTensor("a"), OneTensor("b")}), options);
  EXPECT_EQ(opened.status().code(), Code::kAuth);
}

}  // namespace
}  // namespace haulway
