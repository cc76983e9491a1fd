// The codecs of tensorizer files on every golden file: facts, digests,
// truncation at every byte, and every bit flipped.

#include "tensorizer/tensorizer_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/cursor.h"
#include "base/digest.h"
#include "tensorizer/tensorizer_crypt_block.h"
#include "tensorizer/tensorizer_name.h"
#include "testing/shorthands.h"
#include "testing/tensorizer_goldens.h"

namespace haulway::tensorizer {
namespace {

using haulway::test::Hex;
using haulway::test::TensorizerFile;
using haulway::test::TensorizerFiles;
using haulway::test::TensorizerGolden;
using haulway::test::TensorizerManifest;
using haulway::test::WithoutIndexSlack;

struct Facts {
  Preamble preamble;
  TensorIndex index;
  std::vector<std::span<const std::byte>> header_bytes;
  std::vector<TensorHeader> headers;
  std::vector<CryptBlock> crypts;
};

// Returns everything that the codecs parse from a file in memory.
Result<Facts> Decode(const std::string& file, const OpenOptions& options = {}) {
  const auto bytes = haulway::test::BytesOf(file);
  Facts facts;
  HAULWAY_ASSIGN(
      facts.preamble,
      ParsePreamble(bytes.subspan(0, std::min(bytes.size(), kPreambleBytes)),
                    bytes.size(), options));
  HAULWAY_ASSIGN(facts.index,
                 ParseIndex(bytes.subspan(facts.preamble.index_offset,
                                          facts.preamble.index_bytes),
                            bytes.size(), options, &facts.preamble));
  for (const IndexEntry& entry : facts.index.entries) {
    HAULWAY_TRY(ParseName(entry.name, options.limits.max_depth).status());
    // In version 2 of the segments, headers may come after the data.
    const uint64_t limit = facts.preamble.segments.has_value()
                               ? facts.preamble.header_end
                               : entry.data_offset;
    if (limit < entry.header_offset + 8) {
      return Status(Code::kCorrupt, "no room for the header");
    }
    const uint64_t length =
        ByteCursor(bytes.subspan(entry.header_offset)).U64();
    if (length > limit - entry.header_offset || length < 8) {
      return Status(Code::kCorrupt, "header is as long as it cannot be");
    }
    facts.header_bytes.push_back(bytes.subspan(entry.header_offset, length));
    HAULWAY_ASSIGN(TensorHeader header,
                   ParseTensorHeader(facts.header_bytes.back(), entry,
                                     facts.preamble, options.strictness));
    facts.headers.push_back(header);
    facts.crypts.emplace_back();
    if (!facts.preamble.encrypted) continue;
    HAULWAY_ASSIGN(
        facts.crypts.back(),
        ParseCryptBlock(header.crypt, entry.data_bytes, options.limits));
  }
  if (!bytes.subspan(facts.index.end_mark).empty() &&
      bytes.size() - facts.index.end_mark >= kEndMarkBytes) {
    return facts;
  }
  return Status(Code::kTruncated, "no end mark");
}

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string file_ = TensorizerFile(GetParam());
};

std::string Line(const Facts& facts, size_t i, const std::string& file) {
  constexpr std::string_view kTypes[] = {"parameter", "buffer", "state dict"};
  const IndexEntry& entry = facts.index.entries[i];
  const TensorHeader& header = facts.headers[i];
  std::string name;
  if (IsStructured(entry.name)) {
    for (const char c : entry.name.substr(1)) {
      name += c;
      if (c == ',') name += ' ';
    }
  } else {
    name = entry.name;
  }
  return fmt::format(
      "{} {} {} {} {} [{}] {} {} {} {} {}", file, name,
      kTypes[static_cast<int>(entry.type)], header.module_index,
      Name(entry.dtype), fmt::join(facts.index.shape(entry), ","),
      entry.header_offset, facts.header_bytes[i].size(), entry.data_offset,
      entry.data_bytes,
      header.crc32.has_value() ? fmt::format("0x{:08x}", *header.crc32) : "-");
}

TEST_P(Golden, HasTheFactsOfItsManifest) {
  const auto facts = Decode(file_);
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  std::vector<std::string> expected;
  for (const TensorizerGolden& line : TensorizerManifest()) {
    if (line.file != GetParam()) continue;
    expected.push_back(fmt::format(
        "{} {} {} {} {} [{}] {} {} {} {} {}", line.file, line.name, line.type,
        line.module, line.dtype, line.shape, line.header_offset,
        line.header_bytes, line.data_offset, line.data_bytes, line.crc32));
  }
  std::vector<std::string> found;
  for (size_t i = 0; i < facts->headers.size(); ++i) {
    found.push_back(Line(*facts, i, GetParam()));
  }
  EXPECT_EQ(found, expected);
}

TEST_P(Golden, HasTheHashesOfItsData) {
  const auto facts = Decode(file_);
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  const bool is_3_0 = GetParam().starts_with("pr170") ||
                      GetParam().starts_with("v3dev") ||
                      GetParam().starts_with("segments");
  const HashRule rule =
      is_3_0 ? HashRule::kWithoutHashes : HashRule::kValuesZeroed;
  EXPECT_TRUE(facts->preamble.hash_rule == rule ||
              facts->preamble.hash_rule == HashRule::kEither);
  for (size_t i = 0; i < facts->headers.size(); ++i) {
    const IndexEntry& entry = facts->index.entries[i];
    const TensorHeader& header = facts->headers[i];
    if (facts->crypts[i].cipher != Cipher::kNone) continue;
    const auto data = haulway::test::BytesOf(file_).subspan(entry.data_offset,
                                                            entry.data_bytes);
    const auto covered = HashedHeader(facts->header_bytes[i], header, rule);
    Sha256 sha256;
    sha256.Update(covered);
    sha256.Update(data);
    EXPECT_EQ(header.sha256, sha256.Finish());
    // The 3.0 branches store 0 where there is no data.
    if (header.crc32.has_value() && *header.crc32 != 0) {
      EXPECT_EQ(*header.crc32, Crc32(Crc32(0, covered), data));
    }
  }
}

TEST_P(Golden, IsTheSameWithoutIndexSlack) {
  const auto full = Decode(file_);
  const auto small = Decode(WithoutIndexSlack(file_));
  ASSERT_TRUE(small.ok()) << small.status().message();
  ASSERT_EQ(small->headers.size(), full->headers.size());
  for (size_t i = 0; i < full->headers.size(); ++i) {
    EXPECT_EQ(small->headers[i].sha256, full->headers[i].sha256);
  }
}

TEST_P(Golden, IsRefusedWhenCutAnywhere) {
  const std::string small = WithoutIndexSlack(file_);
  const auto whole = Decode(small);
  ASSERT_TRUE(whole.ok());
  const size_t end = whole->index.end_mark + kEndMarkBytes;
  for (size_t length = 0; length < end; ++length) {
    const auto facts = Decode(small.substr(0, length));
    ASSERT_FALSE(facts.ok()) << "cut to " << length;
    EXPECT_TRUE(facts.status().code() == Code::kTruncated ||
                facts.status().code() == Code::kCorrupt)
        << facts.status().message();
    EXPECT_FALSE(facts.status().message().empty());
  }
}

TEST_P(Golden, SurvivesFlipsOfEveryBit) {
  const std::string small = WithoutIndexSlack(file_);
  OpenOptions lenient;
  lenient.strictness = Strictness::kLenient;
  for (size_t byte = 0; byte < small.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = small;
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << bit));
      const auto strict = Decode(flipped);
      const auto loose = Decode(flipped, lenient);
      EXPECT_TRUE(!strict.ok() || loose.ok()) << "byte " << byte;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, ::testing::ValuesIn(TensorizerFiles()),
                         [](const auto& info) {
                           return haulway::test::TestName(info.param);
                         });

TEST(TensorizerDetector, TellsTheFormatsNumberedFiveApart) {
  const auto layout = [](std::string_view name) {
    const auto facts = Decode(TensorizerFile(name));
    EXPECT_TRUE(facts.ok()) << facts.status().message();
    return facts->preamble;
  };
  EXPECT_EQ(layout("2.12.0_v5_long").layout, Layout::kInterleaved);
  EXPECT_TRUE(layout("2.12.0_v5_long").tagged);
  EXPECT_EQ(layout("pr199_v5_long").layout, Layout::kInterleaved);
  EXPECT_TRUE(layout("pr199_v5_long").tagged);
  EXPECT_EQ(layout("pr170_key").layout, Layout::kSegments);
  EXPECT_EQ(layout("v3dev_f32").layout, Layout::kHeadersFirst);
  EXPECT_EQ(layout("v3dev_max_tensors").layout, Layout::kHeadersFirst);
  // With one tensor both geometries are the same, so the hashes decide.
  EXPECT_EQ(layout("v3dev_bf16").hash_rule, HashRule::kEither);
}

TEST(TensorizerDetector, TakesUntaggedInterleavedFive) {
  std::string file = TensorizerFile("1.1.0_v1_u8_f32");
  file[5] = 5;
  const auto facts = Decode(file);
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  EXPECT_EQ(facts->preamble.layout, Layout::kInterleaved);
}

// A change to a file, and the expected error.
struct Change {
  size_t byte;
  std::string bytes;
  Code code;
  std::string_view message;
};

void ExpectRefused(std::string_view golden, const Change& change) {
  std::string file = WithoutIndexSlack(TensorizerFile(golden));
  file.replace(change.byte, change.bytes.size(), change.bytes);
  const auto facts = Decode(file);
  ASSERT_FALSE(facts.ok()) << change.message;
  EXPECT_EQ(facts.status().code(), change.code) << facts.status().message();
  EXPECT_NE(facts.status().message().find(change.message), std::string::npos)
      << facts.status().message() << "\nexpected: " << change.message;
}

using std::string_literals::operator""s;

// A version 1 file with an index of 37 bytes: entry at 73, header at 110, its
// hash block at 133, data at 184, end mark at 196.
TEST(TensorizerRules, EachHasAFileThatBreaksIt) {
  const Change changes[] = {
      {0, "X", Code::kCorrupt, "not a tensorizer file"},           // F01
      {5, "\0"s, Code::kUnsupported, "expected 1 to 5, found 0"},  // F02
      {5, "\6", Code::kUnsupported, "expected 1 to 5, found 6"},
      {9, "\1", Code::kCorrupt, "unknown feature flags"},  // F03
      {40, "\1", Code::kCorrupt, "unknown feature flags"},
      {49, "\1", Code::kCorrupt, "unused field"},               // F04
      {41, "\x0D", Code::kCorrupt, "expected 13, found 12"},    // F05
      {57, "\2", Code::kCorrupt, "2 tensors do not fit"},       // F06
      {65, "\xFF", Code::kTruncated, "index needs 255 bytes"},  // I01
      {72, "\xFF", Code::kLimit, "passes max_directory_bytes"},
      {73, "\x30", Code::kTruncated, "entry runs past the index"},
      {73, "\0\0\2\3<f4\1\3\0\0\0"s, Code::kCorrupt, "name is empty"},  // I03
      {75, "\xFF", Code::kCorrupt, "is not UTF-8"},
      {75, "\x1E", Code::kCorrupt, "is not a list of strings"},
      {76, "\3", Code::kCorrupt, "unknown type of tensor"},  // I05
      {78, ">", Code::kCorrupt, "is big-endian"},            // I06
      {79, "x", Code::kCorrupt, "is not one the format has"},
      {82, "\4", Code::kCorrupt, "expected 16, found 12"},  // I08
      {102, "\0"s, Code::kCorrupt, "which version 4 introduced"},
      {86, "\x6F", Code::kCorrupt, "expected 110, found 111"},  // I10
      {94, "\x6F", Code::kCorrupt, "header of 1 bytes is too short"},
      {95, "\1", Code::kTruncated, "ends past the file"},
      {110, "\x49", Code::kTruncated, "before its data length"},
      {120, "\1", Code::kCorrupt, "different types or shapes"},  // H02
      {123, "v", Code::kCorrupt, "different names"},
      {126, "i", Code::kCorrupt, "different types or shapes"},
      {129, "\4", Code::kCorrupt, "different types or shapes"},
      {176, "\x0B", Code::kCorrupt, "expected 12, found 11"},
      {183, "\x80", Code::kCorrupt, "expected 12, found -9"},  // H03
      {133, "\x28", Code::kCorrupt, "hashes do not fill"},     // H04
      {133, "\xFF", Code::kTruncated, "hash block runs past"},
      {135, "\1", Code::kCorrupt, "hashes do not fill"},
      {136, "\2", Code::kCorrupt, "hash of type 2 and 4 bytes"},
      {137, "\5", Code::kCorrupt, "hash of type 0 and 5 bytes"},
      {136, "\1\4", Code::kCorrupt, "hash of type 1 and 4 bytes"},
  };
  for (const Change& change : changes) {
    ExpectRefused("2.11.1_v1_f32", change);
  }
}

// H01: the reader of a released file gives the codec all bytes before the data.
TEST(TensorizerRules, HeaderEndsWhereItsDataBegins) {
  const std::string file = TensorizerFile("2.11.1_v1_f32");
  const auto facts = Decode(file);
  ASSERT_TRUE(facts.ok());
  const auto longer = haulway::test::BytesOf(file).subspan(
      facts->index.entries[0].header_offset, facts->header_bytes[0].size() + 1);
  const Status status = ParseTensorHeader(longer, facts->index.entries[0],
                                          facts->preamble, Strictness::kStrict)
                            .status();
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_EQ(status.message(),
            "header length is wrong: expected 75, found 74; at byte 0");
}

TEST(TensorizerRules, LargeRankPassesItsLimit) {
  std::string file = WithoutIndexSlack(TensorizerFile("2.11.1_v1_f32"));
  OpenOptions options;
  options.limits.max_rank = 0;
  EXPECT_EQ(Decode(file, options).status().code(), Code::kLimit);
  options.limits.max_rank = 1;
  EXPECT_TRUE(Decode(file, options).ok());
  options.limits.max_tensors = 0;
  EXPECT_EQ(Decode(file, options).status().code(), Code::kLimit);
}

TEST(TensorizerRules, UnknownTagsAndFlagsOfFive) {
  ExpectRefused("2.12.0_v5_long",
                {9, "\4", Code::kCorrupt, "unknown feature flags"});
  ExpectRefused("2.12.0_v5_long",
                {73, "\2", Code::kCorrupt, "unknown version of an entry"});
  ExpectRefused("2.11.1_v4_meta",
                {9, "\2", Code::kCorrupt, "unknown feature flags"});
}

// pr170_f32: the layout at 73, index content length at 118, entries at 126.
TEST(TensorizerRules, SegmentsMustFollowOneAnother) {
  const Change changes[] = {
      {92, "\3", Code::kCorrupt, "segments are of wrong kinds"},  // X01
      {76, "\x77", Code::kCorrupt, "do not follow one another"},  // X02
      {93, "\0\x11"s, Code::kCorrupt, "do not follow one another"},
      {110, "\0\x30"s, Code::kCorrupt, "do not follow one another"},
      {118, "\0\x10"s, Code::kCorrupt, "does not fit its segment"},  // X03
      {176, "\1"s, Code::kCorrupt, "headers overlap"},               // X04
      {184, "\0"s, Code::kCorrupt, "data overlaps"},                 // X05
      {188, "\xFF", Code::kTruncated, "ends past the file"},
      {191, "\xFF", Code::kTruncated, "ends past the file"},
  };
  for (const Change& change : changes) ExpectRefused("pr170_f32", change);
}

// 2.11.1_v3_key: header at 110, crypt block at 170: length, chunk count, chunk
// length, type, chunk size, nonce, number of MACs, MAC.
TEST(TensorizerRules, CryptBlocksAreExact) {
  const Change changes[] = {
      {170, "\x43", Code::kCorrupt, "padding of the header"},  // H06
      {170, "\xFF", Code::kCorrupt, "runs past the header"},   // H05
      {178, "\2", Code::kCorrupt, "chunk runs past the block"},
      {178, "\0"s, Code::kCorrupt, "chunks do not fill"},
      {180, "\x39", Code::kCorrupt, "past its chunk"},
      {188, "\4", Code::kCorrupt, "unknown chunk of type 4"},  // C01
      {190, "\1", Code::kCorrupt, "chunk size"},               // C02
      {190, "\0\2\0"s, Code::kCorrupt, "chunk size"},
      {222, "\2", Code::kCorrupt, "past its chunk"},
      {222, "\0"s, Code::kCorrupt, "does not fill its chunk"},
  };
  for (const Change& change : changes) ExpectRefused("2.11.1_v3_key", change);
}

TEST(TensorizerRules, KeyDerivationIsCapped) {
  // C03: chunk at 180: length, type, method, operations, memory, algorithm,
  // salt.
  const Change changes[] = {
      {190, "\2", Code::kCorrupt, "key derivation is unknown"},
      {208, "\1", Code::kCorrupt, "key derivation is unknown"},
      {212, "\x0F", Code::kCorrupt, "salt"},
      {192, "\xFF", Code::kLimit, "max_kdf_operations"},
      {204, "\1", Code::kLimit, "max_kdf_memory_bytes"},
  };
  for (const Change& change : changes) {
    ExpectRefused("2.11.1_v3_passphrase", change);
  }
}

TEST(TensorizerCryptBlock, EncodesWhatTheReferenceDoes) {
  for (const std::string_view name :
       {"2.11.1_v3_key", "2.11.1_v3_passphrase", "2.11.1_v4_key_meta"}) {
    const std::string file = TensorizerFile(name);
    const auto facts = Decode(file);
    ASSERT_TRUE(facts.ok());
    for (size_t i = 0; i < facts->crypts.size(); ++i) {
      CryptBlock block = facts->crypts[i];
      if (block.cipher == Cipher::kParallel) block.chunk_bytes = kChunkBytes;
      const auto encoded = EncodeCryptBlock(block);
      const auto stored = facts->headers[i].crypt;
      ASSERT_EQ(encoded.size(), stored.size() + 8);
      EXPECT_TRUE(
          std::equal(stored.begin(), stored.end(), encoded.begin() + 8));
    }
  }
}

TEST(TensorizerCryptBlock, CountsNoncesAsNumbers) {
  Nonce nonce{};
  nonce[0] = std::byte{0xFF};
  nonce[1] = std::byte{0xFF};
  const Nonce next = UnitNonce(nonce, 2);
  EXPECT_EQ(next[0], std::byte{1});
  EXPECT_EQ(next[1], std::byte{0});
  EXPECT_EQ(next[2], std::byte{1});
  nonce.fill(std::byte{0xFF});
  EXPECT_EQ(UnitNonce(nonce, 1), Nonce{});
}

}  // namespace
}  // namespace haulway::tensorizer
