// Tests how much memory a file can make the library allocate, and that the
// library never throws.

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "haulway/archive.h"
#include "haulway/checkpoint.h"
#include "haulway/load.h"
#include "haulway/verify.h"
#include "testing/test_sources.h"
#include "testing/zip_builder.h"

namespace {

// Bytes that operator new has allocated, and the calls that may still succeed.
std::atomic<int64_t> allocated{0};
std::atomic<int64_t> peak{0};
std::atomic<int64_t> calls_left{INT64_MAX};

}  // namespace

namespace {

// Each block is preceded by its size.
constexpr size_t kHead = alignof(std::max_align_t);

void* Allocate(size_t bytes) noexcept {
  if (calls_left.fetch_sub(1) == 0) return nullptr;
  auto* memory = static_cast<char*>(std::malloc(bytes + kHead));
  if (memory == nullptr) return nullptr;
  *reinterpret_cast<size_t*>(memory) = bytes;
  const int64_t now = allocated += static_cast<int64_t>(bytes);
  if (now > peak) peak = now;
  return memory + kHead;
}

void* AllocateOrThrow(size_t bytes) {
  void* memory = Allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void Free(void* memory) noexcept {
  if (memory == nullptr) return;
  char* block = static_cast<char*>(memory) - kHead;
  allocated -= static_cast<int64_t>(*reinterpret_cast<size_t*>(block));
  std::free(block);
}

}  // namespace

// All forms are replaced: a sanitizer runtime defines each of them.
void* operator new(size_t bytes) { return AllocateOrThrow(bytes); }
void* operator new[](size_t bytes) { return AllocateOrThrow(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return Allocate(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return Allocate(bytes);
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  Free(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  Free(memory);
}

namespace haulway {
namespace {

using test::BuildZip;
using test::BuiltZip;
using test::CheckpointRecords;
using test::Little;
using test::ZipRecord;

Status OpenAndLoad(const std::shared_ptr<const ByteSource>& source,
                   Strictness strictness) {
  OpenOptions options;
  options.strictness = strictness;
  HAULWAY_ASSIGN(const auto checkpoint, Checkpoint::Open(source, options));
  std::vector<uint32_t> rows(checkpoint->index().storages.size());
  std::iota(rows.begin(), rows.end(), 0);
  return LoadStorages(*checkpoint, rows, {.threads = 1, .io = IoMode::kPread})
      .status();
}

std::string Unicode(const std::string& text) {
  return "X" + Little(text.size(), 4) + text;
}
std::string StorageId(const std::string& key) {
  return "(" + Unicode("storage") + "ctorch\nFloatStorage\n" + Unicode(key) +
         Unicode("cpu") + "K\x01tQ";
}
constexpr std::string_view kRebuild = "ctorch._utils\n_rebuild_tensor_v2\n";
constexpr std::string_view kHooks = "ccollections\nOrderedDict\n)R";

std::string Repeat(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

std::string ZipOf(const std::string& pickle, bool deflated = false) {
  auto records = CheckpointRecords("a", pickle, {{"0", "1234"}});
  records[0].deflated = deflated;
  return BuildZip(records).bytes;
}

// A pickle of 60 kB that gives 15,000 tensors names of 30 kB each.
TEST(Memory, LongNamesOfManyTensorsAreRefused) {
  const std::string pickle =
      "\x80\x02}" + Unicode(std::string(30'000, 'k')) + "](" +
      std::string(kRebuild) + "(" + StorageId("0") + std::string("K\0", 2) +
      "K\x01\x85K\x01\x85\x89" + std::string(kHooks) + "tR" +
      std::string("q\0", 2) + Repeat(std::string("h\0", 2), 15'000) + "es.";
  const std::string file = ZipOf(pickle);
  const int64_t before = allocated;
  peak = before;
  const Status status = OpenAndLoad(test::InMemory(file), Strictness::kStrict);
  EXPECT_EQ(status.code(), Code::kLimit) << status.message();
  EXPECT_NE(status.message().find("names and shapes"), std::string::npos);
  EXPECT_LT(peak - before, int64_t{48} << 20);
}

// Each tensor has 64 dimensions and takes five bytes of pickle.
TEST(Memory, ManyTensorsOfManyDimensionsAreRefused) {
  const std::string dimensions = "(" + Repeat("K\x01", 64) + "t";
  const std::string pickle =
      "\x80\x02](" + std::string(kRebuild) + "q\x01(" + StorageId("0") +
      std::string("K\0", 2) + dimensions + dimensions + "\x89" +
      std::string(kHooks) + "tq\x02R" + Repeat("h\x01h\x02R", 100'000) + "e.";
  const std::string file = ZipOf(pickle);
  const int64_t before = allocated;
  peak = before;
  const Status status = OpenAndLoad(test::InMemory(file), Strictness::kStrict);
  EXPECT_EQ(status.code(), Code::kLimit) << status.message();
  EXPECT_LT(peak - before, static_cast<int64_t>(256 * file.size()));
}

TEST(Memory, APickleMayNotInflateAsMuchAsAPayload) {
  const std::string pickle = "\x80\x02(" + std::string(1'000'000, ']') + "l.";
  const std::string file = ZipOf(pickle, /*deflated=*/true);
  ASSERT_LT(file.size(), 5'000u);
  for (const auto strictness : {Strictness::kStrict, Strictness::kLenient}) {
    const Status status = OpenAndLoad(test::InMemory(file), strictness);
    EXPECT_EQ(status.code(), Code::kLimit) << status.message();
    EXPECT_NE(status.message().find("max_metadata_inflate_ratio 64"),
              std::string::npos)
        << status.message();
  }
  const auto report = Scan(test::InMemory(file), {});
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->safe());
  OpenOptions wider;
  wider.limits.max_metadata_inflate_ratio = 1100;
  EXPECT_EQ(Checkpoint::Open(test::InMemory(file), wider).status().code(),
            Code::kLimit)
      << "the tree is not in proportion to the file";
  wider.limits.max_tree_bytes_per_stored_byte = 128 * 1100;
  wider.limits.max_tree_bytes_per_byte = 128;
  const auto opened = Checkpoint::Open(test::InMemory(file), wider);
  EXPECT_TRUE(opened.ok()) << opened.status().message();
}

// Directory entries of 60 bytes that all refer to one local header with an
// extra field of 64 KiB, or to one large payload.
TEST(Memory, StoragesThatShareARecordTakeNoMoreThanTheFile) {
  std::vector<test::NamedTensor> tensors;
  std::vector<std::pair<std::string, std::string>> storages;
  for (int i = 0; i < 500; ++i) {
    const std::string key = std::to_string(1'000 + i);
    tensors.push_back({key, "FloatStorage", key, 1, {1}});
    storages.emplace_back(key, "1234");
  }
  auto records =
      CheckpointRecords("a", test::PickleStateDict(tensors), storages);
  size_t first = 0;
  while (records[first].name != "a/data/1000") ++first;
  records[first].extra_padding = 60'000;
  BuiltZip zip = BuildZip(records, {.alignment = 1});
  for (size_t i = first; i < first + 500; ++i) {
    test::Put(&zip.bytes, zip.records[i].entry + 42, zip.records[first].header,
              4);
  }
  const Status status =
      OpenAndLoad(test::InMemory(zip.bytes), Strictness::kLenient);
  EXPECT_EQ(status.code(), Code::kCorrupt) << status.message();
  EXPECT_NE(status.message().find("records of storages overlap"),
            std::string::npos)
      << status.message();
  VerifyOptions options;
  options.open.strictness = Strictness::kLenient;
  const auto report = Verify(test::InMemory(zip.bytes), options);
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->ok);
}

// In lenient mode, many spellings of a name may refer to one record.
TEST(Memory, StoragesOfOneRecordInManyCasesTakeNoMoreThanTheFile) {
  std::vector<test::NamedTensor> tensors;
  for (int i = 0; i < 256; ++i) {
    std::string key = "abcdefgh";
    for (int bit = 0; bit < 8; ++bit) {
      if ((i >> bit & 1) != 0) key[bit] = static_cast<char>(key[bit] - 32);
    }
    tensors.push_back({key, "FloatStorage", key, 4'096, {4'096}});
  }
  const std::string file =
      BuildZip(CheckpointRecords("a", test::PickleStateDict(tensors),
                                 {{"abcdefgh", std::string(16'384, 'x')}}))
          .bytes;
  const Status status = OpenAndLoad(test::InMemory(file), Strictness::kLenient);
  EXPECT_EQ(status.code(), Code::kCorrupt) << status.message();
}

std::string TarMember(const std::string& name, const std::string& data) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  char size[13];
  std::snprintf(size, sizeof size, "%011o", static_cast<unsigned>(data.size()));
  header.replace(124, 11, size, 11);
  header[156] = '0';
  unsigned sum = 8 * ' ';
  for (const char c : header) sum += static_cast<unsigned char>(c);
  char digits[8];
  std::snprintf(digits, sizeof digits, "%06o", sum);
  header.replace(148, 7, digits, 7);
  header[155] = ' ';
  return header + data + std::string((512 - data.size() % 512) % 512, '\0');
}

// A source that counts its reads.
TEST(Memory, PicklesOfATarShareTheirReads) {
  std::string storages = "\x80\x02M" + Little(20'000, 2) + ".";
  for (int i = 0; i < 20'000; ++i) {
    storages += "\x80\x02J" + Little(i, 4) + Unicode("cpu") +
                "ctorch\nFloatStorage\n\x87." + Little(1, 8) + "1234";
  }
  storages += "\x80\x02].";
  const std::string file =
      TarMember("storages", storages) +
      TarMember("tensors", std::string("\x80\x02K\0.", 5)) +
      TarMember("pickle", "\x80\x02}.") + TarMember("sys_info", "\x80\x02}.") +
      std::string(1024, '\0');
  std::atomic<uint64_t> bytes_read{0};
  const auto source = MakeFunctionSource(
      file.size(),
      [&](uint64_t offset, std::span<std::byte> out) {
        bytes_read += out.size();
        std::memcpy(out.data(), file.data() + offset, out.size());
        return Status();
      },
      "tar");
  const auto checkpoint = Checkpoint::Open(source, {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ((*checkpoint)->index().storages.size(), 20'000u);
  EXPECT_LT(bytes_read, 3 * file.size());
}

TEST(Memory, AnEmptyTarMemberIsTruncated) {
  const std::string file = TarMember("storages", "") +
                           TarMember("tensors", "") + TarMember("pickle", "") +
                           TarMember("sys_info", "") + std::string(1024, '\0');
  const auto checkpoint = Checkpoint::Open(test::InMemory(file), {});
  EXPECT_EQ(checkpoint.status().code(), Code::kTruncated)
      << checkpoint.status().message();
}

// Each allocation fails once. The library returns a status and does not throw.
TEST(Memory, AnAllocationThatFailsIsAStatus) {
  for (const char* name : {"must_fail/good.pt", "must_fail/good_legacy.pt"}) {
    std::ifstream in(std::string(HAULWAY_TESTDATA "/") + name,
                     std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    ASSERT_FALSE(bytes.empty());
    const auto source = test::InMemory(bytes);
    const auto attempt = [&](int which) -> Status {
      switch (which) {
        case 0:
          return Checkpoint::Open(source, {}).status();
        case 1:
          return Verify(source, {}).status();
        default:
          return Scan(source, {}).status();
      }
    };
    for (int which = 0; which < 3; ++which) {
      ASSERT_TRUE(attempt(which).ok());
      int failures = 0;
      while (true) {
        calls_left = failures;
        const Status status = attempt(which);
        const bool reached = calls_left < 0;
        calls_left = INT64_MAX;
        if (!reached) break;
        ++failures;
        if (!status.ok()) {
          EXPECT_EQ(status.code(), Code::kLimit) << status.message();
        }
      }
      EXPECT_GT(failures, 10) << name;
    }
    const auto checkpoint = Checkpoint::Open(source, {});
    ASSERT_TRUE(checkpoint.ok());
    const std::vector<uint32_t> rows = {0};
    for (int left = 0; left < 100; ++left) {
      calls_left = left;
      const Status status =
          LoadStorages(**checkpoint, rows, {.threads = 2, .io = IoMode::kPread})
              .status();
      calls_left = INT64_MAX;
      if (!status.ok()) {
        EXPECT_EQ(status.code(), Code::kLimit) << status.message();
      }
    }
  }
}

}  // namespace
}  // namespace haulway
