// Tests of the codecs; the files of the reference are in python/tests/signing.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/text.h"
#include "signing/bundle.h"
#include "signing/json_reader.h"
#include "signing/keys.h"
#include "signing/model_access.h"
#include "signing/statement.h"
#include "signing/transparency.h"

namespace haulway::signing {
namespace {

Status Skip(std::string_view text) {
  return ReadJson(text, "text",
                  [](std::string_view key, JsonValue& value, int depth) {
                    return SkipJson(value, key, depth);
                  });
}

TEST(JsonReader, TakesEveryKindOfValue) {
  EXPECT_TRUE(Skip(R"({"a":[1,-2.5e3,true,null,"x",{"b":{}}],"c":""} )").ok());
}

TEST(JsonReader, RefusesWhatIsNoStrictJson) {
  for (const char* const text :
       {"", "[]", "1", "{", "{\"a\":}", "{\"a\":1}x", "{\"a\":1}{}",
        "{\"a\":01}", "{\"a\":tru}", "{\"a\":nul}", "{\"a\":\"\\x\"}",
        "{\"a\":1,}", "{\"a\" 1}", "{\"a\":\"\xff\"}", "{\"a\":\"\n\"}",
        "{'a':1}", "{\"a\":1,\"a\":2}", "{\"a\":{\"b\":1,\"\\u0062\":2}}",
        "\xff\xfe{\0}\0"}) {
    EXPECT_EQ(Skip(text).code(), Code::kCorrupt) << text;
  }
}

TEST(JsonReader, LimitsNesting) {
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_TRUE(Skip(nested(kMostJsonDepth)).ok());
  EXPECT_EQ(Skip(nested(kMostJsonDepth + 1)).code(), Code::kLimit);
}

TEST(Base64, DecodesWhatItEncodes) {
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(DecodeBase64(Base64(bytes), "x").value(), bytes);
    bytes += static_cast<char>(i * 37);
  }
}

TEST(Base64, TakesBothAlphabetsAndNoPadding) {
  for (const char* const text : {"++//", "--__"}) {
    EXPECT_EQ(DecodeBase64(text, "x").value(), "\xfb\xef\xff");
  }
  EXPECT_EQ(DecodeBase64("YQ", "x").value(), "a");
  EXPECT_EQ(DecodeBase64("YQ==", "x").value(), "a");
}

TEST(Base64, RefusesAnythingElse) {
  for (const char* const text : {"Y", "YQ=", "YQ===", "Y Q=", "YQ\n",
                                 "YR==", "====", "YQ==YQ==", "Y*"}) {
    EXPECT_FALSE(DecodeBase64(text, "x").ok()) << text;
  }
}

TEST(Envelope, SignsWhatItsTypesSay) {
  EXPECT_EQ(SignedBytes("a/b", "xyz"), "DSSEv1 3 a/b 3 xyz");
  EXPECT_EQ(OldSignedBytes("a/b", "x'\n\xc3\"\\"),
            "DSSEV1 3 a/b 6 b'x\\'\\n\\xc3\"\\\\'");
  EXPECT_EQ(OldSignedBytes("t", "'"), "DSSEV1 1 t 1 b\"'\"");
}

TEST(Statement, OrdersPathsByTheirParts) {
  std::vector<std::string> paths = {"a.b", "a/b", "a-b", "A", "a", "\xc3\xa9"};
  std::ranges::sort(paths, IsBefore);
  EXPECT_EQ(paths, (std::vector<std::string>{"A", "a", "a/b", "a-b", "a.b",
                                             "\xc3\xa9"}));
}

TEST(Statement, RefusesPathsThatLeaveTheModel) {
  for (const char* const path : {"", "/a", "../a", "a/../b", "a/..", "./a",
                                 "a//b", "a/", "a/./b", ".."}) {
    EXPECT_NE(WhyNoPath(path), "") << path;
  }
  for (const char* const path : {".", "a", ".a", "..a", "a/b", "a..b"}) {
    EXPECT_EQ(WhyNoPath(path), "") << path;
  }
}

Statement Sample(bool has_pieces) {
  Statement statement;
  statement.subject.name = "m\xc3\xa9\xf0\x9f\x98\x80\n";
  statement.has_pieces = has_pieces;
  statement.piece_bytes = has_pieces ? 10 : 0;
  statement.ignore_paths = {"z", ".git"};
  const std::string digest(32, '\x7f');
  if (has_pieces) {
    statement.resources = {{"b:c", 10, 15, digest}, {"b:c", 0, 10, digest}};
  } else {
    statement.resources = {{"b", 0, 0, digest}, {"a", 0, 0, digest}};
  }
  return statement;
}

TEST(Statement, ReadsWhatItWrites) {
  for (const bool has_pieces : {false, true}) {
    Statement written = Sample(has_pieces);
    const std::string text = WriteStatement(&written);
    EXPECT_TRUE(std::ranges::all_of(text, [](char c) { return c > 0; }));
    const auto read = ParseStatement(text);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->subject.name, written.subject.name);
    EXPECT_EQ(read->subject.sha256, written.subject.sha256);
    EXPECT_EQ(read->piece_bytes, written.piece_bytes);
    EXPECT_EQ(read->ignore_paths, (std::vector<std::string>{".git", "z"}));
    ASSERT_EQ(read->resources.size(), 2U);
    EXPECT_EQ(read->resources[0].name, has_pieces ? "b:c" : "a");
    EXPECT_EQ(read->resources[1].end, has_pieces ? 15U : 0U);
  }
}

TEST(Statement, RefusesShardsThatLeaveGaps) {
  for (const auto& [begin, end] : std::vector<std::pair<uint64_t, uint64_t>>{
           {11, 15}, {9, 15}, {10, 10}, {10, 21}, {0, 10}}) {
    Statement written = Sample(true);
    written.resources[0].begin = begin;
    written.resources[0].end = end;
    EXPECT_EQ(ParseStatement(WriteStatement(&written)).status().code(),
              Code::kCorrupt);
  }
}

// The root of a tree, by its definition (RFC 6962, 2.1), and the audit path of
// a leaf (2.1.1).
std::string Root(const std::vector<std::string>& leaves) {
  if (leaves.size() == 1) return leaves[0];
  size_t k = 1;
  while (k * 2 < leaves.size()) k *= 2;
  return Sha256Of("\x01" + Root({leaves.begin(), leaves.begin() + k}) +
                  Root({leaves.begin() + k, leaves.end()}));
}

std::vector<std::string> Path(size_t index,
                              const std::vector<std::string>& leaves) {
  if (leaves.size() == 1) return {};
  size_t k = 1;
  while (k * 2 < leaves.size()) k *= 2;
  const std::vector<std::string> left(leaves.begin(), leaves.begin() + k),
      right(leaves.begin() + k, leaves.end());
  auto path = index < k ? Path(index, left) : Path(index - k, right);
  path.push_back(Root(index < k ? right : left));
  return path;
}

TEST(Tree, PathsLeadToTheRoot) {
  std::vector<std::string> leaves;
  for (size_t size = 1; size <= 20; ++size) {
    leaves.push_back(Sha256Of(std::string(size, 'x')));
    for (size_t index = 0; index < size; ++index) {
      auto path = Path(index, leaves);
      EXPECT_EQ(RootOfTree(leaves[index], index, size, path), Root(leaves));
      for (const uint64_t other : {index + 1, size, uint64_t{1} << 63}) {
        EXPECT_NE(RootOfTree(leaves[index], other, size, path), Root(leaves));
      }
      path.push_back(leaves[0]);
      EXPECT_EQ(RootOfTree(leaves[index], index, size, path), "");
    }
  }
}

TEST(IgnoredPaths, CoverWhatIsBelow) {
  IgnoredPaths ignored;
  for (const char* const path : {"a/b/", "./c", "../out", "d/../e", "/abs"}) {
    ignored.Add(path);
  }
  for (const char* const name : {"a/b", "a/b/c", "c", "e/f"}) {
    EXPECT_TRUE(ignored.Has(name)) << name;
  }
  for (const char* const name : {"a", "a/bc", "cc", "out", "d", "abs"}) {
    EXPECT_FALSE(ignored.Has(name)) << name;
  }
}

TEST(Keys, AreNamedWhenTheyAreOfAnotherKind) {
  const auto none = ParsePublicKey("nothing");
  EXPECT_EQ(none.status().code(), Code::kInvalidArgument);
  const OwnedKey ed25519(::EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  const Status status = CheckCurve(ed25519.get());
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("ED25519"), std::string_view::npos);
}

TEST(Keys, SignOnEveryCurve) {
  for (const char* const curve : {"P-256", "P-384", "P-521"}) {
    const OwnedKey key(::EVP_EC_gen(curve));
    const std::string signature = SignBytes(key.get(), "bytes").value();
    EXPECT_TRUE(IsSignature(key.get(), signature, "bytes"));
    EXPECT_FALSE(IsSignature(key.get(), signature, "other"));
    EXPECT_FALSE(IsSignature(key.get(), signature + "x", "bytes"));
  }
}

}  // namespace
}  // namespace haulway::signing
