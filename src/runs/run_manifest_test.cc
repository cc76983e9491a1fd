#include "runs/run_manifest.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "runs/run_layout.h"

namespace haulway {

namespace {

RunManifest Example() {
  RunManifest manifest{.step = 1234567890123, .format = "pt"};
  manifest.created = "2026-11-29T08:00:00Z";
  manifest.save = "save-0123456789abcdef";
  manifest.files = {{.name = "model.pt", .bytes = 123456},
                    {.name = "inner/\"quoted\"\n.json", .bytes = 2}};
  manifest.files[0].sha256.fill(std::byte{0xab});
  manifest.metadata = R"({"loss":0.5,"list":[1,null,"x"]})";
  return manifest;
}

TEST(RunManifest, IsReadAsItWasWritten) {
  const RunManifest written = Example();
  const auto read = ParseRunManifest(RunManifestToJson(written));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->step, written.step);
  EXPECT_EQ(read->format, "pt");
  EXPECT_EQ(read->created, written.created);
  EXPECT_EQ(read->save, written.save);
  EXPECT_EQ(read->metadata, written.metadata);
  ASSERT_EQ(read->files.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read->files[i].name, written.files[i].name);
    EXPECT_EQ(read->files[i].bytes, written.files[i].bytes);
    EXPECT_EQ(read->files[i].sha256, written.files[i].sha256);
  }
}

TEST(RunManifest, SurvivesEveryDamage) {
  const std::string whole = RunManifestToJson(Example());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_FALSE(ParseRunManifest(std::string_view(whole).substr(0, i)).ok() &&
                 i + 1 < whole.size());
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      const auto read = ParseRunManifest(damaged);
      if (!read.ok()) continue;
      for (const ManifestFile& file : read->files) {
        EXPECT_TRUE(IsPathBelow(file.name)) << damaged;
      }
      EXPECT_TRUE(read->save.empty() || IsPathBelow(read->save)) << damaged;
    }
  }
}

TEST(RunManifest, ANameStaysBelowItsFolder) {
  for (const std::string_view name :
       {"a", "a/b", ".metadata", "a/..b", "a..", "a b", "__0_0.distcp"}) {
    EXPECT_TRUE(IsPathBelow(name)) << name;
  }
  for (const std::string_view name : std::initializer_list<std::string_view>{
           "", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b",
           std::string_view("a\0b", 3)}) {
    EXPECT_FALSE(IsPathBelow(name)) << name;
  }
}

TEST(RunLayouts, NumbersAreWhole) {
  EXPECT_EQ(WholeNumberOf("0010"), 10U);
  EXPECT_EQ(WholeNumberOf("18446744073709551615"), UINT64_MAX);
  for (const std::string_view text :
       {"", "-1", "+1", " 1", "1 ", "1.0", "0x1", "18446744073709551616"}) {
    EXPECT_FALSE(WholeNumberOf(text).has_value()) << text;
  }
}

}  // namespace

}  // namespace haulway
