#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "haulway/convert.h"
#include "testing/goldens.h"

namespace haulway {
namespace {

// Returns the contents of `checkpoint`: shape and elements by name.
std::vector<std::pair<std::string, std::string>> NamesAndDigests(
    const Checkpoint& checkpoint) {
  std::vector<std::pair<std::string, std::string>> contents;
  for (const Entry& entry : checkpoint.entries()) {
    const TensorInfo& tensor = checkpoint.index().tensors[entry.tensor];
    std::string text(tensor.storage == kNoStorage ? 0 : tensor.nbytes, '\0');
    if (!text.empty()) {
      const auto out = std::as_writable_bytes(std::span(text));
      EXPECT_TRUE(checkpoint.Read(tensor, out).ok());
    }
    for (const int64_t size : tensor.shape) text += std::to_string(size) + ",";
    contents.emplace_back(entry.name, text);
  }
  return contents;
}

std::string Written(const Layout& layout) {
  std::string out;
  const auto sink = MakeMemorySink(&out);
  EXPECT_TRUE(Write(layout, *sink).ok());
  return out;
}

std::shared_ptr<const Checkpoint> OpenBytes(const std::string& bytes) {
  auto checkpoint = Checkpoint::Open(
      MakeMemorySource(std::as_bytes(std::span<const char>(bytes))));
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  return *checkpoint;
}

TEST(Repack, EveryGoldenKeepsItsTensors) {
  int repacked_count = 0;
  for (const std::string& name : test::GoldenNames(".pt")) {
    const std::string golden = test::ReadGolden(name);
    const auto checkpoint = OpenBytes(golden);
    for (const bool compact : {false, true}) {
      const auto repacked = Repack(*checkpoint, {.compact = compact});
      if (!repacked.ok()) {
        EXPECT_EQ(repacked.status().code(), Code::kUnsupported)
            << name << repacked.status().message();
        continue;
      }
      const std::string bytes = Written(*repacked->layout);
      const auto again = OpenBytes(bytes);
      EXPECT_EQ(NamesAndDigests(*again), NamesAndDigests(*checkpoint)) << name;
      EXPECT_TRUE(again->index().offsets_computed) << name;
      ++repacked_count;
    }
  }
  EXPECT_GE(repacked_count, 20);
}

TEST(Repack, WhatTorchSavedComesBackByteForByte) {
  const std::string path = HAULWAY_TESTDATA "/small.pt";
  const auto checkpoint = *Checkpoint::Open(std::string_view(path));
  const auto repacked =
      Repack(*checkpoint, {.archive = {.archive_name = "small"}});
  ASSERT_TRUE(repacked.ok()) << repacked.status().message();
  const auto source = *OpenFileSource(path);
  std::string expected(source->size(), '\0');
  ASSERT_TRUE(
      source->ReadAt(0, std::as_writable_bytes(std::span(expected))).ok());
  EXPECT_TRUE(Written(*repacked->layout) == expected);
}

TEST(Repack, AlignsAndLeavesChecksumsOutAsAsked) {
  const auto checkpoint =
      *Checkpoint::Open(std::string_view(HAULWAY_TESTDATA "/small.pt"));
  RepackOptions options;
  options.archive.alignment = 4096;
  options.archive.compute_crc32 = false;
  const std::string bytes = Written(*Repack(*checkpoint, options)->layout);
  const auto again = OpenBytes(bytes);
  for (const StorageInfo& storage : again->index().storages) {
    EXPECT_EQ(storage.offset % 4096, 0u);
    EXPECT_FALSE(storage.crc32.has_value());
  }
  options.archive.alignment = 3;
  EXPECT_EQ(Repack(*checkpoint, options).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace haulway
