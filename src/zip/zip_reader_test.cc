#include "zip/zip_reader.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "testing/test_sources.h"
#include "testing/zip_builder.h"

namespace haulway::zip {
namespace {

using test::BuildZip;
using test::BuiltZip;
using test::Put;
using test::ZipOptions;
using test::ZipRecord;

std::vector<ZipRecord> Records() {
  return {{"a/data.pkl", std::string(100, 'p')},
          {"a/empty", ""},
          {"a/data/0", std::string(5000, 'x'), /*deflated=*/true},
          {"a/data/1", "four"}};
}

// Opens the archive, locates every payload and reads it. Returns the first
// failure.
Status ReadAll(const std::string& bytes, Strictness strictness,
               std::vector<std::string>* payloads = nullptr) {
  HAULWAY_ASSIGN(const auto zip, ZipReader::Open(test::InMemory(bytes),
                                                 strictness, ParseLimits()));
  if (strictness == Strictness::kLenient || !zip->ComputeOffsets(64)) {
    HAULWAY_TRY(zip->ResolveOffsets());
  }
  for (const Entry& entry : zip->entries()) {
    HAULWAY_ASSIGN(const Buffer payload, zip->Read(entry));
    if (payloads != nullptr) {
      payloads->emplace_back(reinterpret_cast<const char*>(payload.data()),
                             payload.size());
    }
  }
  return Status();
}

TEST(ZipReader, ReadsTorchsZipsAndThoseOfOrdinaryTools) {
  for (const ZipOptions& options :
       {ZipOptions{}, ZipOptions{.alignment = 1}, ZipOptions{.alignment = 4096},
        ZipOptions{.padding = false}, ZipOptions{.zip64_end = false},
        ZipOptions{.padding = false, .descriptors = false, .zip64_end = false},
        ZipOptions{.descriptors = false, .saturated = true},
        ZipOptions{.padding = false, .saturated = true}}) {
    const BuiltZip zip = BuildZip(Records(), options);
    for (const auto mode : {Strictness::kStrict, Strictness::kLenient}) {
      std::vector<std::string> payloads;
      const Status status = ReadAll(zip.bytes, mode, &payloads);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(payloads.size(), 4u);
      for (size_t i = 0; i < 4; ++i) EXPECT_EQ(payloads[i], Records()[i].data);
    }
  }
}

TEST(ZipReader, ComputesOffsetsOfTorchsZipsAndOfNoOthers) {
  const auto computed = [](const BuiltZip& zip, uint64_t alignment) {
    const auto reader = ZipReader::Open(test::InMemory(zip.bytes),
                                        Strictness::kStrict, ParseLimits());
    EXPECT_TRUE(reader.ok()) << reader.status().message();
    return (*reader)->ComputeOffsets(alignment);
  };
  EXPECT_TRUE(computed(BuildZip(Records()), 64));
  EXPECT_FALSE(computed(BuildZip(Records()), 4096));
  EXPECT_TRUE(computed(BuildZip(Records(), {.alignment = 4096}), 4096));
  EXPECT_FALSE(computed(BuildZip(Records(), {.padding = false}), 64));
  EXPECT_FALSE(computed(BuildZip(Records(), {.descriptors = false}), 64));
  auto records = Records();
  records[3].gap = "x";
  EXPECT_FALSE(computed(BuildZip(records), 64));
}

// A change to a field, and the expected error.
struct Fault {
  std::string name;
  std::function<void(BuiltZip*)> make;
  Code code;
  std::string message;
  bool lenient_too;  // Whether kLenient refuses it too.
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class EveryField : public testing::TestWithParam<Fault> {};

TEST_P(EveryField, IsCheckedUnlessTorchTakesIt) {
  const Fault& fault = GetParam();
  BuiltZip zip = BuildZip(Records());
  ASSERT_TRUE(ReadAll(zip.bytes, Strictness::kStrict).ok());
  fault.make(&zip);
  const Status strict = ReadAll(zip.bytes, Strictness::kStrict);
  EXPECT_EQ(strict.code(), fault.code) << strict.message();
  EXPECT_NE(strict.message().find(fault.message), std::string_view::npos)
      << strict.message();
  const Status lenient = ReadAll(zip.bytes, Strictness::kLenient);
  EXPECT_EQ(!lenient.ok(), fault.lenient_too) << lenient.message();
}

using Change = std::function<void(BuiltZip*)>;

// Returns a change that overwrites a field of record `i`'s local header, or
// directory entry.
Change Local(size_t i, uint64_t field, uint64_t value, int width) {
  return [=](BuiltZip* zip) {
    Put(&zip->bytes, zip->records[i].header + field, value, width);
  };
}
Change Entry_(size_t i, uint64_t field, uint64_t value, int width) {
  return [=](BuiltZip* zip) {
    Put(&zip->bytes, zip->records[i].entry + field, value, width);
  };
}
Change End(uint64_t field, uint64_t value, int width) {
  return
      [=](BuiltZip* zip) { Put(&zip->bytes, zip->end + field, value, width); };
}
Change Zip64(uint64_t field, uint64_t value, int width) {
  return [=](BuiltZip* zip) {
    Put(&zip->bytes, zip->zip64_end + field, value, width);
  };
}
Change Locator(uint64_t field, uint64_t value, int width) {
  return [=](BuiltZip* zip) {
    Put(&zip->bytes, zip->locator + field, value, width);
  };
}
Change Descriptor(size_t i, uint64_t field, uint64_t value, int width) {
  return [=](BuiltZip* zip) {
    Put(&zip->bytes, zip->records[i].descriptor + field, value, width);
  };
}

constexpr Code kC = Code::kCorrupt;
constexpr Code kU = Code::kUnsupported;

INSTANTIATE_TEST_SUITE_P(
    Fields, EveryField,
    testing::Values(
        Fault{"Z03Signature", End(0, 0, 4), Code::kTruncated,
              "failed finding central directory", true},
        Fault{"Z06Disk", End(4, 1, 2), kC, "more than one disk", true},
        Fault{"Z06DirectoryDisk", End(6, 1, 2), kC, "more than one disk", true},
        Fault{"Z06BothDisks",
              [](BuiltZip* zip) { Put(&zip->bytes, zip->end + 4, 0x10001, 4); },
              kC, "more than one disk", false},
        Fault{"Z06Zip64Disk", Zip64(16, 1, 4), kC, "more than one disk", true},
        Fault{"Z06Zip64DirectoryDisk", Zip64(20, 1, 4), kC,
              "more than one disk", true},
        Fault{"Z06LocatorDisk", Locator(4, 1, 4), kC, "more than one disk",
              true},
        Fault{"Z06LocatorCount", Locator(16, 2, 4), kC, "more than one disk",
              true},
        Fault{"Z07LocatorPastTheEnd", Locator(8, ~uint64_t{0}, 8), kC,
              "does not point to", true},
        Fault{"Z07LocatorToItself",
              [](BuiltZip* zip) {
                Put(&zip->bytes, zip->locator + 8, zip->locator, 8);
              },
              kC, "does not point to", true},
        Fault{"Z07Zip64Signature", Zip64(0, 0, 4), kC, "does not point to",
              true},
        Fault{"Z07Zip64Size", Zip64(4, 43, 8), kC, "too short", true},
        Fault{"Z07Zip64SizeHuge", Zip64(4, ~uint64_t{0}, 8), kC,
              "does not end at its locator", false},
        Fault{"Z07NeededAndMissing",
              [](BuiltZip* zip) {
                Put(&zip->bytes, zip->locator, 0, 4);
                Put(&zip->bytes, zip->end + 16, 0xFFFFFFFF, 4);
              },
              kC, "needed and missing", true},
        Fault{"Z07OffsetsDiffer", End(16, 1, 4), kC, "contradicts", false},
        Fault{"Z07SizesDiffer", End(12, 1, 4), kC, "contradicts", false},
        Fault{"Z08CountsDiffer", End(8, 3, 2), kC, "two numbers", true},
        Fault{"Z08Zip64CountsDiffer", Zip64(24, 3, 8), kC, "two numbers", true},
        Fault{"Z08CountHuge",
              [](BuiltZip* zip) {
                Put(&zip->bytes, zip->zip64_end + 24, 1 << 24, 8);
                Put(&zip->bytes, zip->zip64_end + 32, 1 << 24, 8);
                Put(&zip->bytes, zip->end + 8, 0xFFFFFFFF, 4);
              },
              Code::kLimit, "max_entries", true},
        Fault{"Z08DirectoryHuge",
              [](BuiltZip* zip) {
                Put(&zip->bytes, zip->zip64_end + 40, uint64_t{1} << 40, 8);
                Put(&zip->bytes, zip->end + 12, 0xFFFFFFFF, 4);
              },
              Code::kLimit, "max_directory_bytes", true},
        Fault{"Z08DirectoryOutside",
              [](BuiltZip* zip) {
                Put(&zip->bytes, zip->zip64_end + 48, ~uint64_t{0}, 8);
                Put(&zip->bytes, zip->end + 16, 0xFFFFFFFF, 4);
              },
              kC, "runs into the end records", true},
        Fault{"Z09Signature", Entry_(1, 0, 0, 4), kC, "has no signature", true},
        Fault{"Z09Disk", Entry_(1, 34, 1, 2), kC, "another disk", true},
        Fault{"Z09Offset", Entry_(3, 42, 0x7FFFFFFF, 4), kC,
              "runs into the directory", true},
        Fault{"Z09NameLength", Entry_(3, 28, 0xFFFF, 2), kC,
              "ends past the directory", true},
        Fault{"Z09ExtraLength", Entry_(3, 30, 0xFFFF, 2), kC,
              "ends past the directory", true},
        Fault{"Z09SaturatedWithoutExtra", Entry_(3, 24, 0xFFFFFFFF, 4), kC,
              "needs a zip64 extra field", true},
        Fault{"Z10Method", Entry_(3, 10, 12, 2), kU, "compression method 12",
              true},
        Fault{"Z11Encrypted", Entry_(3, 8, 0x0809, 2), kU, "encrypted", true},
        Fault{"Z11Patched", Entry_(3, 8, 0x0828, 2), kU, "patched", true},
        Fault{"Z11Strong", Entry_(3, 8, 0x0848, 2), kU, "encrypted", true},
        Fault{"Z11Masked", Entry_(3, 8, 0x2808, 2), kU, "masked", true},
        Fault{"Z12Stored", Entry_(3, 24, 5, 4), kC, "is stored in 4 bytes",
              true},
        Fault{"Z13Deflated", Entry_(2, 20, 0, 4), kC, "has a size and no bytes",
              true},
        Fault{"Z14FolderAttribute", Entry_(3, 38, 0x10, 4), kC,
              "folder with data", false},
        Fault{"Z18Signature", Local(3, 0, 0, 4), kC, "payload of record", true},
        Fault{"Z18Flags", Local(3, 6, 0x0800, 2), kC, "has other flags", false},
        Fault{"Z18Method", Local(3, 8, 8, 2), kC, "has another method", false},
        Fault{"Z18Crc", Local(3, 14, 1, 4), kC, "has another CRC-32", false},
        Fault{"Z18Compressed", Local(3, 18, 1, 4), kC,
              "has another compressed size", false},
        Fault{"Z18Size", Local(3, 22, 1, 4), kC, "has another size", false},
        Fault{"Z18Saturated", Local(3, 22, 0xFFFFFFFF, 4), kC,
              "needs a zip64 extra field", false},
        Fault{"Z18Name", Local(3, 30, 'b', 1), kC, "has another name", false},
        Fault{"Z18NameLength", Local(3, 26, 0, 2), kC, "payload of record",
              false},
        Fault{"Z19Signature", Descriptor(3, 0, 0, 4), kC, "data descriptor",
              false},
        Fault{"Z19Crc", Descriptor(3, 4, 1, 4), kC, "data descriptor", false},
        Fault{"Z19Compressed", Descriptor(3, 8, 1, 4), kC, "data descriptor",
              false},
        Fault{"Z19Size", Descriptor(3, 12, 1, 4), kC, "data descriptor",
              false}),
    [](const testing::TestParamInfo<Fault>& info) { return info.param.name; });

TEST(ZipReader, FieldsThatSayNothingMayHaveAnyValue) {
  for (const Change& make :
       {Local(3, 4, 45, 2), Local(3, 10, 0x12345678, 4), Entry_(3, 4, 0x314, 2),
        Entry_(3, 6, 45, 2), Entry_(3, 12, 0x12345678, 4), Entry_(3, 36, 1, 2),
        Entry_(3, 38, 0x81A40000, 4), Zip64(12, 0x2D, 2), End(16, ~0u, 4),
        End(12, ~0u, 4), End(8, ~0u, 4)}) {
    BuiltZip zip = BuildZip(Records());
    make(&zip);
    const Status status = ReadAll(zip.bytes, Strictness::kStrict);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(ZipReader, ASignatureInAPayloadIsNoSecondEnd) {
  const std::string fake = std::string("PK\5\6", 4) + std::string(16, '\0');
  auto records = Records();
  records[3].data = fake + "??" + std::string(100, 'y');
  BuiltZip zip = BuildZip(records);
  // The comment of this false end record would reach exactly to the end of the
  // file.
  const uint64_t at = zip.records[3].payload;
  Put(&zip.bytes, at + 20, zip.bytes.size() - at - 22, 2);
  const Status status = ReadAll(zip.bytes, Strictness::kStrict);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(ZipReader, DirectoryFarFromTheEndIsReadOnItsOwn) {
  std::vector<ZipRecord> records;
  for (int i = 0; i < 3000; ++i) {
    records.push_back({"a/" + std::string(40, 'n') + std::to_string(i), "d"});
  }
  const auto source =
      std::make_shared<test::CountingSource>(BuildZip(records).bytes);
  const auto zip = ZipReader::Open(source, Strictness::kStrict, ParseLimits());
  ASSERT_TRUE(zip.ok()) << zip.status().message();
  EXPECT_EQ(source->reads.load(), 2);
  EXPECT_EQ((*zip)->entries().size(), 3000u);
}

TEST(ZipReader, LenientTakesTheLastOfEqualNamesInAnyCase) {
  const BuiltZip zip = BuildZip({{"a/x", "first"}, {"a/x", "last"}});
  const auto reader = ZipReader::Open(test::InMemory(zip.bytes),
                                      Strictness::kLenient, ParseLimits());
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->Find("a/x"), 1u);
  EXPECT_EQ((*reader)->Find("a/X"), NameIndex::kNone);
  EXPECT_EQ((*reader)->FindAnyCase("A/X"), 1u);
}

// A SummingSource sums the bytes requested by vectored reads: memory that the
// reader needs.
class SummingSource : public ByteSource {
 public:
  explicit SummingSource(std::shared_ptr<const ByteSource> all)
      : all_(std::move(all)) {}
  std::string_view name() const override { return "summed"; }
  uint64_t size() const override { return all_->size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    return all_->ReadAt(offset, out);
  }
  Status ReadMany(std::span<const ReadRequest> requests) const override {
    for (const ReadRequest& request : requests) sum += request.out.size();
    return all_->ReadMany(requests);
  }
  mutable uint64_t sum = 0;

 private:
  const std::shared_ptr<const ByteSource> all_;
};

// Entries of 50 bytes that all refer to one header with a 64 KiB extra field.
TEST(ZipReader, ManyEntriesOfOneHeaderTakeNoMoreMemoryThanTheFile) {
  std::vector<ZipRecord> records = {{"a/long", "data"}};
  records[0].extra_padding = 65'000;
  for (int i = 0; i < 2'000; ++i) records.push_back({"a/other", ""});
  BuiltZip zip = BuildZip(records, {.alignment = 1});
  for (const auto& record : zip.records) {
    Put(&zip.bytes, record.entry + 42, 0, 4);
  }
  const auto source =
      std::make_shared<SummingSource>(test::InMemory(zip.bytes));
  const auto reader =
      ZipReader::Open(source, Strictness::kLenient, ParseLimits());
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_TRUE((*reader)->ResolveOffsets().ok());
  EXPECT_LT(source->sum, zip.bytes.size());
}

}  // namespace
}  // namespace haulway::zip
