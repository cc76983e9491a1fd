#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>

#include "haulway/items.h"

namespace haulway {
namespace {

std::vector<std::byte> SampleEnvelope() {
  const std::string_view body = "the body";
  const std::string_view inlined = "inlined";
  Envelope envelope;
  envelope.span = 4711;
  envelope.body = std::as_bytes(std::span(body));
  envelope.parts = {{{{3, 9}, 640, 5000}, EnvelopePart::kBytes},
                    {{{}, 2, 5}, EnvelopePart::kInline}};
  std::vector<std::byte> bytes;
  AppendEnvelopeHead(envelope, &bytes);
  for (const std::string_view text : {body, inlined}) {
    const auto part = std::as_bytes(std::span(text));
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

TEST(Envelope, ReadsBackWhatWasWritten) {
  const auto bytes = SampleEnvelope();
  const Envelope envelope = ParseEnvelope(bytes).value();
  EXPECT_EQ(envelope.kind, EnvelopeKind::kPickle);
  EXPECT_EQ(envelope.span, 4711u);
  ASSERT_EQ(envelope.parts.size(), 2u);
  EXPECT_EQ(envelope.parts[0].range.unit, (UnitRef{3, 9}));
  EXPECT_EQ(envelope.parts[0].range.offset, 640u);
  EXPECT_EQ(envelope.parts[0].range.bytes, 5000u);
  EXPECT_FALSE(envelope.parts[0].is_inline());
  EXPECT_TRUE(envelope.parts[1].is_inline());
  EXPECT_EQ(envelope.body.size(), 8u);
  EXPECT_EQ(envelope.inlined.size(), 7u);
}

TEST(Envelope, HasALayoutThatDoesNotChange) {
  Envelope envelope;
  envelope.span = 0x0102;
  envelope.parts = {{{{1, 2}, 64, 10}, EnvelopePart::kByteArray}};
  std::vector<std::byte> bytes;
  AppendEnvelopeHead(envelope, &bytes);
  const std::string expected(
      "HWEV\1\0\1\0\2\1\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
      "\x40\0\0\0\0\0\0\0\x0a\0\0\0\0\0\0\0\1\0\0\0\2\0\0\0\4\0\0\0\0\0\0\0",
      64);
  EXPECT_EQ(
      std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
      expected);
}

TEST(Envelope, RejectsTruncationBeforeItsBodyEnds) {
  const auto bytes = SampleEnvelope();
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(ParseEnvelope(std::span(bytes).first(length)).ok()) << length;
  }
}

TEST(Envelope, SurvivesRandomBytes) {
  const auto whole = SampleEnvelope();
  std::mt19937 random(1);
  for (int round = 0; round < 20'000; ++round) {
    auto bytes = whole;
    for (int i = 0; i < 3; ++i) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    const auto envelope = ParseEnvelope(bytes);
    if (!envelope.ok()) continue;
    for (const EnvelopePart& part : envelope->parts) {
      if (!part.is_inline()) continue;
      EXPECT_LE(part.range.offset + part.range.bytes, envelope->inlined.size());
    }
  }
}

}  // namespace
}  // namespace haulway
