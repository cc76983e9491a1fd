// Small valid files, truncated at every byte and with every bit flipped.

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/load.h"
#include "haulway/verify.h"
#include "testing/test_sources.h"

namespace haulway {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns names, types, shapes and bytes of all tensors, or the error.
Result<std::string> Content(const std::string& bytes, IoMode io,
                            Strictness strictness) {
  OpenOptions options;
  options.strictness = strictness;
  HAULWAY_ASSIGN(const auto checkpoint,
                 Checkpoint::Open(test::InMemory(bytes), options));
  std::vector<uint32_t> rows(checkpoint->index().storages.size());
  std::iota(rows.begin(), rows.end(), 0);
  HAULWAY_ASSIGN(const LoadedStorages loaded,
                 LoadStorages(*checkpoint, rows,
                              {.threads = 1, .io = io, .verify = true}));
  std::string content;
  for (const Entry& entry : checkpoint->entries()) {
    const TensorInfo& tensor = checkpoint->index().tensors[entry.tensor];
    content += entry.name;
    content += Name(tensor.dtype);
    for (const int64_t size : tensor.shape) content += std::to_string(size);
    if (tensor.storage == kNoStorage) continue;
    std::vector<std::byte> out(tensor.nbytes);
    HAULWAY_TRY(checkpoint->Read(tensor, out));
    content.append(reinterpret_cast<const char*>(out.data()), out.size());
    const Buffer& buffer = loaded.buffers[tensor.storage];
    content.append(reinterpret_cast<const char*>(buffer.data()), buffer.size());
  }
  return content;
}

class Hostile : public testing::TestWithParam<const char*> {
 protected:
  // The CRC-32s of the zip container detect every flip in a payload or pickle.
  bool has_checksums() const {
    return std::string(GetParam()).find("legacy") == std::string::npos;
  }
  const std::string good_ =
      ReadFile(std::string(HAULWAY_TESTDATA "/") + GetParam());
};

TEST_P(Hostile, GoodFileLoadsTheSameWayByViewAndByRead) {
  const auto viewed = Content(good_, IoMode::kMmap, Strictness::kStrict);
  const auto read = Content(good_, IoMode::kPread, Strictness::kStrict);
  ASSERT_TRUE(viewed.ok()) << viewed.status().message();
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*viewed, *read);
  EXPECT_EQ(*Content(good_, IoMode::kPread, Strictness::kLenient), *read);
}

TEST_P(Hostile, IsRefusedWhenCutAnywhere) {
  for (size_t length = 0; length < good_.size(); ++length) {
    const std::string cut = good_.substr(0, length);
    const auto content = Content(cut, IoMode::kPread, Strictness::kStrict);
    EXPECT_FALSE(content.ok()) << "cut to " << length << " bytes";
    (void)Content(cut, IoMode::kMmap, Strictness::kLenient).status();
    (void)Verify(test::InMemory(cut)).status();
    (void)Scan(test::InMemory(cut)).status();
  }
}

TEST_P(Hostile, AFlippedBitIsSeenOrHarmless) {
  const auto expected = Content(good_, IoMode::kPread, Strictness::kStrict);
  ASSERT_TRUE(expected.ok());
  for (size_t byte = 0; byte < good_.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = good_;
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << bit));
      const auto content =
          Content(flipped, IoMode::kPread, Strictness::kStrict);
      if (content.ok() && has_checksums()) {
        EXPECT_EQ(*content, *expected) << "bit " << bit << " of byte " << byte;
      }
      (void)Content(flipped, IoMode::kMmap, Strictness::kLenient).status();
      if (bit == static_cast<int>(byte % 8)) {
        (void)Verify(test::InMemory(flipped)).status();
        (void)Scan(test::InMemory(flipped)).status();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Hostile,
                         testing::Values("must_fail/good.pt",
                                         "must_fail/good_legacy.pt",
                                         "golden/tied.pt",
                                         "golden/tied_legacy.pt"));

}  // namespace
}  // namespace haulway
