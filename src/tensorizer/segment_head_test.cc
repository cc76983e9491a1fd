// The layout section of version 2 and the notes: for each rule a file that
// breaks it, truncation at every byte, every bit flipped, and reading.

#include "tensorizer/segment_head.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "haulway/options.h"
#include "tensorizer/segment_notes.h"
#include "tensorizer/segment_place.h"
#include "tensorizer/segment_writer.h"
#include "tensorizer/tensorizer_reader.h"
#include "testing/segments_for_test.h"
#include "testing/shorthands.h"
#include "testing/test_sources.h"

namespace haulway::tensorizer {
namespace {

using haulway::test::Assemble;
using haulway::test::FixedTensor;

std::string SmallFile() {
  TensorizerOptions options;
  options.layout = TensorizerLayout::kSegments;
  options.room_for = 0;
  options.metadata = {{"k", "v"}, {"l", ""}};
  const std::vector<TensorizerInput> tensors = {FixedTensor("a", 5),
                                                FixedTensor("b", 11)};
  const auto layout = LayOutTensorizer(tensors, options);
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  return Assemble(**layout);
}

Result<std::unique_ptr<const Reader>> Open(const std::string& file,
                                           const OpenOptions& options = {}) {
  return Reader::Open(MakeMemorySource(haulway::test::BytesOf(file)), options);
}

SegmentHead HeadOf(const std::string& file) {
  const auto head = ParseSegmentHead(haulway::test::BytesOf(file), file.size());
  EXPECT_TRUE(head.ok()) << head.status().message();
  return *head;
}

// Returns the file with another head and a matching checksum.
std::string WithHead(std::string file, const SegmentHead& head) {
  const auto section =
      EncodeSegmentHead(head, haulway::test::BytesOf(file).subspan(0, 65));
  std::memset(file.data() + 65, 0, 512 - 65);
  std::memcpy(file.data() + 65, section.data(), section.size());
  return file;
}

TEST(SegmentHead, IsEncodedAsItWasRead) {
  SegmentHead head = HeadOf(SmallFile());
  EXPECT_TRUE(head.notes.has_value());
  head.data_file = std::string(kMaxDataFileName, 'x');
  head.data.start = 0;
  std::string file = SmallFile();
  EXPECT_EQ(HeadOf(WithHead(file, head)), head);
  // The longest possible head fits one sector.
  head.growth = {4096, 4096, file.size()};
  EXPECT_LE(65 + EncodeSegmentHead(head, {}).size(), kSegmentHeadBytes);
}

struct Rule {
  std::string_view message;
  Code code;
  std::function<void(SegmentHead*)> break_it;
};

TEST(SegmentHead, EachRuleHasAHeadThatBreaksIt) {
  const std::string file = SmallFile();
  const Rule rules[] = {
      {"block of 100 bytes", Code::kCorrupt,
       [](SegmentHead* h) { h->block_bytes = 100; }},
      {"block of 0 bytes", Code::kCorrupt,
       [](SegmentHead* h) { h->block_bytes = 0; }},
      {"index segment has wrong bounds", Code::kCorrupt,
       [](SegmentHead* h) { h->index.start += 1; }},
      {"index segment has wrong bounds", Code::kCorrupt,
       [](SegmentHead* h) { h->index.start = 0; }},
      {"index segment has wrong bounds", Code::kCorrupt,
       [](SegmentHead* h) { h->index.data_length = 4097; }},
      {"index segment has wrong bounds", Code::kCorrupt,
       [](SegmentHead* h) { h->index.end = 0; }},
      {"index segment ends past the file", Code::kTruncated,
       [](SegmentHead* h) {
         h->index.start = h->index.end = uint64_t{1} << 40;
         h->index.data_length = 0;
       }},
      {"headers segment has wrong bounds", Code::kCorrupt,
       [](SegmentHead* h) { h->headers.data_length = UINT64_MAX; }},
      {"segments overlap", Code::kCorrupt,
       [](SegmentHead* h) { h->headers = h->index; }},
      {"segments overlap", Code::kCorrupt,
       [](SegmentHead* h) { h->notes = h->headers; }},
      {"data segment has wrong bounds", Code::kCorrupt,
       [](SegmentHead* h) { h->data.start = 0; }},
      {"data segment has wrong bounds", Code::kCorrupt,
       [](SegmentHead* h) { h->data.data_length = UINT64_MAX; }},
      {"data segment ends past the file", Code::kTruncated,
       [](SegmentHead* h) { h->data.end += 1; }},
      {"length of the data segment is wrong", Code::kCorrupt,
       [](SegmentHead* h) { h->data.data_length += 1; }},
      {"runs past its segment", Code::kCorrupt,
       [](SegmentHead* h) { h->data.data_length -= 1; }},
      {"overlap or run past their segment", Code::kCorrupt,
       [](SegmentHead* h) { h->headers.data_length = 90; }},
      {"data lies within another segment", Code::kCorrupt,
       [](SegmentHead* h) { h->notes->end += 4096; }},
      {"checksum is wrong", Code::kMismatch,
       [](SegmentHead* h) { h->index.crc32 ^= 1; }},
      {"checksum is wrong", Code::kMismatch,
       [](SegmentHead* h) { h->notes->crc32 ^= 1; }},
      {"checksum is wrong", Code::kMismatch,
       [](SegmentHead* h) { h->index.data_length -= 1; }},
      {"blocks to insert are out of range", Code::kCorrupt,
       [](SegmentHead* h) {
         h->growth = {0, 4096, 1};
       }},
      {"blocks to insert are out of range", Code::kCorrupt,
       [](SegmentHead* h) {
         h->growth = {4096, UINT64_MAX, 8192};
       }},
      {"blocks to insert are out of range", Code::kCorrupt,
       [](SegmentHead* h) {
         h->growth = {h->data.start + 1, 1, 1 << 30};
       }},
      {"was growing has a wrong size", Code::kTruncated,
       [](SegmentHead* h) {
         h->growth = {4096, 4096, 1 << 20};
       }},
      {"was growing has a wrong size", Code::kCorrupt,
       [](SegmentHead* h) {
         h->growth = {4096, 4096, 8192};
       }},
      {"no files lie beside", Code::kUnsupported,
       [](SegmentHead* h) { h->data_file = "x"; }},
  };
  for (const Rule& rule : rules) {
    SegmentHead head = HeadOf(file);
    rule.break_it(&head);
    const std::string broken = WithHead(file, head);
    for (const Strictness strictness :
         {Strictness::kStrict, Strictness::kLenient}) {
      OpenOptions options;
      options.strictness = strictness;
      const Status status = Open(broken, options).status();
      EXPECT_EQ(status.code(), rule.code) << rule.message;
      EXPECT_NE(status.message().find(rule.message), std::string::npos)
          << status.message() << "\nexpected: " << rule.message;
    }
  }
}

// Returns the file with entries that no writer writes. `entries` follows the
// section's two counts.
std::string WithEntries(std::string file, int count,
                        const std::string& entries) {
  std::string section = {2, static_cast<char>(count)};
  section += entries;
  const uint64_t length = section.size() + 4;
  std::memset(file.data() + 65, 0, 512 - 65);
  std::memcpy(file.data() + 65, &length, 8);
  std::memcpy(file.data() + 73, section.data(), section.size());
  const size_t at = 73 + section.size();
  const uint32_t crc = Crc32(0, haulway::test::BytesOf(file).subspan(0, at));
  std::memcpy(file.data() + at, &crc, 4);
  return file;
}

TEST(SegmentHead, EntriesOfOtherKinds) {
  const std::string file = SmallFile();
  uint64_t length = 0;
  std::memcpy(&length, file.data() + 65, 8);
  const std::string entries = file.substr(75, length - 2 - 4);
  const int count = file[74];
  const auto code = [&](int more, const std::string& added) {
    const std::string changed =
        WithEntries(file, count + more, entries + added);
    return Open(changed).status().code();
  };
  using std::string_literals::operator""s;
  EXPECT_EQ(code(0, ""), Code::kOk);
  EXPECT_EQ(code(1, "\x88\3\0abc"s), Code::kOk);  // Optional: skipped.
  EXPECT_EQ(code(1, "\x08\3\0abc"s), Code::kUnsupported);
  EXPECT_EQ(code(1, "\x07\4\0\0\x10\0\0"s), Code::kCorrupt);  // Twice.
  EXPECT_EQ(code(1, "\x05\0\0"s), Code::kCorrupt);            // No name.
  EXPECT_EQ(code(1, "\x05\1\0\xFF"s), Code::kCorrupt);
  EXPECT_EQ(code(1, "\x06\1\0x"s), Code::kCorrupt);
  EXPECT_EQ(code(1, "\x88\4\0abc"s), Code::kCorrupt);
  EXPECT_EQ(code(0, "x"), Code::kCorrupt);
  EXPECT_EQ(code(-1, ""), Code::kCorrupt);
  const Status missing =
      Open(WithEntries(file, count - 1, entries.substr(31))).status();
  EXPECT_EQ(missing.code(), Code::kCorrupt);
  EXPECT_NE(missing.message().find("entry 1 is missing"), std::string::npos);
}

TEST(SegmentFile, IsRefusedWhenCutAnywhere) {
  const std::string file = SmallFile();
  for (size_t length = 0; length < file.size(); ++length) {
    const Status status = Open(file.substr(0, length)).status();
    ASSERT_TRUE(status.code() == Code::kTruncated ||
                status.code() == Code::kCorrupt ||
                status.code() == Code::kMismatch)
        << "cut to " << length << ": " << status.message();
  }
}

// Flips every bit except in the data, which digests cover, and in slack.
TEST(SegmentFile, IsRefusedWithAnyBitOfItsMetadataFlipped) {
  const std::string file = SmallFile();
  const SegmentHead head = HeadOf(file);
  const auto refused = [&](uint64_t begin, uint64_t end) {
    for (uint64_t byte = begin; byte < end; ++byte) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string flipped = file;
        flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << bit));
        const auto opened = Open(flipped);
        if (!opened.ok()) continue;
        // The digests and the module in a header are checked with the data.
        bool matches = true;
        for (uint32_t row = 0; row < 2; ++row) {
          const StorageInfo& storage = (*opened)->index().storages[row];
          PayloadChecker checker(*(*opened)->Digests(row, {}, {}));
          checker.Update(haulway::test::BytesOf(flipped).subspan(
              storage.offset, storage.stored_bytes));
          matches = matches && checker.Finish().ok();
        }
        EXPECT_FALSE(matches) << "byte " << byte << " bit " << bit;
      }
    }
  };
  refused(0, kSegmentHeadBytes);
  for (const Segment& segment : {head.index, head.headers, *head.notes}) {
    refused(segment.start, segment.start + segment.data_length);
  }
}

TEST(SegmentFile, MetadataIsCappedBeforeItIsRead) {
  OpenOptions options;
  options.limits.max_directory_bytes = 100;
  EXPECT_EQ(Open(SmallFile(), options).status().code(), Code::kLimit);
}

// Expects three reads: the head, the remaining metadata, and the end mark.
TEST(SegmentFile, HeadersOfThousandsOfTensorsAreReadAtOnce) {
  for (const int count : {10, 500, 4000}) {
    std::vector<TensorizerInput> tensors;
    for (int i = 0; i < count; ++i) {
      tensors.push_back(
          FixedTensor(fmt::format("model.layers.{}.weight", i), 8));
    }
    for (const TensorizerLayout layout :
         {TensorizerLayout::kSegments, TensorizerLayout::kSegmentsPr170}) {
      TensorizerOptions options;
      options.layout = layout;
      options.room_for = layout == TensorizerLayout::kSegments ? 16 : 0;
      const auto laid_out = LayOutTensorizer(tensors, options);
      ASSERT_TRUE(laid_out.ok());
      const auto source =
          std::make_shared<test::CountingSource>(Assemble(**laid_out));
      OpenOptions lenient;
      lenient.strictness = Strictness::kLenient;
      ASSERT_TRUE(Reader::Open(source, lenient).ok());
      EXPECT_LE(source->reads, 2) << count;
      source->reads = 0;
      ASSERT_TRUE(Reader::Open(source, {}).ok());
      EXPECT_LE(source->reads, 3) << count;
    }
  }
}

TEST(SegmentNotes, AreRefusedWhenTheyAreNot) {
  const auto encoded = EncodeNotes({{"key", "value"}, {"k", ""}});
  ASSERT_TRUE(encoded.ok());
  const ParseLimits limits;
  ASSERT_TRUE(ParseNotes(*encoded, limits).ok());
  EXPECT_EQ((*ParseNotes(*encoded, limits))[0].second, "value");
  for (size_t length = 0; length < encoded->size(); ++length) {
    EXPECT_FALSE(
        ParseNotes(std::span(*encoded).subspan(0, length), limits).ok());
  }
  std::vector<std::byte> more = *encoded;
  more.push_back({});
  EXPECT_EQ(ParseNotes(more, limits).status().code(), Code::kCorrupt);
  std::vector<std::byte> many(4, std::byte{0xFF});
  EXPECT_EQ(ParseNotes(many, limits).status().code(), Code::kCorrupt);
  ParseLimits few;
  few.max_entries = 1;
  EXPECT_EQ(ParseNotes(*encoded, few).status().code(), Code::kLimit);
  EXPECT_EQ(EncodeNotes({{"k", "1"}, {"k", "2"}}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(EncodeNotes({{std::string(70000, 'k'), "1"}}).status().code(),
            Code::kLimit);
}

TEST(FindPlace, IsTheFirstGapThatIsLargeEnough) {
  const std::vector<Range> taken = {{8, 16}, {0, 8}, {24, 30}, {40, 41}};
  EXPECT_EQ(FindPlace(8, 8, 0, 100, taken), 16u);
  EXPECT_EQ(FindPlace(9, 8, 0, 100, taken), 48u);
  EXPECT_EQ(FindPlace(8, 8, 17, 100, taken), 32u);
  EXPECT_EQ(FindPlace(8, 8, 33, 55, taken), std::nullopt);
  EXPECT_EQ(FindPlace(8, 8, 33, 56, taken), 48u);
  EXPECT_EQ(FindPlace(1, 8, 0, 100, {}), 0u);
}

}  // namespace
}  // namespace haulway::tensorizer
