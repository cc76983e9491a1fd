// Loads Tensorizer files: every golden file bit for bit, right and wrong keys,
// truncation at every byte, and every bit flipped.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/load.h"
#include "haulway/verify.h"
#include "testing/tensorizer_goldens.h"
#include "testing/test_sources.h"

namespace haulway {
namespace {

using haulway::test::Hex;
using haulway::test::TensorizerFile;
using haulway::test::TensorizerFiles;
using haulway::test::TensorizerGolden;
using haulway::test::TensorizerManifest;
using haulway::test::WithoutIndexSlack;

Secret KeyA() {
  std::array<std::byte, kKeyBytes> key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  return Secret(key);
}

// Returns the key of the golden file with that name.
EncryptionKey KeyOf(std::string_view file) {
  EncryptionKey key;
  if (file.find("passphrase") != file.npos) {
    key.passphrase = Secret("test");
  } else if (file.find("key") != file.npos) {
    key.key = KeyA();
  }
  return key;
}

bool IsEncrypted(std::string_view file) { return !KeyOf(file).empty(); }

struct Want {
  IoMode io = IoMode::kPread;
  Strictness strictness = Strictness::kStrict;
  bool verify = true;
  int threads = 1;
};

// Returns one line per tensor: name, type, shape and bytes.
Result<std::vector<std::string>> Content(const std::string& file,
                                         const EncryptionKey& key,
                                         const Want& want = {}) {
  OpenOptions options;
  options.strictness = want.strictness;
  options.key = key;
  // Limit key derivation: the parameters that a flipped bit creates could take
  // minutes.
  options.limits.max_kdf_operations = 2;
  options.limits.max_kdf_memory_bytes = 64 * kKiB;
  HAULWAY_ASSIGN(const auto checkpoint,
                 Checkpoint::Open(test::InMemory(file), options));
  const CheckpointIndex& index = checkpoint->index();
  std::vector<uint32_t> rows(index.storages.size());
  std::iota(rows.begin(), rows.end(), 0);
  HAULWAY_ASSIGN(
      const LoadedStorages loaded,
      LoadStorages(
          *checkpoint, rows,
          {.threads = want.threads, .io = want.io, .verify = want.verify}));
  std::vector<std::string> lines;
  for (const Entry& entry : checkpoint->entries()) {
    const TensorInfo& tensor = index.tensors[entry.tensor];
    const Buffer& buffer = loaded.buffers[tensor.storage];
    if (buffer.size() != tensor.nbytes) {
      return Status(Code::kInternal, "buffer is of another size");
    }
    std::string data = "meta";
    if (tensor.kind != TensorKind::kMeta) {
      data = Hex({reinterpret_cast<const char*>(buffer.data()), buffer.size()});
    } else if (buffer.data()[0] != std::byte{0}) {
      return Status(Code::kInternal, "meta tensor is not zero");
    }
    if (tensor.nbytes < 1000) {
      std::vector<std::byte> out(tensor.nbytes);
      HAULWAY_TRY(checkpoint->Read(tensor, out));
      if (!std::ranges::equal(out, buffer.bytes())) {
        return Status(Code::kInternal, "Read() and LoadStorages() differ");
      }
    }
    lines.push_back(fmt::format("{} {} [{}] {}", entry.name, Name(tensor.dtype),
                                fmt::join(tensor.shape, ","), data));
  }
  return lines;
}

// Turns ["a", 1, "b"] into a.1.b.
std::string Joined(std::string name) {
  if (!name.starts_with('[')) return name;
  std::string joined;
  for (const char c : name.substr(1, name.size() - 2)) {
    if (c == ',') joined += '.';
    if (c != ',' && c != '"' && c != ' ') joined += c;
  }
  return joined;
}

std::vector<std::string> Expected(std::string_view file) {
  std::vector<std::string> lines;
  for (const TensorizerGolden& line : TensorizerManifest()) {
    if (line.file != file) continue;
    lines.push_back(fmt::format("{} {} [{}] {}", Joined(line.name), line.dtype,
                                line.shape, line.data));
  }
  return lines;
}

// Returns whether a byte lies inside the zeros that separate segments. Flips
// there all have the same effect.
bool IsInSlack(const std::string& file, size_t byte) {
  constexpr size_t kAround = 32;
  return byte >= kAround && byte + kAround < file.size() &&
         file.substr(byte - kAround, 2 * kAround) ==
             std::string(2 * kAround, '\0');
}

class Tensorizer : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string file_ = TensorizerFile(GetParam());
  const EncryptionKey key_ = KeyOf(GetParam());
};

TEST_P(Tensorizer, HasTheBytesOfItsManifest) {
  for (const IoMode io : {IoMode::kPread, IoMode::kMmap}) {
    for (const bool verify : {true, false}) {
      for (const int threads : {1, 3}) {
        const auto content = Content(
            file_, key_, {.io = io, .verify = verify, .threads = threads});
        ASSERT_TRUE(content.ok()) << content.status().message();
        EXPECT_EQ(*content, Expected(GetParam()));
      }
    }
  }
}

TEST_P(Tensorizer, PassesVerify) {
  VerifyOptions options;
  options.open.key = key_;
  const auto report = Verify(test::InMemory(file_), options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->ok) << report->findings.at(0).message;
  EXPECT_GT(report->checked_bytes, 0u);
  EXPECT_EQ(report->format, Format::kTensorizer);
  EXPECT_TRUE(Scan(test::InMemory(file_))->safe());
}

// A device copies from some pieces while others are read, so it keeps pieces
// until its copies end.
TEST_P(Tensorizer, PiecesMayBeKept) {
  for (const bool verify : {true, false}) {
    OpenOptions open;
    open.key = key_;
    const auto checkpoint = Checkpoint::Open(test::InMemory(file_), open);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    const auto& storages = (*checkpoint)->index().storages;
    std::vector<uint32_t> rows;
    uint64_t wanted = 0;
    for (uint32_t row = 0; row < storages.size(); ++row) {
      if (storages[row].nbytes > kMiB) continue;  // Zeros of a meta tensor.
      rows.push_back(row);
      wanted += storages[row].nbytes;
    }
    std::mutex mutex;
    std::vector<Piece> kept;
    // The budget holds a few thousand pieces.
    const uint64_t largest = std::max<uint64_t>(64, file_.size() / 1000);
    const auto stats = LoadPieces(**checkpoint, rows, {.verify = verify},
                                  largest, [&](Piece piece) {
                                    const std::lock_guard lock(mutex);
                                    kept.push_back(std::move(piece));
                                    return Status();
                                  });
    ASSERT_TRUE(stats.ok()) << stats.status().message();
    uint64_t bytes = 0;
    for (const Piece& piece : kept) bytes += piece.bytes.size();
    EXPECT_EQ(bytes, wanted);
  }
}

TEST_P(Tensorizer, IsListedWithoutAKey) {
  const auto checkpoint = Checkpoint::Open(test::InMemory(file_));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ((*checkpoint)->entries().size(), Expected(GetParam()).size());
  const auto content = Content(file_, {});
  EXPECT_EQ(content.ok(), !IsEncrypted(GetParam()));
  if (!IsEncrypted(GetParam())) return;
  EXPECT_EQ(content.status().code(), Code::kAuth);
  const auto report = Verify(test::InMemory(file_), {});
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->ok);
  EXPECT_GE(report->unchecked.size(), 2u);
}

TEST_P(Tensorizer, IsRefusedWhenCutAnywhere) {
  const std::string small = WithoutIndexSlack(file_);
  const auto whole = Content(small, key_);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  // Bytes after the end mark may be missing.
  size_t end = small.size();
  while (end > 0 && Content(small.substr(0, end - 1), key_).ok()) --end;
  EXPECT_GT(end + 64, small.size());
  for (size_t length = 0; length < end; ++length) {
    EXPECT_FALSE(Content(small.substr(0, length), key_).ok()) << length;
    (void)Verify(test::InMemory(small.substr(0, length))).status();
  }
}

TEST_P(Tensorizer, AFlippedBitIsSeenOrHarmless) {
  const std::string small = WithoutIndexSlack(file_);
  const auto whole = Content(small, key_);
  ASSERT_TRUE(whole.ok());
  for (size_t byte = 0; byte < small.size(); ++byte) {
    if (IsInSlack(small, byte)) continue;
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = small;
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << bit));
      const auto content = Content(flipped, key_);
      if (content.ok()) {
        EXPECT_EQ(*content, *whole) << "bit " << bit << " of byte " << byte;
      }
      if (bit != static_cast<int>(byte % 8)) continue;
      (void)Content(flipped, key_, {.strictness = Strictness::kLenient})
          .status();
      (void)Verify(test::InMemory(flipped)).status();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Tensorizer,
                         ::testing::ValuesIn(TensorizerFiles()),
                         [](const auto& info) {
                           return haulway::test::TestName(info.param);
                         });

// Specification 3.8.
TEST(TensorizerKeys, WrongOnesAreTold) {
  const std::string encrypted = TensorizerFile("2.11.1_v3_key");
  const std::string derived = TensorizerFile("2.11.1_v3_passphrase");
  EncryptionKey wrong;
  wrong.key = Secret(std::vector<std::byte>(kKeyBytes));
  EncryptionKey phrase;
  phrase.passphrase = Secret("wrong");
  EncryptionKey shorter;
  shorter.key = Secret(std::vector<std::byte>(31));
  EncryptionKey right;
  right.key = KeyA();

  struct Case {
    const std::string& file;
    const EncryptionKey& key;
    Code code;
    std::string_view message;
  };
  const std::string plain = TensorizerFile("2.11.1_v1_f32");
  const std::string flagless = TensorizerFile("2.11.1_v4_meta");
  const EncryptionKey none;
  const Case cases[] = {
      {encrypted, none, Code::kAuth, "expected a key, found none"},
      {encrypted, wrong, Code::kAuth, "decryption failed"},
      {encrypted, phrase, Code::kAuth, "found a passphrase"},
      {encrypted, shorter, Code::kInvalidArgument, "expected 32 bytes"},
      {derived, phrase, Code::kAuth, "decryption failed"},
      {derived, right, Code::kAuth, "decryption failed"},
      {plain, right, Code::kAuth, "predates encryption"},
      {flagless, right, Code::kAuth, "not flagged as encrypted"},
  };
  for (const Case& c : cases) {
    for (const bool verify : {true, false}) {
      const auto content = Content(c.file, c.key, {.verify = verify});
      ASSERT_FALSE(content.ok()) << c.message;
      EXPECT_EQ(content.status().code(), c.code) << content.status().message();
      EXPECT_NE(content.status().message().find(c.message), std::string::npos)
          << content.status().message();
    }
  }
}

TEST(TensorizerKeys, TheDerivedKeyOpensTheFileTooAsItIs) {
  constexpr std::string_view kDerived =
      "185d9543e6945bb30c6ecb2d1ac58a388ddfe954c34cf395a4fa12f986897662";
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < kDerived.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(
        std::stoi(std::string(kDerived.substr(i, 2)), nullptr, 16)));
  }
  EncryptionKey key;
  key.key = Secret(bytes);
  EXPECT_TRUE(Content(TensorizerFile("2.11.1_v3_passphrase"), key).ok());
}

TEST(TensorizerKeys, CostsPastTheLimitAreRefusedBeforeTheyArePaid) {
  const std::string file = TensorizerFile("2.11.1_v3_passphrase");
  OpenOptions options;
  options.key.passphrase = Secret("test");
  options.limits.max_kdf_memory_bytes = 8191;
  const auto checkpoint = Checkpoint::Open(test::InMemory(file), options);
  ASSERT_TRUE(checkpoint.ok());
  const Status status = (*checkpoint)->ReadStorage(0).status();
  EXPECT_EQ(status.code(), Code::kLimit) << status.message();
}

TEST(TensorizerTree, IsNestedAsItWasSaved) {
  const std::string file = TensorizerFile("2.11.1_v1_nested");
  const auto checkpoint = Checkpoint::Open(test::InMemory(file));
  ASSERT_TRUE(checkpoint.ok());
  const Value& root = (*checkpoint)->index().root;
  ASSERT_TRUE(root.is(Kind::kDict));
  ASSERT_EQ(root.mapping().size, 3u);
  const Value* a = root.mapping().Find("a");
  ASSERT_TRUE(a != nullptr && a->is(Kind::kList));
  ASSERT_EQ(a->sequence().size, 2u);
  EXPECT_EQ(a->sequence().data[0].object().tensor, 0u);
  EXPECT_TRUE(a->sequence().data[1].is(Kind::kDict));
}

TEST(TensorizerMeta, StaysMetaIfAsked) {
  const std::string file = TensorizerFile("2.12.0_v5_long");
  OpenOptions options;
  options.keep_meta = true;
  const auto checkpoint = Checkpoint::Open(test::InMemory(file), options);
  ASSERT_TRUE(checkpoint.ok());
  const TensorInfo* tensor = (*checkpoint)->Find("L");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->kind, TensorKind::kMeta);
  EXPECT_EQ(tensor->storage, kNoStorage);
  EXPECT_EQ(tensor->shape[0], 4294967301);
}

}  // namespace
}  // namespace haulway
