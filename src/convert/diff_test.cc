#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "haulway/compare.h"
#include "haulway/format.h"
#include "haulway/save.h"

namespace haulway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TwoFiles : public ::testing::Test {
 protected:
  TwoFiles() {
    std::string name = ::testing::TempDir() + "diff-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~TwoFiles() override { std::filesystem::remove_all(folder_); }

  using Tensors = std::vector<std::pair<std::string, std::vector<float>>>;
  std::shared_ptr<const Checkpoint> Make(const std::string& name,
                                         const Tensors& tensors) {
    const std::string path = folder_ + "/" + name;
    auto writer = TensorWriter::Open(path);
    EXPECT_TRUE(writer.ok());
    for (const auto& [key, values] : tensors) {
      const int64_t shape[] = {static_cast<int64_t>(values.size())};
      EXPECT_TRUE(
          (*writer)
              ->Add(key, DType::kF32, shape, std::as_bytes(std::span(values)))
              .ok());
    }
    EXPECT_TRUE((*writer)->Commit().ok());
    auto opened = Checkpoint::Open(path);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return *opened;
  }

 private:
  std::string folder_;
};

TEST_F(TwoFiles, AToleranceIsANumber) {
  const auto a = Make("a.safetensors", {{"x", {1}}});
  const auto b = Make("b.safetensors", {{"x", {2}}});
  for (const double wrong : {std::nan(""), -1.0}) {
    for (const DiffOptions& options :
         {DiffOptions{.absolute = wrong}, DiffOptions{.relative = wrong}}) {
      const auto report = Diff(*a, *b, options);
      EXPECT_EQ(report.status().code(), Code::kInvalidArgument);
      EXPECT_THAT(report.status().message(), HasSubstr("tolerance is"));
    }
  }
}

TEST_F(TwoFiles, DifferByNameAndNumber) {
  const auto a = Make("a.safetensors", {{"x", {1, 2}}, {"y", {1}}});
  const auto b = Make("b.pt", {{"x", {1, 4}}, {"z", {1}}});
  const auto report = Diff(*a, *b);
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->equal());
  EXPECT_THAT(report->added, ElementsAre("z"));
  EXPECT_THAT(report->removed, ElementsAre("y"));
  ASSERT_EQ(report->changed.size(), 1U);
  EXPECT_EQ(report->changed[0].what, Difference::kBytes);
  EXPECT_EQ(report->changed[0].numbers->max_abs, 2);
  EXPECT_EQ(report->changed[0].numbers->mean_abs, 1);
}

TEST_F(TwoFiles, AreEqualInAnyFormatAndWithAnyThreads) {
  std::vector<float> many(3 << 18, 7);
  const auto a = Make("a.safetensors", {{"x", many}, {"none", {}}});
  const auto b = Make("b.tensors", {{"none", {}}, {"x", many}});
  for (const int threads : {1, 2, 5}) {
    const auto report = Diff(*a, *b, {.threads = threads});
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(report->equal());
    EXPECT_EQ(report->same, 2U);
    EXPECT_EQ(report->compared_bytes, 2 * many.size() * sizeof(float));
  }
}

TEST_F(TwoFiles, AreTheSameWithinATolerance) {
  const auto a = Make("a.safetensors", {{"x", {100, 0}}});
  const auto b = Make("b.safetensors", {{"x", {101, -0.0F}}});
  EXPECT_FALSE(Diff(*a, *b, {.relative = 0.001})->equal());
  EXPECT_TRUE(Diff(*a, *b, {.relative = 0.01})->equal());
  EXPECT_TRUE(Diff(*a, *b, {.absolute = 1})->equal());
}

// A processor that multiplies and adds at once rounds once, to less than this
// difference.
TEST_F(TwoFiles, AreTheSameOnAnyProcessor) {
  const auto a = Make("a.safetensors", {{"x", {3.5F - 0x1p-20F}}});
  const auto b = Make("b.safetensors", {{"x", {3}}});
  EXPECT_TRUE(
      Diff(*a, *b,
           {.absolute = 0.0985977824629922, .relative = 0.13380042128756378})
          ->equal());
}

TEST_F(TwoFiles, AreNotComparedOnceCancelled) {
  const auto a = Make("a.safetensors", {{"x", {1}}});
  const std::atomic<bool> cancel = true;
  EXPECT_EQ(Diff(*a, *a, {.cancel = &cancel}).status().code(),
            Code::kCancelled);
  EXPECT_EQ(MakeManifest(*a, {.cancel = &cancel}).status().code(),
            Code::kCancelled);
}

TEST_F(TwoFiles, HaveManifestsThatSayWhatDiffers) {
  const auto a = Make("a.safetensors", {{"x", {1}}, {"\"\\\n", {2}}});
  const auto b = Make("b.tensors", {{"x", {1}}, {"\"\\\n", {2}}});
  const auto made = MakeManifest(*a);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(*made, *MakeManifest(*b));
  const auto read = ManifestFromJson(ManifestToJson(*made));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_THAT(CompareManifests(*read, *made), IsEmpty());
  Manifest other = *made;
  other[1].sha256->at(0) ^= std::byte{1};
  const auto findings = CompareManifests(*made, other);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].message, HasSubstr("tensor 'x'"));
}

}  // namespace
}  // namespace haulway
