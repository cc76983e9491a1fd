// Opens the versions of weights in testdata/delta/, which trainers wrote, and
// compares each with the tensors that they held when they were published.

#include "checkpoint/version_chain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "base/text.h"
#include "haulway/checkpoint.h"
#include "haulway/open.h"
#include "haulway/verify.h"

namespace haulway {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kSets = HAULWAY_TESTDATA "/delta";

// "BF16 [2, 3] SHA-256", by tensor.
using Tensors = std::map<std::string, std::string>;

// Returns the tensors of a set's versions, by folder.
std::map<std::string, Tensors> ExpectedOf(const std::string& set) {
  simdjson::dom::parser parser;
  std::map<std::string, Tensors> all;
  const auto root = parser.load((kSets / set / "expected.json").string());
  const simdjson::dom::object folders = root.get_object();
  for (const auto& [folder, listed] : folders) {
    const simdjson::dom::object tensors = listed.get_object();
    for (const auto& [name, facts] : tensors) {
      std::vector<int64_t> shape;
      const simdjson::dom::array sizes = facts["shape"].get_array();
      for (const auto size : sizes) {
        shape.push_back(size.get_int64().value());
      }
      all[std::string(folder)][std::string(name)] = fmt::format(
          "{} [{}] {}", facts["dtype"].get_string().value(),
          fmt::join(shape, ", "), facts["sha256"].get_string().value());
    }
  }
  return all;
}

Result<std::shared_ptr<const Checkpoint>> OpenAt(const fs::path& path,
                                                 const fs::path& base) {
  HAULWAY_ASSIGN(auto source,
                 OpenSource(path.string(), {.base = base.string()}));
  return Checkpoint::Open(std::move(source));
}

Tensors TensorsOf(const Checkpoint& checkpoint) {
  Tensors found;
  for (const Entry& entry : checkpoint.entries()) {
    const TensorInfo& tensor = checkpoint.index().tensors[entry.tensor];
    std::vector<std::byte> bytes(tensor.nbytes);
    const Status read = checkpoint.Read(tensor, bytes);
    EXPECT_TRUE(read.ok()) << read.message();
    Sha256 digest;
    digest.Update(bytes);
    found[std::string(entry.name)] =
        fmt::format("{} [{}] {}", Name(tensor.dtype),
                    fmt::join(tensor.shape, ", "), Hex(digest.Finish()));
  }
  return found;
}

std::vector<std::string> GoodSets() {
  return {"slime-xor-xxh3", "slime-overwrite-adler32", "miles-xor-blake3-full",
          "mx-xor-adler32-full"};
}

TEST(VersionChain, GivesTheTensorsThatWerePublished) {
  for (const std::string& set : GoodSets()) {
    for (const auto& [folder, expected] : ExpectedOf(set)) {
      const fs::path path =
          kSets / set / (folder == "base" ? folder : "run/" + folder);
      const auto opened = OpenAt(path, kSets / set / "base");
      ASSERT_TRUE(opened.ok()) << opened.status().message();
      EXPECT_EQ(TensorsOf(**opened), expected) << set << " " << folder;
    }
  }
}

TEST(VersionChain, IsVerified) {
  for (const std::string& set : GoodSets()) {
    for (const auto& version : fs::directory_iterator(kSets / set / "run")) {
      const auto source = OpenSource(version.path().string(),
                                     {.base = (kSets / set / "base").string()});
      ASSERT_TRUE(source.ok());
      const auto report = Verify(*source);
      ASSERT_TRUE(report.ok()) << report.status().message();
      EXPECT_TRUE(report->ok) << report->findings[0].message;
    }
  }
}

TEST(VersionChain, SaysWhatItIs) {
  const fs::path set = kSets / "miles-xor-blake3-full";
  const auto opened = OpenAt(set / "run/weight_v000002", set / "base");
  ASSERT_TRUE(opened.ok());
  const CheckpointIndex& index = (*opened)->index();
  EXPECT_EQ(Name(index.format), "safetensors-delta");
  std::map<std::string, FactValue> facts;
  for (const Fact& fact : index.facts) facts[fact.name] = fact.value;
  EXPECT_EQ(facts["version"], FactValue("000002"));
  EXPECT_EQ(facts["base"], FactValue("000001"));
  EXPECT_EQ(facts["encoding"], FactValue("xor"));
  EXPECT_EQ(facts["checksum"], FactValue("blake3"));
  const auto chain =
      std::get<std::vector<std::string>>(std::get<FactArray>(facts["chain"]));
  EXPECT_THAT(chain, ElementsAre(HasSubstr("base"), HasSubstr("weight_v000001"),
                                 HasSubstr("weight_v000002")));
}

// A full version restarts the chain, so nothing before it is needed.
TEST(VersionChain, EndsAtTheNewestFullVersion) {
  for (const char* const name : {"miles-xor-blake3-full/run/weight_v000004",
                                 "mx-xor-adler32-full/run/v4"}) {
    const auto opened = OpenAt(kSets / name, "");
    EXPECT_TRUE(opened.ok()) << opened.status().message();
  }
}

TEST(VersionChain, NeedsItsBase) {
  const auto opened = OpenAt(kSets / "slime-xor-xxh3/run/weight_v000002", "");
  EXPECT_EQ(opened.status().code(), Code::kNotFound);
  const std::string message(opened.status().message());
  EXPECT_THAT(message, HasSubstr("000000"));
  EXPECT_THAT(message, HasSubstr("the option base"));
}

TEST(VersionChain, RefusesATensorThatTheBaseLacks) {
  const fs::path set = kSets / "slime-new-tensor";
  const auto opened = OpenAt(set / "run/weight_v000001", set / "base");
  EXPECT_EQ(opened.status().code(), Code::kMismatch);
  EXPECT_THAT(std::string(opened.status().message()),
              HasSubstr("'model.extra' is not in the base"));
}

TEST(VersionChain, IsNoModelWithoutItsIndex) {
  const auto opened = OpenAt(kSets /
                                 "slime-xor-xxh3/run/weight_v000001/"
                                 "model-00000-of-00001.safetensors",
                             "");
  EXPECT_EQ(opened.status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace haulway
