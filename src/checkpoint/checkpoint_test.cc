#include "haulway/checkpoint.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <string>

#include "haulway/archive.h"
#include "testing/test_sources.h"
#include "testing/zip_builder.h"

namespace haulway {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

using test::CountingSource;

// Returns what torch.save() writes for `count` tensors of one float each.
std::string ManyTensors(int count) {
  std::vector<test::NamedTensor> tensors;
  std::vector<std::pair<std::string, std::string>> storages;
  for (int i = 0; i < count; ++i) {
    const std::string key = std::to_string(i);
    tensors.push_back({"t" + key, "FloatStorage", key, 1, {1}});
    storages.emplace_back(key, std::string("\0\0\x80?", 4));
  }
  return test::BuildZip(
             test::CheckpointRecords("a", PickleStateDict(tensors), storages))
      .bytes;
}

TEST(TorchReader, OpensTenThousandTensorsInFourReads) {
  const auto source = std::make_shared<CountingSource>(ManyTensors(10'000));
  const auto checkpoint = Checkpoint::Open(source);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ((*checkpoint)->entries().size(), 10'000u);
  EXPECT_TRUE((*checkpoint)->index().offsets_computed);
  EXPECT_LE(source->reads.load(), 4);
}

TEST(TorchReader, DebugModeComparesEveryOffsetAndFindsThemRight) {
  OpenOptions options;
  options.debug_offsets = true;
  const auto source = std::make_shared<CountingSource>(ManyTensors(300));
  EXPECT_TRUE(Checkpoint::Open(source, options).ok());
}

TEST(TorchReader, GivesEveryPathAName) {
  const auto checkpoint =
      Checkpoint::Open(std::string_view(HAULWAY_TESTDATA "/small.pt"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const TensorInfo* tied = (*checkpoint)->Find("model.head.weight");
  const TensorInfo* embedding = (*checkpoint)->Find("model.embedding.weight");
  ASSERT_NE(tied, nullptr);
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(tied->storage, embedding->storage);
  EXPECT_EQ((*checkpoint)->Find("nothing"), nullptr);
  EXPECT_NE((*checkpoint)->Find("optimizer.state.0.exp_avg"), nullptr);
}

TEST(TorchReader, ReadsWhatAViewOfTheStorageHolds) {
  const auto checkpoint =
      Checkpoint::Open(std::string_view(HAULWAY_TESTDATA "/golden/tied.pt"));
  ASSERT_TRUE(checkpoint.ok());
  const TensorInfo* row = (*checkpoint)->Find("row");
  ASSERT_NE(row, nullptr);
  std::vector<float> values(3);
  ASSERT_TRUE((*checkpoint)
                  ->Read(*row, std::as_writable_bytes(std::span(values)))
                  .ok());
  EXPECT_EQ(values, (std::vector<float>{3, 4, 5}));
}

TEST(TorchReader, SaysWhatIsWrongWithTheCallersMemory) {
  const auto checkpoint =
      Checkpoint::Open(std::string_view(HAULWAY_TESTDATA "/golden/tied.pt"));
  ASSERT_TRUE(checkpoint.ok());
  std::vector<std::byte> small(5);
  const Status status = (*checkpoint)->Read(*(*checkpoint)->Find("row"), small);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "memory for the tensor: expected 12 bytes, found 5");
}

// Vectors computed from the format's formula.
TEST(PayloadOffset, MatchesTheVectorsOfTheFormat) {
  struct Vector {
    uint64_t header, name, size, alignment, payload;
  };
  constexpr uint64_t kM = 0xFFFFFFFF;
  constexpr Vector kVectors[] = {
      {0, 16, 500, 64, 64},
      {0, 10, 1, 64, 64},
      {128, 14, 0, 64, 192},
      {1000, 14, 4096, 64, 1088},
      {1000, 14, 4096, 4096, 4096},
      {1000, 14, kM - 1, 64, 1088},
      {1000, 14, kM, 64, 1088},
      {kM - 1, 14, 10, 64, 4294967360},
      {kM, 14, 10, 64, 4294967360},
      {4294968296, 14, 10, 64, 4294968384},
      {4294968296, 14, 0, 64, 4294968384},
      {4294968296, 14, 4294967296, 64, 4294968384},
      {4294968296, 14, 4294967296, 4096, 4294971392},
  };
  for (const Vector& v : kVectors) {
    EXPECT_EQ(ComputePayloadOffset(v.header, v.name, v.size, v.alignment),
              v.payload)
        << v.header << " " << v.size;
  }
}

TEST(Archive, ReadsARecordWholeInPiecesAndInParallel) {
  const std::string path = HAULWAY_TESTDATA "/small.pt";
  const auto archive = ArchiveReader::Open(*OpenFileSource(path));
  ASSERT_TRUE(archive.ok()) << archive.status().message();
  EXPECT_EQ((*archive)->archive_name(), "small");
  EXPECT_EQ((*archive)->version(), 3u);
  EXPECT_EQ((*archive)->serialization_id().size(), 40u);

  const RecordInfo* record = (*archive)->Find("data/3");
  ASSERT_NE(record, nullptr);
  const auto whole = (*archive)->Read("data/3");
  ASSERT_TRUE(whole.ok());
  ASSERT_EQ(whole->size(), record->size);
  const std::string expected(reinterpret_cast<const char*>(whole->data()),
                             whole->size());

  std::string pieces;
  ASSERT_TRUE(
      (*archive)
          ->ReadChunked("data/3", 100,
                        [&](uint64_t offset, std::span<const std::byte> piece) {
                          EXPECT_EQ(offset, pieces.size());
                          EXPECT_LE(piece.size(), 100u);
                          pieces.append(
                              reinterpret_cast<const char*>(piece.data()),
                              piece.size());
                        })
          .ok());
  EXPECT_EQ(pieces, expected);

  for (size_t readers = 0; readers <= 10; ++readers) {
    const std::vector<std::shared_ptr<const ByteSource>> additional(
        readers, *OpenFileSource(path));
    std::string out(expected.size(), '?');
    ASSERT_TRUE((*archive)
                    ->ReadParallel("data/3", additional, 0,
                                   std::as_writable_bytes(std::span(out)))
                    .ok());
    EXPECT_EQ(out, expected) << readers;
  }

  const auto offset = (*archive)->DataOffset("data/3");
  ASSERT_TRUE(offset.ok());
  EXPECT_EQ(*offset % 64, 0u);
  EXPECT_EQ(ReadFile(path).substr(*offset, expected.size()), expected);
}

TEST(Archive, ChunksEndWithZero) {
  const auto archive =
      ArchiveReader::Open(*OpenFileSource(HAULWAY_TESTDATA "/small.pt"));
  ASSERT_TRUE(archive.ok());
  auto chunks = (*archive)->OpenChunks("data/3");
  ASSERT_TRUE(chunks.ok());
  std::vector<std::byte> piece(150);
  uint64_t total = 0;
  while (true) {
    const auto length = (*chunks)->Next(piece);
    ASSERT_TRUE(length.ok());
    if (*length == 0) break;
    total += *length;
  }
  EXPECT_EQ(total, (*chunks)->record_size());
}

TEST(Archive, StaysUsableAfterAskingForWhatIsNotThere) {
  const auto archive =
      ArchiveReader::Open(*OpenFileSource(HAULWAY_TESTDATA "/small.pt"));
  ASSERT_TRUE(archive.ok());
  EXPECT_FALSE((*archive)->Has("data/999"));
  EXPECT_EQ((*archive)->Read("data/999").status().code(), Code::kNotFound);
  EXPECT_EQ((*archive)->DataOffset("DATA/3").status().code(), Code::kNotFound);
  EXPECT_TRUE((*archive)->Read("data/3").ok());
}

TEST(Checkpoint, NullSourcesAreRefused) {
  for (const Status& status :
       {Checkpoint::Open(std::shared_ptr<const ByteSource>()).status(),
        Verify(nullptr).status(), ArchiveReader::Open(nullptr).status(),
        MakeSliceSource(nullptr, 0, 0).status(),
        MakeIstreamSource(nullptr).status(),
        ConcatenateSources({nullptr}, "parts").status(),
        Checkpoint::Open(MakeFunctionSource(8, nullptr, "none")).status()}) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("is null"), std::string_view::npos);
  }
}

// A FlakySource fails its first reads as networks do.
class FlakySource : public CountingSource {
 public:
  FlakySource(std::string bytes, int faults, bool is_remote)
      : CountingSource(std::move(bytes)),
        faults_(faults),
        is_remote_(is_remote) {}
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const Status status = CountingSource::ReadAt(offset, out);
    return reads > faults_ ? status : Status(Code::kTimeout, "no answer");
  }
  SourceTraits Look(std::span<const ByteRange>) const override {
    return {.remote = is_remote_};
  }

 private:
  const int faults_;
  const bool is_remote_;
};

TEST(Checkpoint, OpeningIsRepeatedAsOftenAsTold) {
  const auto open = [](int faults, int retries, bool is_remote = false) {
    const auto source =
        std::make_shared<FlakySource>(ManyTensors(1), faults, is_remote);
    return Checkpoint::Open(source, {}, retries).status().code();
  };
  EXPECT_EQ(open(3, 3), Code::kOk);
  EXPECT_EQ(open(4, 3), Code::kTimeout);
  EXPECT_EQ(open(1, 0), Code::kTimeout);
  // The source of a server has retried already.
  EXPECT_EQ(open(1, 3, /*is_remote=*/true), Code::kTimeout);
}

}  // namespace
}  // namespace haulway
