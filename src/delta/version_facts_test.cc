#include "delta/version_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace haulway::delta {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<Fact> Facts() {
  return {{"version", std::string("000004")},
          {"base_version", std::string("000003")},
          {"delta_encoding", std::string("xor")},
          {"compression_format", std::string("zstd")},
          {"checksum_format", std::string("xxh3-128")},
          {"synthetic_seed", int64_t{7}}};
}

Status Refused(std::string_view key, FactValue value,
               std::string_view folder = "weight_v000004") {
  std::vector<Fact> facts = Facts();
  for (Fact& fact : facts) {
    if (fact.name == key) fact.value = value;
  }
  return ReadVersionFacts(facts, folder).status();
}

TEST(VersionFacts, AreRead) {
  const auto facts = ReadVersionFacts(Facts(), "weight_v000004");
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(facts->version, "000004");
  EXPECT_EQ(facts->base, "000003");
  EXPECT_EQ(facts->change, Change::kXor);
  EXPECT_EQ(facts->checksum, ChecksumKind::kXxh3);
}

TEST(VersionFacts, MayBeNumbers) {
  std::vector<Fact> facts = Facts();
  facts[0].value = int64_t{4};
  facts[1].value = int64_t{3};
  const auto read = ReadVersionFacts(facts, "weight_v000004");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->version, "000004");
  EXPECT_EQ(read->base, "000003");
}

TEST(VersionFacts, AreRefused) {
  const std::monostate none;
  EXPECT_EQ(Refused("version", none).code(), Code::kCorrupt);
  EXPECT_EQ(Refused("version", std::string()).code(), Code::kCorrupt);
  EXPECT_EQ(Refused("base_version", none).code(), Code::kCorrupt);
  EXPECT_EQ(Refused("base_version", std::string("000004")).code(),
            Code::kCorrupt);
  EXPECT_EQ(Refused("base_version", std::string("4")).code(), Code::kCorrupt);
  std::vector<Fact> twice = Facts();
  twice.push_back(twice[0]);
  EXPECT_EQ(ReadVersionFacts(twice, "weight_v000004").status().code(),
            Code::kCorrupt);
  EXPECT_EQ(Refused("version", std::string("000005")).code(), Code::kMismatch);
  EXPECT_EQ(Refused("version", std::string("v4"), "v5").code(),
            Code::kMismatch);
  const Status encoding = Refused("delta_encoding", std::string("add"));
  EXPECT_EQ(encoding.code(), Code::kUnsupported);
  EXPECT_THAT(std::string(encoding.message()), HasSubstr("'add'"));
  EXPECT_EQ(Refused("compression_format", std::string("lz4")).code(),
            Code::kUnsupported);
  EXPECT_EQ(Refused("checksum_format", std::string("crc32")).code(),
            Code::kUnsupported);
}

// A server may give versions names that say nothing of the folder.
TEST(VersionFacts, MayHaveAnyNameInAFolderOfAServer) {
  EXPECT_TRUE(Refused("version", std::string("7f3a"), "v4").ok());
  EXPECT_TRUE(Refused("version", std::string("1234"), "v4").ok());
  EXPECT_TRUE(Refused("version", std::string("000009"), "step").ok());
}

TEST(VersionFacts, NameTheFolderOfTheBase) {
  EXPECT_THAT(FoldersOfBase("weight_v000004", "000004", "000003"),
              ElementsAre("weight_v000003"));
  EXPECT_THAT(FoldersOfBase("weight_v000010", "10", "9"),
              ElementsAre("weight_v00009", "weight_v000009"));
  EXPECT_THAT(FoldersOfBase("v10", "v10", "v9"), ElementsAre("v9", "v09"));
  EXPECT_THAT(FoldersOfBase("run", "b7", "a3"), IsEmpty());
  EXPECT_THAT(FoldersOfBase("run-b7", "b7", "a3"), ElementsAre("run-a3"));
}

TEST(VersionFacts, DoNotLeadElsewhere) {
  EXPECT_THAT(FoldersOfBase("weight_v4", "4", "/../../etc"), IsEmpty());
  EXPECT_THAT(FoldersOfBase("4", "4", ".."), IsEmpty());
}

TEST(VersionFacts, KnowTheSameVersion) {
  EXPECT_TRUE(IsSameVersion("000003", "3"));
  EXPECT_TRUE(IsSameVersion("a", "a"));
  EXPECT_FALSE(IsSameVersion("v3", "3"));
  EXPECT_FALSE(IsSameVersion("000003", "000004"));
  EXPECT_TRUE(IsSameVersion("0", "000000"));
}

}  // namespace
}  // namespace haulway::delta
