#include "npy/npz_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/digest.h"
#include "testing/npy_builder.h"
#include "testing/test_sources.h"

namespace haulway::npy {
namespace {

using haulway::test::ZipRecord;
using test::Array;
using test::Zip;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::string_literals;

std::shared_ptr<const ByteSource> Counted(const std::string& bytes) {
  return std::make_shared<const haulway::test::CountingSource>(bytes);
}

Result<std::unique_ptr<const FormatReader>> OpenArchive(
    const std::string& bytes, Strictness strictness = Strictness::kStrict) {
  OpenOptions options;
  options.strictness = strictness;
  return OpenNpz(Counted(bytes), options);
}

std::string WhyRefused(const std::string& bytes) {
  return std::string(OpenArchive(bytes).status().message());
}

// Returns the bytes of a storage as a load does, after a check of the CRC-32.
Result<std::string> Read(const FormatReader& reader, uint32_t row) {
  const StorageInfo& storage = reader.index().storages[row];
  std::vector<std::byte> frame(storage.frame_end - storage.frame_offset);
  HAULWAY_TRY(reader.source()->ReadAt(storage.frame_offset, frame));
  const std::span<const std::byte> bytes(frame);
  const uint64_t before = storage.offset - storage.frame_offset;
  HAULWAY_TRY(reader.CheckFrame(row, bytes.first(before),
                                bytes.subspan(before + storage.stored_bytes)));
  std::string out(storage.nbytes, '\0');
  const auto stored = bytes.subspan(before, storage.stored_bytes);
  const auto memory = std::as_writable_bytes(std::span(out));
  if (storage.encoding == Encoding::kDeflate) {
    HAULWAY_TRY(reader.Decode(row, bytes.first(before), 0, stored, memory));
  } else {
    std::copy(stored.begin(), stored.end(), memory.begin());
  }
  EXPECT_EQ(Crc32(0, memory), storage.crc32) << row;
  return out;
}

// Returns the bytes, or the error message.
std::string Content(const FormatReader& reader, uint32_t row) {
  const auto bytes = Read(reader, row);
  return bytes.ok() ? *bytes : std::string(bytes.status().message());
}

std::string Example(bool deflated) {
  return Zip({{"w.npy", Array("'<f4'", "(2, 3)", std::string(24, 'a')),
               deflated},
              {"W.npy", Array("'>i2'", "(2,)", "abcd"), deflated},
              {"deep/empty.npy", Array("'<f8'", "(0, 4)", ""), deflated}})
      .bytes;
}

TEST(Npz, BecomesAFlatIndexOfItsMembers) {
  for (const bool deflated : {false, true}) {
    const auto reader = OpenArchive(Example(deflated));
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    const CheckpointIndex& index = (*reader)->index();
    EXPECT_EQ(index.format, Format::kNpz);
    EXPECT_TRUE(index.flat);
    ASSERT_EQ(index.entries.size(), 3u);
    EXPECT_EQ(index.entries[0].name, "w");
    EXPECT_EQ(index.entries[1].name, "W");
    EXPECT_EQ(index.entries[2].name, "deep/empty");
    EXPECT_THAT(index.tensors[0].shape, ElementsAre(2, 3));
    EXPECT_EQ(index.storages[0].nbytes, 24u);
    EXPECT_EQ(index.storages[1].swap_bytes, 2);
    EXPECT_EQ(index.storages[0].encoding,
              deflated ? Encoding::kDeflate : Encoding::kRaw);
    EXPECT_EQ(Content(**reader, 0), std::string(24, 'a'));
    EXPECT_EQ(Content(**reader, 1), "abcd");
  }
}

TEST(Npz, ObjectsAreRefusedByNameAndTheOthersRead) {
  for (const bool deflated : {false, true}) {
    const auto reader = OpenArchive(
        Zip({{"objects.npy", Array("'|O'", "(1,)", "\x80\4K\1."), deflated},
             {"text.npy", Array("'<U1'", "(1,)", "t\0\0\0"s), deflated},
             {"good.npy", Array("'<i1'", "(2,)", "ab"), deflated}})
            .bytes);
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    const CheckpointIndex& index = (*reader)->index();
    EXPECT_EQ(index.tensors[0].dtype, DType::kOpaque);
    EXPECT_EQ(index.tensors[1].dtype, DType::kOpaque);
    const Status objects = Read(**reader, 0).status();
    EXPECT_EQ(objects.code(), Code::kUnsafe);
    EXPECT_THAT(std::string(objects.message()),
                HasSubstr("in member 'objects.npy'"));
    const Status text = Read(**reader, 1).status();
    EXPECT_EQ(text.code(), Code::kUnsupported);
    EXPECT_THAT(std::string(text.message()), HasSubstr("in member 'text.npy'"));
    EXPECT_EQ(Content(**reader, 2), "ab");
  }
}

TEST(Npz, TwoMembersOfOneNameAreRefused) {
  const std::string twice = Zip({{"a.npy", Array("'<i1'", "(1,)", "1")},
                                 {"a.npy", Array("'<i1'", "(1,)", "2")}})
                                .bytes;
  EXPECT_THAT(WhyRefused(twice), HasSubstr("duplicate record 'a.npy'"));
  // NumPy returns the last of them.
  const auto reader = OpenArchive(twice, Strictness::kLenient);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  ASSERT_EQ((*reader)->index().entries.size(), 1u);
  EXPECT_EQ(Content(**reader, 0), "2");
}

TEST(Npz, WhatIsNoArrayIsNotListed) {
  const auto reader = OpenArchive(
      Zip({{"a.npy", Array("'<i1'", "(1,)", "1")}, {"read.me", "hello"}})
          .bytes);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->index().entries.size(), 1u);
  const Fact& others = (*reader)->index().facts.back();
  EXPECT_EQ(others.name, "other_members");
  EXPECT_EQ(others.value,
            FactValue(FactArray(std::vector<std::string>{"read.me"})));
}

TEST(Npz, IsKnownByItsFirstMember) {
  const auto is = [](const std::string& bytes) {
    return IsNpz(std::as_bytes(std::span(bytes))
                     .first(std::min<size_t>(bytes.size(), kHeadBytes)));
  };
  EXPECT_TRUE(is(Example(false)));
  EXPECT_FALSE(is(Zip({{"a/data.pkl", "x"}, {"a.npy", "y"}}).bytes));
  EXPECT_FALSE(is("PK\3\4"));
  EXPECT_FALSE(is(""));
  // A long name of the first record.
  const std::string long_name(60'000, 'n');
  EXPECT_TRUE(BeginsWithArray(*Counted(
      Zip({{long_name + ".npy", Array("'<i1'", "(1,)", "1")}}).bytes)));
  EXPECT_FALSE(
      BeginsWithArray(*Counted(Zip({{long_name, "x"}, {"a.npy", "y"}}).bytes)));
}

TEST(Npz, OfNoArraysIsEmpty) {
  const std::string empty = "PK\5\6" + std::string(18, '\0');
  EXPECT_TRUE(IsNpz(std::as_bytes(std::span(empty))));
  const auto reader = OpenArchive(empty);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_TRUE((*reader)->index().entries.empty());
  const auto report = VerifyNpz(Counted(empty), {});
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->ok);
  EXPECT_FALSE(IsNpz(std::as_bytes(std::span(empty)).first(21)));
  EXPECT_FALSE(OpenArchive(empty + "x").ok());
}

TEST(Npz, RefusesEveryTruncation) {
  for (const bool deflated : {false, true}) {
    const std::string file = Example(deflated);
    for (size_t length = 0; length < file.size(); ++length) {
      const Code code = OpenArchive(file.substr(0, length)).status().code();
      EXPECT_TRUE(code == Code::kTruncated || code == Code::kCorrupt) << length;
    }
  }
}

TEST(Npz, NoFlippedBitGivesOtherBytes) {
  for (const bool deflated : {false, true}) {
    const std::string file =
        Zip({{"w.npy", Array("'<i1'", "(4,)", "abcd"), deflated}}).bytes;
    for (size_t bit = 0; bit < file.size() * 8; ++bit) {
      std::string flipped = file;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      VerifyOptions options;
      options.threads = 1;
      const auto report = VerifyNpz(Counted(flipped), options);
      ASSERT_TRUE(report.ok());
      const auto reader = OpenArchive(flipped);
      if (!reader.ok() || !report->ok) continue;
      // Only a field that does not affect the content was changed: a time, a
      // version.
      EXPECT_EQ(Content(**reader, 0), "abcd") << bit;
    }
  }
}

TEST(Npz, MembersThatAreWrongAreNamed) {
  const auto message = [](std::string member, bool deflated = false) {
    return WhyRefused(Zip({{"m.npy", std::move(member), deflated}}).bytes);
  };
  const std::string good = Array("'<i1'", "(4,)", "abcd");
  for (const bool deflated : {false, true}) {
    EXPECT_THAT(message(good.substr(0, 11), deflated),
                HasSubstr("in member 'm.npy'"));
    EXPECT_THAT(message(good.substr(0, 130), deflated),
                HasSubstr("array of 4 bytes ends past its end"));
    EXPECT_THAT(message(good + "e", deflated), HasSubstr("1 bytes follow"));
    EXPECT_THAT(message("no array at all", deflated),
                HasSubstr("does not begin with"));
  }
  EXPECT_THAT(message(""), HasSubstr("in member 'm.npy'"));
}

TEST(Npz, BombsPassALimit) {
  const std::string bomb =
      Zip({{"m.npy", Array("'<i1'", "(1000000,)", std::string(1000000, 'a')),
            true}})
          .bytes;
  OpenOptions options;
  options.limits.max_inflated_bytes = 1000000;
  EXPECT_EQ(OpenNpz(Counted(bomb), options).status().code(), Code::kLimit);
  options.limits = {.max_inflate_ratio = 100};
  EXPECT_EQ(OpenNpz(Counted(bomb), options).status().code(), Code::kLimit);
  EXPECT_TRUE(OpenNpz(Counted(bomb), {}).ok());
  options.limits = {.max_tensors = 2};
  EXPECT_EQ(OpenNpz(Counted(Example(true)), options).status().code(),
            Code::kLimit);
}

TEST(Npz, LongHeadersAreInflatedInSteps) {
  // A header that deflates badly: a structure with many fields.
  std::string descr = "[";
  for (int i = 0; i < 2000; ++i) {
    descr += "('f" + std::to_string(i * 7919 % 100000) + "', '<f4'), ";
  }
  descr += "]";
  const std::string member = test::Npy(
      "{'descr': " + descr + ", 'fortran_order': False, 'shape': (), }\n",
      std::string(8000, 'x'), 2);
  for (const bool deflated : {false, true}) {
    const auto reader = OpenArchive(Zip({{"s.npy", member, deflated}}).bytes);
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    EXPECT_THAT(std::string(Read(**reader, 0).status().message()),
                HasSubstr("structures"));
  }
}

TEST(Npz, OpensInAFewReads) {
  std::vector<ZipRecord> records;
  for (int i = 0; i < 300; ++i) {
    records.push_back({"a" + std::to_string(i) + ".npy",
                       Array("'<f4'", "(256,)", std::string(1024, 'x')),
                       i % 2 == 1});
  }
  const auto source =
      std::make_shared<const haulway::test::CountingSource>(Zip(records).bytes);
  ASSERT_TRUE(OpenNpz(source, {}).ok());
  EXPECT_LE(source->reads, 5);
}

TEST(Npz, VerifyFindsWhatChanged) {
  const std::string file = Example(false);
  const auto good = VerifyNpz(Counted(file), {});
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(good->ok);
  EXPECT_GT(good->checked_bytes, 128u);
  std::string changed = file;
  changed[changed.find("aaaa")] = 'b';
  const auto bad = VerifyNpz(Counted(changed), {});
  ASSERT_TRUE(bad.ok());
  EXPECT_FALSE(bad->ok);
  EXPECT_EQ(bad->findings.at(0).code, Code::kMismatch);
  EXPECT_THAT(bad->findings.at(0).message, HasSubstr("'w.npy'"));
}

}  // namespace
}  // namespace haulway::npy
