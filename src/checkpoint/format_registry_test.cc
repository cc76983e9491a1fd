#include "checkpoint/format_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/source.h"
#include "testing/goldens.h"

namespace haulway {
namespace {

TEST(Formats, HaveOneRowEach) {
  std::set<Format> ids;
  std::set<std::string_view> names, suffixes;
  for (const FormatEntry& format : Formats()) {
    EXPECT_TRUE(ids.insert(format.id).second) << format.name;
    EXPECT_TRUE(names.insert(format.name).second) << format.name;
    EXPECT_EQ(Name(format.id), format.name);
    EXPECT_EQ(&EntryOf(format.id), &format);
    EXPECT_NE(format.open, nullptr);
    EXPECT_NE(format.verify, nullptr);
    for (const std::string_view suffix : format.suffixes) {
      EXPECT_TRUE(suffixes.insert(suffix).second) << suffix;
      EXPECT_EQ(suffix.front(), '.');
      EXPECT_EQ(FormatBySuffix("a" + std::string(suffix)), &format);
    }
  }
}

TEST(Formats, AreFoundByEndingsInAnyCase) {
  EXPECT_EQ(FormatBySuffix("/m/UP.SAFETENSORS")->id, Format::kSafetensors);
  EXPECT_EQ(FormatBySuffix("model.Pt")->id, Format::kTorch);
  EXPECT_EQ(FormatBySuffix("model.pt.gz"), nullptr);
  EXPECT_EQ(FormatBySuffix("pt"), nullptr);
  EXPECT_EQ(FormatBySuffix("folder/.npz"), nullptr);
  EXPECT_EQ(FormatBySuffix(""), nullptr);
}

TEST(Formats, AreNamedWhereAFileIsOfNone) {
  const std::string text = "Dear reader, this is no checkpoint.";
  const auto bytes = std::as_bytes(std::span(text));
  const auto none = DetectFormat(*MakeMemorySource(bytes), Strictness::kStrict);
  ASSERT_FALSE(none.ok());
  for (const FormatEntry& format : Formats()) {
    const bool named = none.status().message().find(std::string(format.name)) !=
                       std::string::npos;
    EXPECT_EQ(named || format.detect == nullptr, true) << format.name;
  }
}

// Checks that the facts in a format's row hold for every golden file.
TEST(Formats, CanHoldWhatFilesHold) {
  for (const char* ending : {".pt", ".tensors"}) {
    for (const std::string& name : test::GoldenNames(ending)) {
      SCOPED_TRACE(name);
      const std::string data = test::ReadGolden(name);
      OpenOptions options;
      options.strictness = Strictness::kLenient;
      const auto opened = Checkpoint::Open(
          MakeMemorySource(std::as_bytes(std::span(data))), options);
      if (!opened.ok()) continue;
      const Checkpoint& checkpoint = **opened;
      const CheckpointIndex& index = checkpoint.index();
      const Capabilities& can = EntryOf(index.format).can;
      EXPECT_EQ(index.flat, !can.nested);
      const bool crc = std::ranges::any_of(
          index.storages,
          [](const StorageInfo& s) { return s.crc32.has_value(); });
      EXPECT_TRUE(can.digests || !(crc || checkpoint.reader().has_digests()));
      const bool encrypted =
          std::ranges::any_of(index.storages, [](const StorageInfo& s) {
            return s.encoding == Encoding::kEncrypted;
          });
      EXPECT_TRUE(can.encrypt || !encrypted);
      std::set<uint32_t> storages;
      for (const TensorInfo& tensor : index.tensors) {
        if (tensor.storage == kNoStorage) continue;
        EXPECT_TRUE(storages.insert(tensor.storage).second || can.views);
      }
    }
  }
}

}  // namespace
}  // namespace haulway
