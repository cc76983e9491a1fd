#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "haulway/convert.h"
#include "haulway/verify.h"
#include "testing/goldens.h"
#include "testing/tensorizer_goldens.h"

namespace haulway {
namespace {

using haulway::test::TensorizerFile;
using haulway::test::TensorizerFiles;

EncryptionKey Key() {
  EncryptionKey key;
  key.key = Secret("0123456789abcdef0123456789abcdef");
  return key;
}

// Returns the key of the encrypted golden files, and none for others, which
// would refuse one.
EncryptionKey KeyOf(std::string_view file) {
  EncryptionKey key;
  if (file.find("passphrase") != file.npos) {
    key.passphrase = Secret("test");
  } else if (file.find("key") != file.npos) {
    std::array<std::byte, kKeyBytes> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(i);
    }
    key.key = Secret(bytes);
  }
  return key;
}

Result<std::shared_ptr<const Checkpoint>> Open(const std::string& bytes,
                                               const EncryptionKey& key = {}) {
  OpenOptions options;
  options.key = key;
  return Checkpoint::Open(MakeMemorySource(std::as_bytes(std::span(bytes))),
                          options);
}

// Returns the file, read with one key and written with another.
Result<std::string> Rewritten(const std::string& file,
                              const EncryptionKey& from,
                              const EncryptionKey& to,
                              const EncryptOptions& options = {}) {
  HAULWAY_ASSIGN(const auto checkpoint, Open(file, from));
  std::string out;
  const auto sink = MakeMemorySink(&out);
  HAULWAY_ASSIGN(const EncryptStats stats,
                 EncryptCheckpoint(*checkpoint, to, *sink, options));
  EXPECT_EQ(stats.write.bytes, out.size());
  EXPECT_EQ(stats.tensors, checkpoint->index().tensors.size());
  return out;
}

std::string Fact(const Checkpoint& checkpoint, std::string_view name) {
  for (const haulway::Fact& fact : checkpoint.index().facts) {
    if (fact.name != name) continue;
    const auto* text = std::get_if<std::string>(&fact.value);
    return text != nullptr ? *text : "";
  }
  return "";
}

TEST(Encrypt, EveryGoldenThereAndBack) {
  int same_count = 0;
  for (const std::string& name : TensorizerFiles()) {
    if (name.find("long") != name.npos) continue;  // 4 GiB of zeros.
    const std::string file = TensorizerFile(name);
    const auto plain = Rewritten(file, KeyOf(name), {});
    ASSERT_TRUE(plain.ok()) << name << plain.status().message();
    const auto secret = Rewritten(*plain, {}, Key());
    ASSERT_TRUE(secret.ok()) << name << secret.status().message();
    const auto opened = Open(*secret, Key());
    ASSERT_TRUE(opened.ok()) << name << opened.status().message();
    const auto again = Rewritten(*secret, Key(), {});
    ASSERT_TRUE(again.ok()) << name << again.status().message();
    EXPECT_TRUE(*again == *plain) << name;
    // Files that a release wrote without a key must stay the same byte for
    // byte.
    same_count += *plain == file ? 1 : 0;
  }
  EXPECT_GE(same_count, 9);
}

TEST(Encrypt, SegmentsKeepTheirLayoutAndMetadata) {
  for (const std::string name : {"segments_notes", "pr170_f32"}) {
    const std::string file = TensorizerFile(name);
    const auto secret = Rewritten(file, {}, Key());
    ASSERT_TRUE(secret.ok()) << secret.status().message();
    const auto before = Open(file);
    const auto after = Open(*secret, Key());
    ASSERT_TRUE(before.ok() && after.ok());
    EXPECT_EQ(Fact(**after, "layout"), "segments");
    ASSERT_EQ((*after)->index().metadata.has_value(),
              (*before)->index().metadata.has_value());
    if (!(*before)->index().metadata.has_value()) continue;
    const auto& notes = *(*before)->index().metadata;
    ASSERT_EQ((*after)->index().metadata->size(), notes.size());
    for (size_t i = 0; i < notes.size(); ++i) {
      EXPECT_EQ((*after)->index().metadata->at(i).name, notes[i].name);
      EXPECT_EQ((*after)->index().metadata->at(i).value, notes[i].value);
    }
  }
}

TEST(Encrypt, AuthenticatesMetadataUnlessToldNotTo) {
  const std::string file = TensorizerFile("2.11.1_v1_f32");
  for (const bool authenticate : {true, false}) {
    EncryptOptions options;
    options.authenticate_metadata = authenticate;
    const auto secret = Rewritten(file, {}, Key(), options);
    ASSERT_TRUE(secret.ok());
    const auto opened = Open(*secret, Key());
    ASSERT_TRUE(opened.ok());
    EXPECT_EQ(Fact(**opened, "authentication"),
              authenticate ? "checked" : "none");
    const auto report =
        Verify(MakeMemorySource(std::as_bytes(std::span(*secret))));
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->authentication, authenticate ? "not checked" : "none");
    for (const Unchecked& part : report->unchecked) {
      EXPECT_EQ(part.needs_key, authenticate || part.offset != 0);
    }
  }
}

TEST(Encrypt, RefusesWhatItCannotRead) {
  const std::string secret = TensorizerFile("2.11.1_v3_key");
  EXPECT_EQ(Rewritten(secret, {}, {}).status().code(), Code::kAuth);
  EXPECT_EQ(Rewritten(secret, Key(), {}).status().code(), Code::kAuth);
  const std::string torch = test::ReadGolden("tied.pt");
  EXPECT_EQ(Rewritten(torch, {}, Key()).status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace haulway
