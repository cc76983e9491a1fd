#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "haulway/load.h"
#include "tensor/cast.h"
#include "testing/goldens.h"
#include "testing/tensorizer_goldens.h"
#include "testing/test_sources.h"
#include "testing/zip_builder.h"

namespace haulway {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<DimSlice> Whole(const TensorInfo& tensor) {
  std::vector<DimSlice> slices;
  for (const int64_t size : tensor.shape) slices.push_back({0, size, 1});
  return slices;
}

// Computes the result of a request from the whole storage, by definition.
Bytes Expected(const Checkpoint& checkpoint, const TensorRequest& request) {
  const TensorInfo& tensor = checkpoint.index().tensors[request.tensor];
  const Buffer storage = *checkpoint.ReadStorage(tensor.storage);
  const std::vector<DimSlice> slices =
      request.slice.empty() ? Whole(tensor) : request.slice;
  std::vector<uint64_t> elements = {tensor.storage_offset};
  for (size_t d = 0; d < slices.size(); ++d) {
    std::vector<uint64_t> next;
    for (const uint64_t element : elements) {
      int64_t i = slices[d].start;
      for (uint64_t n = Count(slices[d]); n > 0; --n, i += slices[d].step) {
        next.push_back(element + static_cast<uint64_t>(i * tensor.strides[d]));
      }
    }
    elements = std::move(next);
  }
  const uint64_t item = ItemBytes(tensor.dtype);
  Bytes dense(elements.size() * item);
  std::byte* to = dense.data();
  const std::byte* const from = storage.bytes().data();
  for (const uint64_t element : elements) {
    std::memcpy(to, from + element * item, item);
    to += item;
  }
  if (!request.dtype.has_value()) return dense;
  Bytes cast(elements.size() * ItemBytes(*request.dtype));
  CastElements(dense.data(), tensor.dtype, cast.data(), *request.dtype,
               elements.size());
  return cast;
}

DimSlice SomeSlice(int64_t size, std::minstd_rand* random) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>((*random)() % static_cast<uint64_t>(n));
  };
  const int64_t step = 1 + below(3);
  int64_t low = below(size + 1);
  int64_t high = below(size + 1);
  if (low > high) std::swap(low, high);
  if (below(2) == 0) return {low, high, step};
  return {high - 1, low - 1, -step};
}

std::vector<TensorRequest> SomeRequests(const Checkpoint& checkpoint,
                                        uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<TensorRequest> requests;
  for (const Entry& entry : checkpoint.entries()) {
    const TensorInfo& tensor = checkpoint.index().tensors[entry.tensor];
    if (tensor.storage == kNoStorage || tensor.nbytes > 1 << 20) continue;
    requests.push_back({entry.tensor, {}, {}, {}});
    for (int i = 0; i < 3; ++i) {
      TensorRequest request{entry.tensor, {}, {}, {}};
      for (const int64_t size : tensor.shape) {
        request.slice.push_back(SomeSlice(size, &random));
      }
      const auto to = static_cast<DType>(random() % kDTypeCount);
      if (CanCast(tensor.dtype, to)) request.dtype = to;
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

// Gives every request its own memory.
std::vector<Bytes> MakeRoom(const Checkpoint& checkpoint,
                            std::vector<TensorRequest>* requests) {
  std::vector<Bytes> rooms(requests->size());
  for (size_t i = 0; i < rooms.size(); ++i) {
    rooms[i].assign(*RequestBytes(checkpoint, (*requests)[i]), std::byte{0xEE});
    (*requests)[i].out = rooms[i];
  }
  return rooms;
}

void ExpectRequests(const Checkpoint& checkpoint,
                    std::vector<TensorRequest> requests,
                    const LoadOptions& options) {
  const std::vector<Bytes> rooms = MakeRoom(checkpoint, &requests);
  const auto stats = LoadTensors(checkpoint, requests, options);
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  uint64_t bytes = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const TensorInfo& tensor = checkpoint.index().tensors[requests[i].tensor];
    ASSERT_TRUE(rooms[i] == Expected(checkpoint, requests[i]))
        << "request " << i << " of " << Name(tensor.dtype);
    uint64_t count = 1;
    const auto slices =
        requests[i].slice.empty() ? Whole(tensor) : requests[i].slice;
    for (const DimSlice& slice : slices) count *= Count(slice);
    bytes += count * ItemBytes(tensor.dtype);
  }
  EXPECT_EQ(stats->tensor_bytes, bytes);
  const auto plan = PlanTensors(checkpoint, requests, options);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->tensor_bytes, bytes);
  // Storages that are read whole may be merged further.
  EXPECT_LE(plan->read_bytes, stats->read_bytes);
  uint64_t read = 0;
  for (const PlannedRead& one : plan->reads) read += one.bytes;
  EXPECT_EQ(plan->read_bytes, read);
}

void ExpectFile(const std::string& name, const std::string& bytes,
                const OpenOptions& options = {}) {
  SCOPED_TRACE(name);
  const auto opened = Checkpoint::Open(test::InMemory(bytes), options);
  // Files that Open() refuses are covered by other tests.
  if (!opened.ok()) return;
  const Checkpoint& checkpoint = **opened;
  for (const uint64_t hole : {uint64_t{0}, uint64_t{100}, 64 * kKiB}) {
    for (const bool verify : {false, true}) {
      ExpectRequests(checkpoint,
                     SomeRequests(checkpoint, static_cast<uint32_t>(hole) + 1),
                     {.threads = verify ? 1 : 3,
                      .verify = verify,
                      .largest_hole = hole,
                      .chunk_bytes = 1});
    }
  }
}

TEST(LoadTensors, SlicesEveryGoldenFileOfTorch) {
  const auto names = test::GoldenNames(".pt");
  EXPECT_GT(names.size(), 30u);
  for (const std::string& name : names) {
    ExpectFile(name, test::ReadGolden(name));
  }
}

TEST(LoadTensors, SlicesEveryGoldenFileOfTensorizer) {
  std::array<std::byte, kKeyBytes> key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  for (const std::string& name : haulway::test::TensorizerFiles()) {
    OpenOptions options;
    if (name.find("passphrase") != name.npos) {
      options.key.passphrase = Secret("test");
    } else if (name.find("key") != name.npos) {
      options.key.key = Secret(key);
    }
    ExpectFile(name, haulway::test::TensorizerFile(name), options);
  }
}

std::string Noise(uint64_t size, uint32_t seed) {
  std::string bytes(size, '\0');
  std::minstd_rand random(seed);
  for (char& byte : bytes) byte = static_cast<char>(random() >> 8);
  return bytes;
}

// Returns a safetensors file. `json`: the header that describes `data`.
std::string Safetensors(const std::string& json, const std::string& data) {
  return test::Little(json.size(), 8) + json + data;
}

// A large matrix of 16-bit numbers between two small tensors, at an odd offset.
struct Matrix {
  static constexpr uint64_t kRows = 700;
  static constexpr uint64_t kColumns = 1000;
  static constexpr uint64_t kBytes = kRows * kColumns * 2;

  explicit Matrix(std::string padding = "")
      : file(Safetensors(
            R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,7]},)"
            R"("m":{"dtype":"BF16","shape":[700,1000],)"
            R"("data_offsets":[7,1400007]},)"
            R"("z":{"dtype":"U8","shape":[3],"data_offsets":[1400007,1400010]})"
            R"(})" +
                padding,
            Noise(kBytes + 10, 7))) {}

  std::string file;
};

uint32_t Row(const Checkpoint& checkpoint, std::string_view name) {
  return static_cast<uint32_t>(checkpoint.Find(name) -
                               checkpoint.index().tensors.data());
}

TEST(LoadTensors, SlicesMatricesLargerThanAWindow) {
  for (const char* padding : {"", " ", "  ", "       "}) {
    const Matrix matrix(padding);
    const auto checkpoint = *Checkpoint::Open(test::InMemory(matrix.file));
    const uint32_t m = Row(*checkpoint, "m");
    const DimSlice rows{0, 700, 1};
    const DimSlice columns{0, 1000, 1};
    const std::vector<std::vector<DimSlice>> slices = {
        {},
        {{100, 400, 1}, columns},
        {rows, {0, 1, 1}},
        {rows, {999, -1, -1}},
        {{699, -1, -1}, columns},
        {{0, 700, 7}, {500, 1000, 3}},
        {{50, 50, 1}, columns},
    };
    for (const auto& slice : slices) {
      for (const auto dtype : {DType::kBF16, DType::kF32}) {
        for (const uint64_t hole : {uint64_t{0}, 64 * kKiB}) {
          ExpectRequests(
              *checkpoint, {{m, slice, dtype, {}}},
              {.threads = 2, .largest_hole = hole, .chunk_bytes = 64 * kKiB});
        }
      }
    }
    // All slices in one call, so that each window has several targets.
    std::vector<TensorRequest> requests;
    for (const auto& slice : slices) requests.push_back({m, slice, {}, {}});
    requests.push_back({Row(*checkpoint, "z"), {}, {}, {}});
    requests.push_back({Row(*checkpoint, "a"), {}, {}, {}});
    ExpectRequests(*checkpoint, requests, {.threads = 2});
  }
}

TEST(LoadTensors, ReadsOnlyTheRowsItMust) {
  const Matrix matrix;
  const auto checkpoint = *Checkpoint::Open(test::InMemory(matrix.file));
  std::vector<TensorRequest> requests = {
      {Row(*checkpoint, "m"), {{350, 437, 1}, {0, 1000, 1}}, {}, {}}};
  const auto plan = PlanTensors(*checkpoint, requests);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->read_bytes, 87u * 1000 * 2);
  EXPECT_EQ(plan->tensor_bytes, 87u * 1000 * 2);
  // Every tenth row. The holes are too large to read.
  requests[0].slice = {{0, 700, 10}, {0, 1000, 1}};
  const auto rows = PlanTensors(*checkpoint, requests, {.largest_hole = 1000});
  EXPECT_EQ(rows->read_bytes, 70u * 1000 * 2);
  EXPECT_EQ(rows->reads.size(), 70u);
  EXPECT_TRUE(std::ranges::is_sorted(rows->reads, {}, &PlannedRead::offset));
}

TEST(LoadTensors, ReadsWhatTwoShareOnce) {
  const Matrix matrix;
  const auto checkpoint = *Checkpoint::Open(test::InMemory(matrix.file));
  const uint32_t m = Row(*checkpoint, "m");
  const auto plan = PlanTensors(
      *checkpoint,
      std::vector<TensorRequest>{{m, {}, {}, {}},
                                 {m, {}, DType::kF32, {}},
                                 {m, {{3, 9, 1}, {0, 10, 1}}, {}, {}}});
  EXPECT_EQ(plan->read_bytes, Matrix::kBytes);
  EXPECT_EQ(plan->tensor_bytes, 2 * Matrix::kBytes + 120);
}

TEST(LoadTensors, FewReadsServeManySmallTensors) {
  std::vector<std::pair<std::string, std::string>> storages;
  std::vector<test::NamedTensor> tensors;
  for (int i = 0; i < 500; ++i) {
    const std::string key = std::to_string(i);
    storages.emplace_back(key, Noise(1000, static_cast<uint32_t>(i)));
    tensors.push_back({.name = "t" + key,
                       .storage_class = "ByteStorage",
                       .key = key,
                       .numel = 1000,
                       .shape = {1000}});
  }
  const auto zip = test::BuildZip(
      test::CheckpointRecords("a", test::PickleStateDict(tensors), storages));
  const auto source = std::make_shared<const test::CountingSource>(zip.bytes);
  const auto checkpoint = *Checkpoint::Open(source);
  std::vector<TensorRequest> requests;
  for (uint32_t t = 0; t < 500; ++t) requests.push_back({t, {}, {}, {}});
  ExpectRequests(*checkpoint, requests, {});
  const auto rooms = MakeRoom(*checkpoint, &requests);
  const int before = source->reads;
  EXPECT_TRUE(LoadTensors(*checkpoint, requests).ok());
  EXPECT_EQ(source->reads - before, 1);
}

TEST(LoadTensors, RefusesBadRequestsBeforeReading) {
  const Matrix matrix;
  const auto source = std::make_shared<const test::CountingSource>(matrix.file);
  const auto checkpoint = *Checkpoint::Open(source);
  const uint32_t m = Row(*checkpoint, "m");
  Bytes room(Matrix::kBytes);
  const DimSlice columns{0, 1000, 1};
  struct Bad {
    TensorRequest request;
    Code code;
    const char* message;
  };
  const Bad cases[] = {
      {{99, {}, {}, room},
       Code::kInvalidArgument,
       "no tensor 99: expected below 3; of counted"},
      {{m, {columns}, {}, room},
       Code::kInvalidArgument,
       "slice: expected 2 dimensions, found 1; in 'm'; of counted"},
      {{m, {{0, 701, 1}, columns}, {}, room},
       Code::kInvalidArgument,
       "slice 0:701:1 of dimension 0 leaves it: expected indices of 700 "
       "elements; in 'm'; of counted"},
      {{m, {}, {}, std::span(room).first(10)},
       Code::kInvalidArgument,
       "memory for the tensor: expected 1400000 bytes, found 10; in 'm'; of "
       "counted"},
      {{m, {}, DType::kI32, room},
       Code::kUnsupported,
       "casting BF16 to I32 is not supported; in 'm'; of counted"},
  };
  const int before = source->reads;
  for (const Bad& bad : cases) {
    const auto stats = LoadTensors(*checkpoint, std::span(&bad.request, 1));
    ASSERT_FALSE(stats.ok());
    EXPECT_EQ(stats.status().code(), bad.code);
    EXPECT_EQ(stats.status().message(), bad.message);
  }
  EXPECT_EQ(source->reads, before);
}

TEST(LoadTensors, FailsAsTheSourceDoes) {
  const Matrix matrix;
  const auto source = std::make_shared<test::FaultSource>(
      matrix.file, Status(Code::kIoError, "the disk is on fire"));
  const auto checkpoint = *Checkpoint::Open(source);
  std::vector<TensorRequest> requests = {{Row(*checkpoint, "m"), {}, {}, {}}};
  const auto rooms = MakeRoom(*checkpoint, &requests);
  source->begin = 900'000;
  source->end = 900'001;
  for (const int threads : {1, 4}) {
    const auto stats = LoadTensors(*checkpoint, requests,
                                   {.threads = threads, .chunk_bytes = 1});
    ASSERT_FALSE(stats.ok());
    EXPECT_EQ(stats.status().message(), "the disk is on fire; of faulty");
  }
  // A damaged part that is not read does not matter.
  requests[0].slice = {{0, 100, 1}, {0, 1000, 1}};
  requests[0].out = requests[0].out.first(200'000);
  EXPECT_TRUE(LoadTensors(*checkpoint, requests).ok());
}

TEST(LoadTensors, StopsWhenToldTo) {
  const Matrix matrix;
  const auto checkpoint = *Checkpoint::Open(test::InMemory(matrix.file));
  std::vector<TensorRequest> requests = {{Row(*checkpoint, "m"), {}, {}, {}}};
  const auto rooms = MakeRoom(*checkpoint, &requests);
  std::atomic<bool> cancel{false};
  LoadOptions options{.threads = 2, .chunk_bytes = 1, .cancel = &cancel};
  uint64_t last = 0;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, Matrix::kBytes);
    last = done;
    if (done > total / 2) cancel = true;
  };
  const auto stats = LoadTensors(*checkpoint, requests, options);
  ASSERT_FALSE(stats.ok());
  EXPECT_EQ(stats.status().code(), Code::kCancelled);
  EXPECT_LT(last, Matrix::kBytes);
}

// A frame that contradicts the index is detected even if only a slice is read.
TEST(LoadTensors, ChecksTheFramesOfWhatItTouches) {
  const std::vector<std::pair<std::string, std::string>> storages = {
      {"0", Noise(600'000, 1)}, {"1", Noise(600'000, 2)}};
  std::vector<test::NamedTensor> tensors;
  for (const auto& [key, bytes] : storages) {
    tensors.push_back({.name = "t" + key,
                       .storage_class = "ByteStorage",
                       .key = key,
                       .numel = bytes.size(),
                       .shape = {1000, 600}});
  }
  test::BuiltZip zip = test::BuildZip(
      test::CheckpointRecords("a", test::PickleStateDict(tensors), storages));
  // Changes a letter of the second storage's name in the storage's local
  // header.
  constexpr size_t kNameAt = 30;
  zip.bytes[zip.records[2].header + kNameAt] ^= 1;
  const auto checkpoint = Checkpoint::Open(test::InMemory(zip.bytes));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  int failed = 0;
  for (uint32_t t = 0; t < 2; ++t) {
    std::vector<TensorRequest> requests = {
        {t, {{10, 20, 1}, {0, 600, 1}}, {}, {}}};
    const auto rooms = MakeRoom(**checkpoint, &requests);
    const auto stats = LoadTensors(**checkpoint, requests);
    if (stats.ok()) continue;
    ++failed;
    EXPECT_EQ(stats.status().code(), Code::kCorrupt);
  }
  EXPECT_EQ(failed, 1);
}

TEST(LoadTensors, VerifyReadsWholeStoragesAndFindsFlips) {
  const std::vector<std::pair<std::string, std::string>> storages = {
      {"0", Noise(600'000, 1)}};
  const auto records = test::CheckpointRecords(
      "a",
      test::PickleStateDict({{.name = "t",
                              .storage_class = "ByteStorage",
                              .key = "0",
                              .numel = 600'000,
                              .shape = {1000, 600}}}),
      storages);
  test::BuiltZip zip = test::BuildZip(records);
  size_t record = 0;
  while (!records[record].name.ends_with("data/0")) ++record;
  zip.bytes[zip.records[record].payload + 500'000] ^= 1;
  const auto checkpoint = *Checkpoint::Open(test::InMemory(zip.bytes));
  std::vector<TensorRequest> requests = {
      {0, {{10, 20, 1}, {0, 600, 1}}, {}, {}}};
  const auto rooms = MakeRoom(*checkpoint, &requests);
  EXPECT_TRUE(LoadTensors(*checkpoint, requests).ok());
  const auto checked = LoadTensors(*checkpoint, requests, {.verify = true});
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.status().code(), Code::kMismatch);
}

TEST(LoadTensors, FailsOnEveryTruncationOfWhatItReads) {
  const Matrix matrix;
  const auto whole = *Checkpoint::Open(test::InMemory(matrix.file));
  const uint64_t size = matrix.file.size();
  // The index describes the whole file; the source then loses its end.
  for (const uint64_t left : {size - 1, size - 4, size - 700'000, size / 4}) {
    const auto source = std::make_shared<test::FaultSource>(
        matrix.file, Status(Code::kTruncated, "file ends early"));
    const auto checkpoint = *Checkpoint::Open(source);
    source->begin = left;
    source->end = size;
    std::vector<TensorRequest> requests;
    for (uint32_t t = 0; t < 3; ++t) requests.push_back({t, {}, {}, {}});
    const auto rooms = MakeRoom(*checkpoint, &requests);
    const auto stats = LoadTensors(*checkpoint, requests);
    ASSERT_FALSE(stats.ok());
    EXPECT_EQ(stats.status().code(), Code::kTruncated);
  }
}

TEST(LoadTensors, NothingIsNothing) {
  const Matrix matrix;
  const auto checkpoint = *Checkpoint::Open(test::InMemory(matrix.file));
  const auto stats = LoadTensors(*checkpoint, {});
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->read_bytes, 0u);
}

}  // namespace
}  // namespace haulway
