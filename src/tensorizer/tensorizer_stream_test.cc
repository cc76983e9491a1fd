#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "haulway/tensorizer.h"
#include "testing/layout_bytes.h"

namespace haulway {
namespace {

namespace fs = std::filesystem;
using ::haulway::test::Assemble;

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Tensors of many sizes, in memory that the test reuses once they are written.
class TensorizerStreamTest : public ::testing::Test {
 protected:
  TensorizerStreamTest() {
    std::string pattern = ::testing::TempDir() + "haulway-stream-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    options_.nonce = [](size_t tensor) {
      std::array<std::byte, 24> nonce{};
      nonce[0] = static_cast<std::byte>(tensor);
      nonce[1] = static_cast<std::byte>(tensor >> 8);
      return nonce;
    };
  }
  ~TensorizerStreamTest() override { fs::remove_all(folder_); }

  void AddTensors(size_t count, size_t name_bytes = 5) {
    for (size_t i = 0; i < count; ++i) {
      const uint64_t bytes = i % 3 == 1 ? 0 : 1 + i * 37'501 % 3'000'000;
      bytes_.emplace_back(bytes, static_cast<char>('a' + i % 26));
      TensorizerInput& tensor = tensors_.emplace_back();
      std::string key = std::to_string(i);
      key.insert(0, name_bytes - std::min(name_bytes, key.size()), 'n');
      tensor.path = {{.is_position = false, .position = 0, .key = key}};
      tensor.shape = {bytes};
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].bytes = reinterpret_cast<const std::byte*>(bytes_[i].data());
    }
  }

  std::string Expected() const {
    const auto layout = LayOutTensorizer(tensors_, options_);
    EXPECT_TRUE(layout.ok()) << layout.status().message();
    return Assemble(**layout);
  }

  // Overwrites each tensor's memory as soon as it is written.
  void AppendAll(TensorizerStream& stream, size_t at_once) {
    for (size_t i = 0; i < tensors_.size(); i += at_once) {
      const size_t count = std::min(at_once, tensors_.size() - i);
      ASSERT_TRUE(stream.Append(std::span(tensors_).subspan(i, count)).ok());
      for (size_t j = i; j < i + count; ++j) {
        std::ranges::fill(bytes_[j], '?');
      }
    }
  }

  fs::path folder_;
  std::vector<std::string> bytes_;
  std::vector<TensorizerInput> tensors_;
  TensorizerOptions options_;
};

TEST_F(TensorizerStreamTest, WritesWhatIsWrittenAtOnce) {
  for (const auto layout :
       {TensorizerLayout::kInterleaved, TensorizerLayout::kSegments}) {
    for (const bool encrypted : {false, true}) {
      for (const size_t at_once : {1, 7, 100}) {
        tensors_.clear();
        bytes_.clear();
        AddTensors(40);
        options_.layout = layout;
        options_.alignment = at_once == 7 ? 64 : 1;
        options_.key = encrypted
                           ? Secret(std::vector<std::byte>(32, std::byte{7}))
                           : Secret();
        const std::string expected = Expected();
        auto stream = TensorizerStream::Open(folder_ / "f", options_);
        ASSERT_TRUE(stream.ok()) << stream.status().message();
        AppendAll(**stream, at_once);
        EXPECT_FALSE(fs::exists(folder_ / "f"));
        const auto stats = (*stream)->Commit();
        ASSERT_TRUE(stats.ok()) << stats.status().message();
        EXPECT_EQ(stats->bytes, expected.size());
        EXPECT_TRUE(ReadFile(folder_ / "f") == expected)
            << at_once << encrypted;
        fs::remove(folder_ / "f");
        EXPECT_TRUE(fs::is_empty(folder_));
      }
    }
  }
}

TEST_F(TensorizerStreamTest, TheIndexMayOutgrowItsRoom) {
  AddTensors(120, 4000);
  const std::string expected = Expected();
  auto stream = TensorizerStream::Open(folder_ / "f", options_);
  ASSERT_TRUE(stream.ok());
  AppendAll(**stream, 1);
  ASSERT_TRUE((*stream)->Commit().ok());
  EXPECT_TRUE(ReadFile(folder_ / "f") == expected);
  stream->reset();
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(TensorizerStreamTest, GoesToSinksInOrder) {
  AddTensors(20);
  const std::string expected = Expected();
  std::string file;
  auto stream = TensorizerStream::Open(
      MakeFunctionSink([&](std::span<const std::byte> bytes) {
        file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        return Status();
      }),
      folder_, options_);
  ASSERT_TRUE(stream.ok()) << stream.status().message();
  AppendAll(**stream, 3);
  EXPECT_TRUE(file.empty());
  ASSERT_TRUE((*stream)->Commit().ok());
  EXPECT_TRUE(file == expected);
  stream->reset();
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(TensorizerStreamTest, LeavesNoTraceUnlessItIsCommitted) {
  AddTensors(3);
  {
    auto stream = TensorizerStream::Open(folder_ / "f", options_);
    ASSERT_TRUE(stream.ok());
    AppendAll(**stream, 1);
  }
  EXPECT_TRUE(fs::is_empty(folder_));
  auto stream = TensorizerStream::Open(folder_ / "f", options_);
  ASSERT_TRUE((*stream)->Append(std::span(tensors_).first(1)).ok());
  ASSERT_TRUE((*stream)->Append(std::span(tensors_).first(1)).ok());
  EXPECT_EQ((*stream)->Commit().status().code(), Code::kInvalidArgument);
  EXPECT_EQ((*stream)->Append(tensors_).code(), Code::kInvalidArgument);
  stream->reset();
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace haulway
