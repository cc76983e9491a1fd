#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "haulway/record_layout.h"

namespace haulway {
namespace {

// Records of a CRC-32 and a payload whose bits are inverted, if it `encodes`.
class Inverted : public RecordLayout {
 public:
  Inverted(std::vector<std::string> payloads, bool encodes)
      : payloads_(std::move(payloads)), encodes_(encodes) {
    uint64_t at = head_.size();
    for (const std::string& payload : payloads_) {
      records_.push_back({at, at + 4, payload.size(),
                          reinterpret_cast<const std::byte*>(payload.data())});
      at += 4 + payload.size();
    }
    fixed_ = {{0, std::as_bytes(std::span(head_))},
              {at, std::as_bytes(std::span(tail_))}};
    size_ = at + tail_.size();
  }

  uint64_t size() const override { return size_; }
  std::span<const FileRecord> records() const override { return records_; }
  std::span<const FixedBytes> fixed() const override { return fixed_; }
  std::unique_ptr<RecordEncoder> Start(size_t) const override {
    return std::make_unique<Encoder>(encodes_);
  }

  std::string Expected() const {
    std::string file = head_;
    for (const std::string& payload : payloads_) {
      const uint32_t crc = Crc32(0, std::as_bytes(std::span(payload)));
      file.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
      for (const char c : payload) {
        file += encodes_ ? static_cast<char>(~c) : c;
      }
    }
    return file + tail_;
  }

 private:
  class Encoder : public RecordEncoder {
   public:
    explicit Encoder(bool encodes) : encodes_(encodes) {}
    uint64_t unit_bytes() const override { return encodes_ ? 3 : 0; }
    void Digest(std::span<const std::byte> piece) override {
      crc32_ = Crc32(crc32_, piece);
    }
    void Encode(std::span<const std::byte> piece,
                std::span<std::byte> out) override {
      EXPECT_EQ(piece.size(), out.size());
      EXPECT_FALSE(ended_) << "a piece follows one that was no whole unit";
      ended_ = piece.size() % 3 != 0;
      for (size_t i = 0; i < piece.size(); ++i) out[i] = ~piece[i];
    }
    void Finish(std::span<std::byte> out) override {
      ASSERT_EQ(out.size(), sizeof(crc32_));
      std::memcpy(out.data(), &crc32_, sizeof(crc32_));
    }

   private:
    const bool encodes_;
    uint32_t crc32_ = 0;
    bool ended_ = false;
  };

  const std::string head_ = "head";
  const std::string tail_ = "tail";
  const std::vector<std::string> payloads_;
  const bool encodes_;
  std::vector<FileRecord> records_;
  std::vector<FixedBytes> fixed_;
  uint64_t size_ = 0;
};

Inverted Layout(bool encodes = true) {
  std::vector<std::string> payloads = {"abc", "", std::string(3 << 20, 'x'),
                                       "y", std::string(300000, 'z')};
  for (int i = 0; i < 40; ++i) payloads.emplace_back(90'000 + 7 * i, 'a' + i);
  return Inverted(std::move(payloads), encodes);
}

TEST(RecordWriter, WritesHeadersThatAreKnownLast) {
  const Inverted layout = Layout();
  for (const int threads : {1, 4}) {
    std::string file;
    const auto sink = MakeMemorySink(&file);
    const auto stats = WriteRecords(layout, *sink, {.threads = threads});
    ASSERT_TRUE(stats.ok()) << stats.status().message();
    EXPECT_EQ(file, layout.Expected());
    EXPECT_EQ(stats->bytes, file.size());
  }
}

TEST(RecordWriter, WritesToADisk) {
  std::string pattern = ::testing::TempDir() + "haulway-records-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(pattern.data());
  for (const bool encodes : {true, false}) {
    const Inverted layout = Layout(encodes);
    for (const bool direct : {false, true}) {
      for (const int threads : {1, 4}) {
        const auto sink = *OpenFileSink(folder / "f", {.direct = direct});
        const auto stats = WriteRecords(layout, *sink, {.threads = threads});
        ASSERT_TRUE(stats.ok()) << stats.status().message();
        std::ifstream in(folder / "f", std::ios::binary);
        const std::string bytes(std::istreambuf_iterator<char>(in), {});
        EXPECT_TRUE(bytes == layout.Expected());
      }
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(RecordWriter, WritesInOrderWhereTheSinkWantsIt) {
  const Inverted layout = Layout();
  std::string file;
  const auto sink = MakeFunctionSink([&](std::span<const std::byte> bytes) {
    file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return Status();
  });
  const auto stats = WriteRecords(layout, *sink);
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  EXPECT_EQ(file, layout.Expected());
}

// An empty record may be said to lie anywhere, here behind the last.
TEST(RecordWriter, WritesInOrderWhereHeadersStandApart) {
  class Apart : public Inverted {
   public:
    Apart() : Inverted({"", "abc", "", "defg"}, /*encodes=*/false) {
      for (size_t i = 0; i < 4; ++i) {
        const FileRecord& record = Inverted::records()[i];
        const bool is_empty = record.payload_bytes == 0;
        apart_.push_back({4 + 4 * i, is_empty ? 31 : payloads_at_,
                          record.payload_bytes, record.bytes, 4});
        payloads_at_ += record.payload_bytes;
      }
    }
    std::span<const FileRecord> records() const override { return apart_; }

   private:
    uint64_t payloads_at_ = 20;
    std::vector<FileRecord> apart_;
  };
  const Apart layout;
  ASSERT_EQ(layout.size(), 31);
  std::string file;
  const auto sink = MakeFunctionSink([&](std::span<const std::byte> bytes) {
    file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return Status();
  });
  const auto stats = WriteRecords(layout, *sink);
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  EXPECT_EQ(file.size(), 31);
  EXPECT_EQ(file.substr(0, 4), "head");
  EXPECT_EQ(file.substr(20), "abcdefgtail");
}

// A sink in memory that says so if two threads write to it at once.
class SinkInTurn : public ByteSink {
 public:
  using ByteSink::WriteAt;
  std::string_view name() const override { return "in turn"; }
  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    file.resize(*size);
    return SinkTraits{.in_turn = true};
  }
  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    EXPECT_FALSE(writes_.exchange(true));
    for (const auto part : parts) {
      std::memcpy(file.data() + offset, part.data(), part.size());
      offset += part.size();
    }
    writes_ = false;
    return Status();
  }
  Status Commit(uint64_t) override { return Status(); }

  std::string file;

 private:
  std::atomic<bool> writes_ = false;
};

TEST(RecordWriter, TakesTurnsWhereTheSinkWantsIt) {
  std::vector<std::string> payloads;
  for (int i = 0; i < 12; ++i) payloads.emplace_back(5'000'001 + i, 'a' + i);
  for (const bool encodes : {true, false}) {
    const Inverted layout(payloads, encodes);
    for (const int threads : {1, 4}) {
      SinkInTurn sink;
      const auto stats = WriteRecords(layout, sink, {.threads = threads});
      ASSERT_TRUE(stats.ok()) << stats.status().message();
      EXPECT_TRUE(sink.file == layout.Expected());
      EXPECT_EQ(stats->encode_seconds > 0, encodes);
    }
  }
}

TEST(RecordWriter, TellsProgressAndStopsWhenAsked) {
  const Inverted layout = Layout();
  std::string file;
  uint64_t last = 0;
  const auto sink = MakeMemorySink(&file);
  ASSERT_TRUE(WriteRecords(layout, *sink,
                           {.progress =
                                [&](uint64_t done, uint64_t) {
                                  EXPECT_GE(done, last);
                                  last = done;
                                }})
                  .ok());
  EXPECT_GT(last, uint64_t{3} << 20);
  std::atomic<bool> cancel = true;
  std::string nothing;
  const auto stopped = MakeMemorySink(&nothing);
  EXPECT_EQ(WriteRecords(layout, *stopped, {.cancel = &cancel}).status().code(),
            Code::kCancelled);
  EXPECT_TRUE(nothing.empty());
}

TEST(RecordWriter, PassesOnWhatTheSinkSays) {
  const auto sink = MakeFunctionSink(
      [](std::span<const std::byte>) {
        return Status(Code::kIoError, "disk is full");
      },
      "full");
  const Status status = WriteRecords(Layout(), *sink).status();
  EXPECT_EQ(status.code(), Code::kIoError);
  EXPECT_EQ(status.message(), "disk is full; of full");
}

}  // namespace
}  // namespace haulway
