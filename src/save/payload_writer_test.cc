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
#include "haulway/layout.h"

namespace haulway {
namespace {

// A layout with a CRC-32 before each payload, between a head and a tail that
// repeats all CRC-32s. If it `encodes`, payloads are stored with inverted bits.
class Inverted : public Layout {
 public:
  Inverted(std::vector<std::string> payloads, bool encodes)
      : bytes_(std::move(payloads)), encodes_(encodes) {
    frames_.push_back({0, head_.size()});
    uint64_t at = head_.size();
    for (const std::string& payload : bytes_) {
      frames_.push_back({at, 4, Needs::kPayload, payloads_.size()});
      payloads_.push_back({at + 4, payload.size(),
                           reinterpret_cast<const std::byte*>(payload.data())});
      at += 4 + payload.size();
    }
    frames_.push_back({at, 4 * bytes_.size(), Needs::kAll});
    size_ = frames_.back().end();
  }
  // Keeps the bytes, but reads them from sources.
  void PullAll() {
    for (size_t i = 0; i < payloads_.size(); ++i) {
      sources_.push_back(
          MakeMemorySource({payloads_[i].bytes, payloads_[i].length}));
      payloads_[i].bytes = nullptr;
      payloads_[i].source = sources_.back().get();
    }
  }

  uint64_t size() const override { return size_; }
  std::span<const Payload> payloads() const override { return payloads_; }
  std::span<const Frame> frames() const override { return frames_; }
  Digesting digesting() const override { return Digesting::kInOrder; }
  Status EncodeFrame(size_t frame, const Digests& digests,
                     std::span<std::byte> out) const override {
    std::vector<std::byte> bytes;
    const auto add = [&](std::span<const std::byte> more) {
      bytes.insert(bytes.end(), more.begin(), more.end());
    };
    switch (frames_[frame].needs) {
      case Needs::kNothing:
        add(std::as_bytes(std::span(head_)));
        break;
      case Needs::kPayload:
        add(digests.of[frames_[frame].payload]);
        break;
      case Needs::kAll:
        for (const auto& digest : digests.of) add(digest);
    }
    EXPECT_EQ(bytes.size(), out.size());
    std::ranges::copy(bytes, out.begin());
    return Status();
  }
  std::unique_ptr<PayloadEncoder> Start(size_t) const override {
    ++started;
    return std::make_unique<Encoder>(encodes_, &digested);
  }

  std::string Expected() const {
    std::string file = head_;
    std::string tail;
    for (const std::string& payload : bytes_) {
      const uint32_t crc = Crc32(0, std::as_bytes(std::span(payload)));
      const std::string text(reinterpret_cast<const char*>(&crc), sizeof(crc));
      file += text;
      tail += text;
      const size_t begin = file.size();
      file += payload;
      for (size_t i = begin; encodes_ && i < file.size(); ++i) {
        file[i] = static_cast<char>(~file[i]);
      }
    }
    return file + tail;
  }

  mutable std::atomic<uint64_t> started = 0;   // Number of encoders.
  mutable std::atomic<uint64_t> digested = 0;  // Number of bytes.

 protected:
  std::vector<Payload> payloads_;
  std::vector<Frame> frames_;

 private:
  class Encoder : public PayloadEncoder {
   public:
    Encoder(bool encodes, std::atomic<uint64_t>* digested)
        : encodes_(encodes), digested_(*digested) {}
    uint64_t unit_bytes() const override { return encodes_ ? 3 : 0; }
    void Digest(std::span<const std::byte> piece) override {
      crc32_ = Crc32(crc32_, piece);
      digested_ += piece.size();
    }
    void Encode(std::span<const std::byte> piece,
                std::span<std::byte> out) override {
      EXPECT_EQ(piece.size(), out.size());
      EXPECT_FALSE(ended_) << "a piece follows one that was no whole unit";
      ended_ = piece.size() % 3 != 0;
      for (size_t i = 0; i < piece.size(); ++i) out[i] = ~piece[i];
    }
    std::vector<std::byte> Finish() override {
      const auto bytes = std::as_bytes(std::span(&crc32_, 1));
      return {bytes.begin(), bytes.end()};
    }

   private:
    const bool encodes_;
    std::atomic<uint64_t>& digested_;
    uint32_t crc32_ = 0;
    bool ended_ = false;
  };

  const std::string head_ = "head";
  const std::vector<std::string> bytes_;
  const bool encodes_;
  std::vector<std::shared_ptr<const ByteSource>> sources_;
  uint64_t size_ = 0;
};

Inverted Many(bool encodes = true) {
  std::vector<std::string> payloads = {"abc", "", std::string(3 << 20, 'x'),
                                       "y", std::string(300000, 'z')};
  for (int i = 0; i < 40; ++i) payloads.emplace_back(90'000 + 7 * i, 'a' + i);
  return Inverted(std::move(payloads), encodes);
}

TEST(PayloadWriter, WritesHeadersThatAreKnownLast) {
  const Inverted layout = Many();
  for (const int threads : {1, 4}) {
    std::string file;
    const auto sink = MakeMemorySink(&file);
    const auto stats = Write(layout, *sink, {.threads = threads});
    ASSERT_TRUE(stats.ok()) << stats.status().message();
    EXPECT_EQ(file, layout.Expected());
    EXPECT_EQ(stats->bytes, file.size());
  }
}

TEST(PayloadWriter, WritesToADisk) {
  std::string pattern = ::testing::TempDir() + "haulway-records-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(pattern.data());
  for (const bool encodes : {true, false}) {
    const Inverted layout = Many(encodes);
    for (const bool direct : {false, true}) {
      for (const int threads : {1, 4}) {
        const auto sink = *OpenFileSink(folder / "f", {.direct = direct});
        const auto stats = Write(layout, *sink, {.threads = threads});
        ASSERT_TRUE(stats.ok()) << stats.status().message();
        std::ifstream in(folder / "f", std::ios::binary);
        const std::string bytes(std::istreambuf_iterator<char>(in), {});
        EXPECT_TRUE(bytes == layout.Expected());
      }
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(PayloadWriter, WritesInOrderWhereTheSinkWantsIt) {
  for (const bool encodes : {true, false}) {
    const Inverted layout = Many(encodes);
    std::string file;
    const auto sink = MakeFunctionSink([&](std::span<const std::byte> bytes) {
      file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return Status();
    });
    const auto stats = Write(layout, *sink);
    ASSERT_TRUE(stats.ok()) << stats.status().message();
    EXPECT_EQ(file, layout.Expected());
    uint64_t bytes = 0;
    for (const Payload& payload : layout.payloads()) bytes += payload.length;
    EXPECT_EQ(layout.digested, encodes ? 2 * bytes : bytes);
    const size_t payloads = layout.payloads().size();
    EXPECT_EQ(layout.started, encodes ? 2 * payloads : payloads);
  }
}

// An empty payload may have any offset.
TEST(PayloadWriter, WritesInOrderWhereFramesStandApart) {
  class Apart : public Inverted {
   public:
    Apart() : Inverted({"", "abc", "", "defg"}, /*encodes=*/false) {
      uint64_t at = 20 + 3;  // With a hole before them.
      for (size_t i = 0; i < 4; ++i) {
        frames_[i + 1].offset = 4 + 4 * i;
        payloads_[i].offset = at;
        at += payloads_[i].length;
      }
      frames_.back().offset = at;
    }
    uint64_t size() const override { return frames_.back().end(); }
  };
  const Apart layout;
  for (const bool ordered : {true, false}) {
    std::string file;
    const auto ordered_sink =
        MakeFunctionSink([&](std::span<const std::byte> bytes) {
          file.append(reinterpret_cast<const char*>(bytes.data()),
                      bytes.size());
          return Status();
        });
    const auto memory = MakeMemorySink(&file);
    const auto stats = Write(layout, ordered ? *ordered_sink : *memory);
    ASSERT_TRUE(stats.ok()) << stats.status().message();
    EXPECT_EQ(file.substr(0, 4), "head");
    EXPECT_EQ(file.substr(20, 10), std::string(3, '\0') + "abcdefg");
    EXPECT_EQ(file.substr(30), file.substr(4, 16));
  }
}

TEST(PayloadWriter, PayloadsOfSourcesAreReadAsTheyAreWritten) {
  for (const bool encodes : {true, false}) {
    Inverted layout = Many(encodes);
    const std::string expected = layout.Expected();
    layout.PullAll();
    for (const int threads : {1, 4}) {
      std::string file;
      const auto sink = MakeMemorySink(&file);
      const auto stats = Write(layout, *sink, {.threads = threads});
      ASSERT_TRUE(stats.ok()) << stats.status().message();
      EXPECT_TRUE(file == expected);
    }
    std::string file;
    const auto sink = MakeFunctionSink([&](std::span<const std::byte> bytes) {
      file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return Status();
    });
    ASSERT_TRUE(Write(layout, *sink).ok());
    EXPECT_TRUE(file == expected);
  }
}

// A sink in memory that detects two threads writing at once.
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

TEST(PayloadWriter, TakesTurnsWhereTheSinkWantsIt) {
  std::vector<std::string> payloads;
  for (int i = 0; i < 12; ++i) payloads.emplace_back(5'000'001 + i, 'a' + i);
  for (const bool encodes : {true, false}) {
    const Inverted layout(payloads, encodes);
    for (const int threads : {1, 4}) {
      SinkInTurn sink;
      const auto stats = Write(layout, sink, {.threads = threads});
      ASSERT_TRUE(stats.ok()) << stats.status().message();
      EXPECT_TRUE(sink.file == layout.Expected());
      EXPECT_EQ(stats->encode_seconds > 0, encodes);
    }
  }
}

TEST(PayloadWriter, TellsProgressAndStopsWhenAsked) {
  const Inverted layout = Many();
  std::string file;
  uint64_t last = 0;
  const auto sink = MakeMemorySink(&file);
  ASSERT_TRUE(Write(layout, *sink,
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
  EXPECT_EQ(Write(layout, *stopped, {.cancel = &cancel}).status().code(),
            Code::kCancelled);
  EXPECT_TRUE(nothing.empty());
}

TEST(PayloadWriter, PassesOnWhatTheSinkSays) {
  const auto sink = MakeFunctionSink(
      [](std::span<const std::byte>) {
        return Status(Code::kIoError, "disk is full");
      },
      "full");
  const Status status = Write(Many(), *sink).status();
  EXPECT_EQ(status.code(), Code::kIoError);
  EXPECT_EQ(status.message(), "disk is full; of full");
}

}  // namespace
}  // namespace haulway
