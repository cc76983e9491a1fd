#include "io/cached_source.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "haulway/options.h"

namespace haulway {
namespace {

namespace fs = std::filesystem;

// A server's object that counts its reads.
class Remote : public ByteSource {
 public:
  Remote(std::vector<std::byte> bytes, std::string version)
      : bytes_(std::move(bytes)), version_(std::move(version)) {}
  std::string_view name() const override { return "remote"; }
  uint64_t size() const override { return bytes_.size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    if (offset > size() || out.size() > size() - offset) {
      return Status(Code::kTruncated, "past the end");
    }
    asked += out.size();
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return Status();
  }
  SourceTraits Look(std::span<const ByteRange>) const override {
    SourceTraits traits;
    traits.remote = true;
    return traits;
  }
  std::optional<RemoteStats> remote_stats() const override {
    RemoteStats stats;
    stats.version = version_;
    return stats;
  }

  mutable uint64_t asked = 0;

 private:
  const std::vector<std::byte> bytes_;
  const std::string version_;
};

std::vector<std::byte> SomeBytes(size_t size) {
  std::vector<std::byte> bytes(size);
  uint32_t value = 1;
  for (std::byte& byte : bytes) {
    value = value * 1664525 + 1013904223;
    byte = static_cast<std::byte>(value >> 24);
  }
  return bytes;
}

class CachedSource : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "haulway-cache-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::shared_ptr<const ByteSource> Open(
      const std::shared_ptr<const ByteSource>& source,
      uint64_t most_bytes = kGiB) const {
    return *MakeCachedSource(source, "key", {folder_, most_bytes});
  }

  std::string folder_;
};

TEST_F(CachedSource, EveryRangeIsReadAsItIsAndAskedForOnce) {
  const auto bytes = SomeBytes(3 * 512 * kKiB + 77);
  const auto remote = std::make_shared<Remote>(bytes, "\"1\"");
  for (const bool is_kept : {false, true}) {
    const auto source = Open(remote);
    const uint64_t before = remote->asked;
    uint32_t value = 7;
    for (int i = 0; i < 300; ++i) {
      value = value * 1664525 + 1013904223;
      const uint64_t offset = (value >> 3) % (bytes.size() + 1);
      value = value * 1664525 + 1013904223;
      const uint64_t length = (value >> 3) % (bytes.size() - offset + 1);
      std::vector<std::byte> out(length), tail(std::min<size_t>(length, 9));
      const ReadRequest requests[] = {{offset, out}, {offset, tail}};
      ASSERT_TRUE(source->ReadMany(requests).ok());
      ASSERT_EQ(std::memcmp(out.data(), bytes.data() + offset, length), 0);
      ASSERT_EQ(std::memcmp(tail.data(), out.data(), tail.size()), 0);
    }
    EXPECT_EQ(remote->asked - before, is_kept ? 0 : bytes.size());
  }
}

TEST_F(CachedSource, ReadsPastTheEndFail) {
  const auto remote = std::make_shared<Remote>(SomeBytes(600'000), "\"1\"");
  std::vector<std::byte> out(10);
  EXPECT_EQ(Open(remote)->ReadAt(599'995, out).code(), Code::kTruncated);
  EXPECT_EQ(Open(remote)->ReadAt(UINT64_MAX, out).code(), Code::kTruncated);
}

TEST_F(CachedSource, AFileThatIsAllOnesIsNoBlock) {
  const auto bytes = SomeBytes(700'000);
  const auto remote = std::make_shared<Remote>(bytes, "\"1\"");
  std::vector<std::byte> out(bytes.size());
  ASSERT_TRUE(Open(remote)->ReadAt(0, out).ok());
  for (const auto& entry : fs::directory_iterator(folder_)) {
    std::ofstream(entry.path(), std::ios::binary)
        << std::string(fs::file_size(entry.path()), '\xff');
  }
  ASSERT_TRUE(Open(remote)->ReadAt(0, out).ok());
  EXPECT_EQ(out, bytes);
  EXPECT_EQ(remote->asked, 2 * bytes.size());
}

TEST_F(CachedSource, WhatHasNoStrongVersionIsNotKept) {
  for (const char* version : {"", "W/\"1\""}) {
    const auto remote = std::make_shared<Remote>(SomeBytes(600'000), version);
    std::vector<std::byte> out(600'000);
    ASSERT_TRUE(Open(remote)->ReadAt(0, out).ok());
    EXPECT_TRUE(fs::is_empty(folder_));
  }
}

TEST_F(CachedSource, MoreThanFitsIsReadAndNotKept) {
  const auto bytes = SomeBytes(4 * kMiB);
  const auto remote = std::make_shared<Remote>(bytes, "\"1\"");
  std::vector<std::byte> out(bytes.size());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(Open(remote, kMiB)->ReadAt(0, out).ok());
    EXPECT_EQ(out, bytes);
  }
  EXPECT_GT(remote->asked, bytes.size() + 2 * kMiB);
}

}  // namespace
}  // namespace haulway
