// Reads the output of LayOutLegacy() back with the reader of that container.
// python/tests/writing/test_save_protocols.py checks that torch.save() writes
// the same.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "haulway/archive.h"
#include "haulway/pickle.h"
#include "haulway/source.h"
#include "testing/layout_bytes.h"
#include "torch/torch_legacy.h"

namespace haulway {
namespace {

using ::haulway::test::Assemble;

// Returns the pickle that torch.save() writes for two FloatStorages with these
// keys.
std::string PickleOf(const std::vector<std::string>& keys, int protocol) {
  PickleWriter writer(protocol);
  writer.EmptyList();
  writer.PutUnshared();
  writer.Mark();
  for (const std::string& key : keys) {
    writer.BeginMarked();
    writer.Unicode("storage");
    writer.PutUnshared();
    writer.Global("torch", "FloatStorage");
    writer.PutUnshared();
    writer.Unicode(key);
    writer.PutUnshared();
    writer.Unicode("cpu");
    writer.PutUnshared();
    writer.Int(3);
    writer.None();
    writer.Tuple(6);
    writer.PutUnshared();
    writer.BinPersId();
  }
  writer.Appends();
  return writer.Finish();
}

TEST(LayOutLegacy, MakesWhatItsReaderReads) {
  const float low[] = {1, 2, 3};
  const float high[] = {4, 5, 6};
  for (int protocol = 2; protocol <= 5; ++protocol) {
    SCOPED_TRACE(protocol);
    const auto layout =
        LayOutLegacy(PickleOf({"9", "10"}, protocol),
                     {{"9", 12, 4, reinterpret_cast<const std::byte*>(low)},
                      {"10", 12, 4, reinterpret_cast<const std::byte*>(high)}},
                     protocol);
    ASSERT_TRUE(layout.ok()) << layout.status().message();
    const std::string file = Assemble(**layout);
    ASSERT_TRUE(torch::IsLegacy(std::as_bytes(std::span(file))));
    OpenOptions options;
    options.check_frames = true;
    const auto reader = torch::OpenLegacy(
        MakeMemorySource(std::as_bytes(std::span<const char>(file)), "memory"),
        options);
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    const auto& storages = (*reader)->index().storages;
    ASSERT_EQ(storages.size(), 2u);
    // Keys are sorted as strings: "10" comes before "9".
    EXPECT_LT(storages[1].offset, storages[0].offset);
    EXPECT_EQ(std::memcmp(&file[storages[0].offset], low, 12), 0);
    EXPECT_EQ(std::memcmp(&file[storages[1].offset], high, 12), 0);
    EXPECT_EQ(storages[0].frame_end, file.size());
  }
}

TEST(LayOutLegacy, RefusesWhatTheContainerCannotHold) {
  const std::byte bytes[4] = {};
  EXPECT_EQ(LayOutLegacy("", {}, 1).status().message(),
            "pickle protocol: expected 2 to 5, found 1");
  EXPECT_EQ(LayOutLegacy("", {{"a", 3, 4, bytes}}).status().message(),
            "storage 'a' of 3 bytes is not of whole elements "
            "of 4");
  EXPECT_EQ(LayOutLegacy("", {{"a", 3, 0, bytes}}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(
      LayOutLegacy("", {{"a", 4, 4, bytes}, {"b"}, {"a"}}).status().message(),
      "storage 'a' stands twice");
}

}  // namespace
}  // namespace haulway
