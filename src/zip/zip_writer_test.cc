#include "zip/zip_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/digest.h"
#include "haulway/archive.h"
#include "testing/layout_bytes.h"
#include "testing/zip_builder.h"
#include "zip/zip_format.h"

namespace haulway::zip {
namespace {

using ::haulway::test::Assemble;
using ::testing::HasSubstr;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text));
}

struct Record {
  std::string name;
  std::string data;
};

std::string LaidOut(const std::vector<Record>& records,
                    const ArchiveWriterOptions& options = {}) {
  std::vector<ArchiveRecord> borrowed;
  for (const Record& record : records) {
    borrowed.push_back(
        {record.name, record.data.size(), Bytes(record.data).data()});
  }
  const auto layout = LayOutArchive(borrowed, options);
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  return Assemble(**layout);
}

std::string Streamed(const std::vector<Record>& records,
                     const ArchiveWriterOptions& options = {}) {
  std::string out;
  const auto writer = *ArchiveWriter::Open(MakeMemorySink(&out), options);
  for (const Record& record : records) {
    EXPECT_TRUE(writer->WriteRecord(record.name, Bytes(record.data)).ok());
  }
  EXPECT_TRUE(writer->Finish().ok());
  return out;
}

std::vector<Record> SomeRecords() {
  return {{"data.pkl", std::string(300, 'p')},
          {"data/0", "PK\7\10" + std::string(100, 'x')},
          {"data/1", ""},
          {"data/2", std::string(5000, 'y')},
          {"data/3", "PK\7\10"},
          {"byteorder", "little"},
          {"version", "3\n"}};
}

// Everything up to the serialization id, which torch did not write at the time,
// equals the file of the worked example, which the builder reproduces.
TEST(ZipWriter, WritesRecordsAsTorchDoes) {
  const std::vector<Record> records = SomeRecords();
  std::vector<test::ZipRecord> expected;
  for (const Record& record : records) {
    expected.push_back({"archive/" + record.name, record.data});
  }
  const test::BuiltZip zip = test::BuildZip(expected);
  EXPECT_EQ(LaidOut(records).substr(0, zip.directory),
            zip.bytes.substr(0, zip.directory));
}

TEST(ZipWriter, LaysOutTheSameBytesThatItStreams) {
  for (const uint64_t alignment : {1u, 8u, 64u, 4096u, 32768u}) {
    for (const bool crc32 : {true, false}) {
      const ArchiveWriterOptions options{
          .archive_name = "x", .alignment = alignment, .compute_crc32 = crc32};
      EXPECT_EQ(LaidOut(SomeRecords(), options),
                Streamed(SomeRecords(), options));
    }
  }
}

TEST(ZipWriter, ItsFilesAreReadStrictly) {
  const std::string file = LaidOut(SomeRecords());
  const auto reader = ArchiveReader::Open(MakeMemorySource(Bytes(file)));
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ((*reader)->archive_name(), "archive");
  EXPECT_EQ((*reader)->version(), 3u);
  for (const Record& record : SomeRecords()) {
    const auto bytes = (*reader)->Read(record.name);
    ASSERT_TRUE(bytes.ok()) << bytes.status().message();
    EXPECT_TRUE(std::ranges::equal(bytes->bytes(), Bytes(record.data)));
  }
}

// Values at the limits of 32-bit fields, and offsets computed from the format's
// formula.
TEST(ZipWriter, UsesZip64WhereTorchDoes) {
  struct Row {
    uint64_t header, name, size, alignment, zip64, payload, next;
  };
  constexpr Row kRows[] = {
      {0, 16, 500, 64, 0, 64, 580},
      {128, 14, 0, 64, 0, 192, 192},
      {1000, 14, 4096, 4096, 0, 4096, 8208},
      {1000, 14, 0xFFFFFFFE, 64, 0, 1088, 4294968398},
      {1000, 14, 0xFFFFFFFF, 64, 20, 1088, 4294968407},
      {0xFFFFFFFE, 14, 10, 64, 0, 4294967360, 4294967386},
      {0xFFFFFFFF, 14, 10, 64, 12, 4294967360, 4294967394},
      {4294968296, 14, 0, 64, 12, 4294968384, 4294968384},
      {4294968296, 14, 4294967296, 64, 28, 4294968384, 8589935704},
      {4294968296, 14, 4294967296, 4096, 28, 4294971392, 8589938712},
  };
  for (const Row& row : kRows) {
    NewEntry entry;
    entry.name = std::string(row.name - 2, 'n');
    entry.header_offset = row.header;
    entry.size = entry.stored_size = row.size;
    Place(&entry, "a", row.alignment);
    EXPECT_EQ(entry.payload_offset, row.payload);
    EXPECT_EQ(entry.payload_end() + DescriptorBytes(entry), row.next);
    std::vector<std::byte> header(row.payload - row.header);
    EncodeLocalHeader(entry, "a", header);
    const uint64_t zip64 =
        EndBytes(std::span(&entry, 1), "a") - EndBytes({}, "a") - 46 - row.name;
    EXPECT_EQ(zip64, row.zip64);
    const auto length = LocalHeaderLength(header);
    ASSERT_TRUE(length.ok());
    EXPECT_EQ(*length, header.size());
    EXPECT_EQ(header[30 + row.name + row.zip64], std::byte{'F'});
  }
}

TEST(ZipWriter, AlignmentIsAPowerOfTwoUpTo32768) {
  for (uint64_t good = 1; good <= 32768; good *= 2) {
    EXPECT_TRUE(CheckAlignment(good).ok());
  }
  for (const uint64_t bad : {0, 3, 48, 100, 65536, 131072}) {
    EXPECT_EQ(CheckAlignment(bad).code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(CheckAlignment(131072).message(),
            "storage alignment: expected a power of two from 1 to 32768, "
            "found 131072");
}

TEST(ZipWriter, RefusesNamesThatAreEmptyTooLongOrTaken) {
  const auto fails = [](std::vector<ArchiveRecord> records) {
    const auto layout = LayOutArchive(std::move(records));
    EXPECT_EQ(layout.status().code(), Code::kInvalidArgument);
    return std::string(layout.status().message());
  };
  EXPECT_EQ(fails({{"", 0}}), "record has no name");
  EXPECT_THAT(fails({{std::string(65528, 'n'), 0}}), HasSubstr("too long"));
  EXPECT_EQ(fails({{"a", 0}, {"b", 0}, {"a", 0}}),
            "record 'a' is written twice");
  EXPECT_EQ(fails({{".data/serialization_id", 0}}),
            "record '.data/serialization_id' is written twice");
}

TEST(ArchiveWriter, FinishAddsWhatIsMissing) {
  std::string out;
  const auto writer = *ArchiveWriter::Open(MakeMemorySink(&out));
  writer->SetMinVersion(10);
  ASSERT_TRUE(writer->WriteRecord("data.pkl", Bytes("N.")).ok());
  ASSERT_TRUE(writer->WriteRecord(".data/serialization_id", Bytes("x")).ok());
  EXPECT_EQ(out, "");
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_TRUE(writer->finished());
  const auto records = writer->records();
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[1].name, ".data/version");
  EXPECT_EQ(records[2].name, "byteorder");
  EXPECT_EQ(records[3].name, ".data/serialization_id");
  const auto reader = *ArchiveReader::Open(MakeMemorySource(Bytes(out)));
  EXPECT_EQ(reader->version(), 10u);
  EXPECT_EQ(reader->serialization_id(), writer->serialization_id());
  EXPECT_EQ(writer->Finish().message(), "archive is finished already");
  EXPECT_EQ(writer->WriteRecord("a", {}).code(), Code::kInvalidArgument);
}

TEST(ArchiveWriter, DeflatedRecordsAreReadBack) {
  std::string out;
  const auto writer = *ArchiveWriter::Open(MakeMemorySink(&out));
  const std::string text(100'000, 'z');
  ASSERT_TRUE(writer->WriteRecord("big", Bytes(text), true).ok());
  ASSERT_TRUE(writer->WriteRecord("tiny", Bytes("abc"), true).ok());
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_TRUE(writer->records()[0].deflated);
  EXPECT_FALSE(writer->records()[1].deflated);
  EXPECT_LT(out.size(), 2000u);
  const auto reader = *ArchiveReader::Open(MakeMemorySource(Bytes(out)));
  EXPECT_TRUE(std::ranges::equal(reader->Read("big")->bytes(), Bytes(text)));
}

TEST(ArchiveWriter, MetadataRecordsAreHoles) {
  std::string out;
  const auto writer = *ArchiveWriter::Open(MakeMemorySink(&out));
  ASSERT_TRUE(writer->WriteRecordMetadata("data/0", 200'000).ok());
  ASSERT_TRUE(writer->WriteRecord("version", Bytes("3\n")).ok());
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_EQ(out.substr(64, 200'000), std::string(200'000, '\0'));
  EXPECT_EQ(writer->records()[0].crc32, 0u);
}

TEST(ArchiveWriter, FailureIsStickyAndNothingBecomesVisible) {
  int writes = 0;
  auto sink = MakeFunctionSink([&](std::span<const std::byte>) {
    return ++writes == 3 ? Status(Code::kIoError, "full") : Status();
  });
  const auto writer = *ArchiveWriter::Open(std::move(sink));
  EXPECT_EQ(writer->WriteRecord("a", Bytes("abc")).message(),
            "full; of stream");
  EXPECT_EQ(writer->WriteRecord("b", Bytes("abc")).message(),
            "full; of stream");
  EXPECT_EQ(writer->Finish().message(), "full; of stream");
  EXPECT_FALSE(writer->finished());
  EXPECT_EQ(writes, 3);
}

TEST(ArchiveWriter, ArchiveNameIsTheFileNameWithoutItsLastDot) {
  EXPECT_EQ(*ArchiveNameOf("a/b.tar.gz"), "b.tar");
  EXPECT_EQ(*ArchiveNameOf("model"), "model");
  EXPECT_EQ(*ArchiveNameOf("a\\m.pt"), "m");
  for (const char* bad : {"", ".pt", "a/", "a/.pt"}) {
    EXPECT_EQ(ArchiveNameOf(bad).status().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace haulway::zip
