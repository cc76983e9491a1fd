// The record that authenticates metadata: it detects changes, and its removal
// is detected.

#include "tensorizer/tensorizer_authentication.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "haulway/source.h"
#include "haulway/tensorizer.h"
#include "tensorizer/tensorizer_reader.h"
#include "tensorizer/tensorizer_verify.h"
#include "testing/layout_bytes.h"

namespace haulway::tensorizer {
namespace {

using haulway::test::Assemble;

using std::string_view_literals::operator""sv;

constexpr uint64_t kFirstHeader = kIndexOffset + kReservedIndexBytes;

Secret Key(char seed = 'k') { return Secret(std::string(kKeyBytes, seed)); }

EncryptionKey WithKey(Secret secret) {
  EncryptionKey key;
  key.key = std::move(secret);
  return key;
}

TensorizerInput Tensor(std::string key, std::vector<uint64_t> shape) {
  static const std::vector<std::byte> bytes(4096, std::byte{7});
  TensorizerInput tensor;
  tensor.path = {{.is_position = false, .position = 0, .key = std::move(key)}};
  tensor.dtype = DType::kU8;
  tensor.shape = std::move(shape);
  tensor.bytes = bytes.data();
  return tensor;
}

std::string Written(const TensorizerOptions& options) {
  std::vector<TensorizerInput> tensors = {
      Tensor("a", {2, 6}), Tensor("b", {2, 6}), Tensor("empty", {0}),
      Tensor("meta", {3})};
  tensors[3].meta = true;
  const auto layout = LayOutTensorizer(tensors, options);
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  return Assemble(**layout);
}

std::string Written(bool authenticate = true) {
  TensorizerOptions options;
  options.key = Key();
  options.authenticate_metadata = authenticate;
  return Written(options);
}

// Opens a file and reads its headers and data; returns the first failure.
Status Read(const std::string& file, const EncryptionKey& key,
            std::string* authentication = nullptr) {
  OpenOptions options;
  options.key = key;
  options.limits.max_kdf_operations = 2;
  options.limits.max_kdf_memory_bytes = 64 * kKiB;
  HAULWAY_ASSIGN(
      const auto reader,
      Reader::Open(MakeMemorySource(std::as_bytes(std::span(file))), options));
  for (const Fact& fact : reader->index().facts) {
    if (authentication != nullptr && fact.name == "authentication") {
      *authentication = std::get<std::string>(fact.value);
    }
  }
  for (uint32_t row = 0; row < reader->index().storages.size(); ++row) {
    const StorageInfo& storage = reader->index().storages[row];
    const auto bytes = std::as_bytes(std::span(file));
    const auto frame = bytes.subspan(storage.frame_offset,
                                     storage.offset - storage.frame_offset);
    HAULWAY_TRY(reader->CheckFrame(row, frame, {}));
    if (key.empty() || storage.stored_bytes == 0) continue;
    std::vector<std::byte> out(storage.stored_bytes);
    HAULWAY_TRY(reader->Decode(row, frame, 0,
                               bytes.subspan(storage.offset, out.size()), out));
  }
  return Status();
}

TEST(TensorizerAuthentication, TellsWhetherItWasChecked) {
  std::string found;
  EXPECT_TRUE(Read(Written(), WithKey(Key()), &found).ok());
  EXPECT_EQ(found, "checked");
  EXPECT_TRUE(Read(Written(), {}, &found).ok());
  EXPECT_EQ(found, "not checked");
  EXPECT_TRUE(Read(Written(false), WithKey(Key()), &found).ok());
  EXPECT_EQ(found, "none");
}

TEST(TensorizerAuthentication, FindsEveryChangedByte) {
  const std::string file = Written();
  const uint64_t end = file.size();
  for (uint64_t at = 0; at < end; ++at) {
    // Test only some bytes of the unused part of the index.
    if (at > 400 && at < kFirstHeader && at % 4093 != 0) continue;
    std::string changed = file;
    changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
    EXPECT_FALSE(Read(changed, WithKey(Key())).ok()) << "byte " << at;
  }
}

TEST(TensorizerAuthentication, FindsExchangedTensors) {
  for (const bool authenticate : {false, true}) {
    std::string file = Written(authenticate);
    const auto reader =
        Reader::Open(MakeMemorySource(std::as_bytes(std::span(file))), {});
    ASSERT_TRUE(reader.ok());
    // Both tensors have the same shape, so only the names differ.
    const std::vector<IndexEntry>& entries = (*reader)->tensor_index().entries;
    const size_t second = file.find("\x01\0b\x02"sv) + 2;
    ASSERT_LT(second, kFirstHeader);
    const size_t name = 8 + 2 + 1 + 2;
    std::swap(file[kIndexOffset + 2], file[second]);
    std::swap(file[entries[0].header_offset + name],
              file[entries[1].header_offset + name]);
    const Status status = Read(file, WithKey(Key()));
    EXPECT_EQ(status.ok(), !authenticate);
    if (authenticate) {
      EXPECT_EQ(status.code(), Code::kAuth);
    }
  }
}

TEST(TensorizerAuthentication, FindsThatItWasCutOff) {
  std::string file = Written();
  file.resize(file.size() - AuthenticationBytes(false, 4));
  EXPECT_EQ(Read(file, WithKey(Key())).code(), Code::kAuth);
  EXPECT_TRUE(Read(file, {}).ok());
  for (uint64_t cut = 1; cut < AuthenticationBytes(false, 4); ++cut) {
    const std::string whole = Written();
    EXPECT_FALSE(
        Read(whole.substr(0, whole.size() - cut), WithKey(Key())).ok());
  }
}

TEST(TensorizerAuthentication, BytesBehindItAreNobodys) {
  EXPECT_TRUE(Read(Written() + "more", WithKey(Key())).ok());
  EXPECT_TRUE(Read(Written(false) + "more", WithKey(Key())).ok());
}

TEST(TensorizerAuthentication, TheWrongKeyIsToldWhenOpening) {
  const std::string file = Written();
  OpenOptions options;
  options.key.key = Key('x');
  const auto source = MakeMemorySource(std::as_bytes(std::span(file)));
  EXPECT_EQ(Reader::Open(source, options).status().code(), Code::kAuth);
}

TEST(TensorizerAuthentication, ARecordOfAnotherFileIsNotTaken) {
  const std::string one = Written();
  const std::string other = Written();
  const size_t record = one.size() - AuthenticationBytes(false, 4);
  EXPECT_EQ(
      Read(one.substr(0, record) + other.substr(record), WithKey(Key())).code(),
      Code::kAuth);
}

TEST(TensorizerAuthentication, WorksWithPassphrases) {
  TensorizerOptions options;
  options.derivation = NewTensorizerDerivation();
  options.derivation->operations = 1;
  options.derivation->memory_bytes = 8 * kKiB;
  const auto key = DeriveTensorizerKey(Secret("open"), 1, 8 * kKiB,
                                       options.derivation->salt);
  ASSERT_TRUE(key.ok());
  options.key = *key;
  const std::string file = Written(options);
  std::string found;
  EncryptionKey phrase;
  phrase.passphrase = Secret("open");
  EXPECT_TRUE(Read(file, phrase, &found).ok());
  EXPECT_EQ(found, "checked");
  EXPECT_TRUE(Read(file, WithKey(*key), &found).ok());
  phrase.passphrase = Secret("closed");
  EXPECT_EQ(Read(file, phrase).code(), Code::kAuth);
  // The cost is checked before the key is derived.
  std::string dear = file;
  dear[file.size() - AuthenticationBytes(true, 4) + 8 + 8 + 10 + 8 + 4] = 127;
  EXPECT_EQ(Read(dear, phrase).code(), Code::kLimit);
}

TEST(TensorizerAuthentication, ReadersKnowTheMarkOnlyWithTheKey) {
  const Secret key = MetadataKey(Key());
  EXPECT_TRUE(IsMarked(key, MarkedNonce(key)));
  EXPECT_FALSE(IsMarked(MetadataKey(Key('x')), MarkedNonce(key)));
  EXPECT_FALSE(IsMarked(key, Nonce()));
  EXPECT_NE(MarkedNonce(key), MarkedNonce(key));
}

TEST(TensorizerVerify, SaysWhatIsAuthentic) {
  const std::string file = Written();
  VerifyOptions options;
  const auto source = MakeMemorySource(std::as_bytes(std::span(file)));
  auto report = VerifyTensorizer(source, options);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->ok);
  EXPECT_EQ(report->unchecked.size(), 3u);
  options.open.key.key = Key();
  report = VerifyTensorizer(source, options);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->ok);
  EXPECT_TRUE(report->unchecked.empty());
}

TEST(TensorizerVerify, FindsNoncesThatOverlapWithoutTheKey) {
  std::vector<std::byte> bytes(5 * kChunkBytes);
  std::vector<TensorizerInput> tensors = {Tensor("a", {bytes.size()}),
                                          Tensor("b", {12})};
  tensors[0].bytes = bytes.data();
  for (const auto& [distance, ok] : {std::pair{4, false}, {5, true}}) {
    TensorizerOptions options;
    options.key = Key();
    // Let the addition carry past the first byte.
    options.nonce = [distance](size_t i) {
      Nonce nonce{};
      nonce[0] = std::byte{253};
      if (i == 1) {
        nonce[0] = static_cast<std::byte>(253 + distance - 256);
        nonce[1] = std::byte{1};
      }
      return nonce;
    };
    const auto layout = LayOutTensorizer(tensors, options);
    ASSERT_TRUE(layout.ok());
    const std::string file = Assemble(**layout);
    const auto report = VerifyTensorizer(
        MakeMemorySource(std::as_bytes(std::span(file))), VerifyOptions());
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->ok, ok) << distance;
    if (!ok) {
      EXPECT_EQ(report->findings[0].code, Code::kCorrupt);
    }
  }
}

}  // namespace
}  // namespace haulway::tensorizer
