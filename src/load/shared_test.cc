#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/memory_file.h"
#include "base/page_bytes.h"
#include "haulway/load.h"
#include "load/shared_image.h"
#include "testing/goldens.h"
#include "testing/tensorizer_goldens.h"
#include "testing/test_sources.h"
#include "testing/zip_builder.h"

namespace haulway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::shared_ptr<const ByteSource> OwnedMemory(const std::string& bytes) {
  const auto owned = std::make_shared<std::string>(bytes);
  return MakeBufferSource(
      Buffer(owned, std::as_writable_bytes(std::span(*owned)), false));
}

// Returns a file with "a" of 5 bytes and "b" of 300,001 bytes.
std::string SmallFile() {
  std::vector<test::NamedTensor> tensors;
  std::vector<std::pair<std::string, std::string>> storages;
  for (const uint64_t size : {5u, 300'001u}) {
    const std::string key = std::to_string(storages.size());
    storages.emplace_back(key, std::string(size, static_cast<char>(size)));
    tensors.push_back({.name = storages.size() == 1 ? "a" : "b",
                       .storage_class = "ByteStorage",
                       .key = key,
                       .numel = size,
                       .shape = {size}});
  }
  return test::BuildZip(test::CheckpointRecords(
                            "a", test::PickleStateDict(tensors), storages))
      .bytes;
}

std::string Text(const Buffer& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void ExpectSame(const std::string& file) {
  const auto checkpoint = Checkpoint::Open(OwnedMemory(file));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const auto& storages = checkpoint.value()->index().storages;
  std::vector<uint32_t> rows;
  for (uint32_t row = 0; row < storages.size(); ++row) {
    if (storages[row].encoding != Encoding::kZeros) rows.push_back(row);
  }
  const auto loaded = LoadStorages(*checkpoint.value(), rows, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const auto shared = LoadShared(OwnedMemory(file));
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  const auto attached = AttachShared(shared.value()->handle());
  ASSERT_TRUE(attached.ok()) << attached.status().message();
  for (const auto& found : {*shared, *attached}) {
    ASSERT_EQ(found->buffers().size(), storages.size());
    EXPECT_EQ(found->checkpoint()->entries().size(),
              checkpoint.value()->entries().size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(Text(found->buffers()[rows[i]]),
                Text(loaded.value().buffers[i]));
    }
    for (size_t row = 0; row < storages.size(); ++row) {
      const Buffer& bytes = found->buffers()[row];
      EXPECT_EQ(bytes.size(), storages[row].nbytes);
      EXPECT_FALSE(bytes.writable());
      if (storages[row].encoding != Encoding::kZeros) continue;
      const uint64_t few = std::min<uint64_t>(bytes.size(), 64);
      const std::string zeros(few, '\0');
      EXPECT_EQ(Text(bytes.Slice(0, few)), zeros);
      EXPECT_EQ(Text(bytes.Slice(bytes.size() - few, few)), zeros);
    }
  }
}

TEST(Shared, HoldsWhatLoadingGivesForEveryGolden) {
  for (const std::string& name : test::GoldenNames(".pt")) {
    SCOPED_TRACE(name);
    ExpectSame(test::ReadGolden(name));
  }
}

TEST(Shared, HoldsWhatLoadingGivesOfTensorizerFiles) {
  for (const std::string& name : test::TensorizerFiles()) {
    const std::string file = test::TensorizerFile(name);
    const auto checkpoint = Checkpoint::Open(OwnedMemory(file));
    ASSERT_TRUE(checkpoint.ok());
    const auto& storages = checkpoint.value()->index().storages;
    if (std::ranges::any_of(storages, [](const StorageInfo& storage) {
          return storage.encoding == Encoding::kEncrypted;
        })) {
      continue;  // Other tests cover keys.
    }
    SCOPED_TRACE(name);
    ExpectSame(file);
  }
}

TEST(Shared, LoadsOnlyWhatIsWanted) {
  SharedLoadOptions options;
  options.wanted = [](std::string_view name) { return name == "a"; };
  const auto shared = LoadShared(OwnedMemory(SmallFile()), options);
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  const auto attached = AttachShared(shared.value()->handle());
  ASSERT_TRUE(attached.ok()) << attached.status().message();
  ASSERT_TRUE(attached.value()->entries().has_value());
  ASSERT_EQ(attached.value()->entries()->size(), 1u);
  const Entry& entry = attached.value()
                           ->checkpoint()
                           ->entries()[attached.value()->entries()->front()];
  EXPECT_EQ(entry.name, "a");
  EXPECT_EQ(attached.value()->buffers()[0].size(), 5u);
  EXPECT_EQ(attached.value()->buffers()[1].size(), 0u);
  EXPECT_LT(attached.value()->mapped_bytes(), 300'001u);
}

TEST(Shared, ViewsOfTheSourceAreMovedIn) {
  SharedLoadOptions options;
  options.load.io = IoMode::kMmap;
  const auto shared = LoadShared(OwnedMemory(SmallFile()), options);
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  EXPECT_EQ(Text(shared.value()->buffers()[0]), std::string(5, '\5'));
}

TEST(Shared, OutlivesItsLoaderAsLongAsABufferLives) {
  auto shared = LoadShared(OwnedMemory(SmallFile()));
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  const std::string handle = shared.value()->handle();
  auto attached = AttachShared(handle);
  ASSERT_TRUE(attached.ok());
  shared = Status(Code::kCancelled, "dropped");
  Buffer last = attached.value()->buffers()[0];
  attached = Status(Code::kCancelled, "dropped");
  EXPECT_TRUE(AttachShared(handle).ok());
  last = Buffer();
  const Status gone = AttachShared(handle).status();
  EXPECT_EQ(gone.code(), Code::kNotFound);
  EXPECT_EQ(gone.message(),
            "no process that can be looked into holds the shared memory; of "
            "shared memory");
}

TEST(Shared, CannotBeWrittenTo) {
  const auto shared = LoadShared(OwnedMemory(SmallFile()));
  ASSERT_TRUE(shared.ok());
  const auto address =
      reinterpret_cast<uintptr_t>(shared.value()->buffers()[0].data());
  auto* page = reinterpret_cast<void*>(address - address % PageBytes());
  EXPECT_NE(::mprotect(page, PageBytes(), PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(errno, EACCES);
}

TEST(Shared, AChildAttachesAfterItsParentLetGo) {
  auto shared = LoadShared(OwnedMemory(SmallFile()));
  ASSERT_TRUE(shared.ok());
  const std::string handle = shared.value()->handle();
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    // Wait until the parent has dropped its checkpoint.
    if (::read(ready[0], &byte, 1) != 1) ::_exit(2);
    ::_exit(AttachShared(handle).ok() ? 0 : 1);
  }
  shared = Status(Code::kCancelled, "dropped");
  EXPECT_TRUE(AttachShared(handle).ok()) << "the child holds it";
  ASSERT_EQ(::write(ready[1], "x", 1), 1);
  int result = 0;
  ASSERT_EQ(::waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  EXPECT_EQ(AttachShared(handle).status().code(), Code::kNotFound);
}

TEST(Shared, RefusesWhatIsNoHandle) {
  const std::string id(32, 'a');
  for (const std::string& handle :
       {std::string(), std::string("x"), "haulway-shm:1:" + id + "a",
        "haulway-shm:1:" + id.substr(1), "haulway-shm::" + id,
        "haulway-shm:-1:" + id, "haulway-shm:1;" + id,
        "haulway-shm:1:" + id.substr(1) + "/",
        "haulway-shm:99999999999999999999:" + id}) {
    const Status status = AttachShared(handle).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << handle;
  }
  EXPECT_EQ(AttachShared("haulway-shm:1:" + id).status().code(),
            Code::kNotFound);
}

// Makes a memory file with our label and the given content.
Result<UniqueFd> Forge(std::string_view id, std::span<const std::byte> bytes,
                       bool seal) {
  HAULWAY_ASSIGN(UniqueFd fd,
                 CreateMemoryFile("haulway-shm-" + std::string(id)));
  HAULWAY_TRY(WriteFully(fd.get(), 0, {{bytes}}));
  if (seal) HAULWAY_TRY(SealMemoryFile(fd.get()));
  return fd;
}

std::string HandleOf(std::string_view id) {
  return "haulway-shm:" + std::to_string(::getpid()) + ":" + std::string(id);
}

TEST(Shared, RefusesMemoryThatCouldChange) {
  const std::string id = "0123456789abcdef0123456789abcdef";
  const std::vector<std::byte> bytes(kSharedHeaderBytes);
  const auto fd = Forge(id, bytes, /*seal=*/false);
  ASSERT_TRUE(fd.ok());
  const Status status = AttachShared(HandleOf(id)).status();
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not sealed"));
}

TEST(Shared, RefusesEveryTruncationAndSurvivesEveryFlip) {
  const auto shared = LoadShared(OwnedMemory(test::ReadGolden("example.pt")));
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  // Find the whole image through a storage's mapping.
  const auto& buffers = shared.value()->buffers();
  const std::byte* first = nullptr;
  for (const Buffer& bytes : buffers) {
    if (bytes.size() != 0 && (first == nullptr || bytes.data() < first)) {
      first = bytes.data();
    }
  }
  const auto address = reinterpret_cast<uintptr_t>(first);
  // The header is on some page below the first storage.
  const std::byte* base = first - address % 4096;
  while (std::memcmp(base, "HAULSHM\1", 8) != 0) base -= 4096;
  const std::span<const std::byte> image(base, shared.value()->mapped_bytes());
  ASSERT_TRUE(ParseSharedImage(image).ok());
  uint64_t index_offset = 0;
  uint64_t index_bytes = 0;
  std::memcpy(&index_offset, base + 8, 8);
  std::memcpy(&index_bytes, base + 16, 8);
  for (uint64_t size = index_offset; size < index_offset + index_bytes;
       ++size) {
    EXPECT_FALSE(ParseSharedImage(image.subspan(0, size)).ok()) << size;
  }
  EXPECT_FALSE(ParseSharedImage(image.subspan(0, 24)).ok());
  EXPECT_FALSE(ParseSharedImage({}).ok());

  std::vector<std::byte> changed(image.begin(), image.end());
  const auto flip = [&](uint64_t at) {
    for (const int bit : {0, 7}) {
      changed[at] ^= static_cast<std::byte>(1 << bit);
      (void)ParseSharedImage(changed);
      changed[at] ^= static_cast<std::byte>(1 << bit);
    }
  };
  for (uint64_t at = 0; at < 24; ++at) flip(at);
  for (uint64_t at = 0; at < index_bytes; ++at) flip(index_offset + at);
}

TEST(Shared, AttachingToADamagedIndexFailsOrGivesItsBytes) {
  const std::vector<Recording::File> files = [] {
    Recording recording;
    const std::string file = SmallFile();
    recording.AddFile("", file.size());
    recording.AddRange(0, 0, std::as_bytes(std::span(file)));
    return recording.files();
  }();
  const auto image = [&](std::span<const SharedRange> storages,
                         const std::optional<std::vector<uint32_t>>& entries) {
    std::vector<std::byte> bytes(kSharedHeaderBytes + 8192);
    const auto index = EncodeSharedIndex(files, storages, entries);
    const auto header = EncodeSharedHeader(bytes.size(), index.size());
    std::ranges::copy(header, bytes.begin());
    bytes.insert(bytes.end(), index.begin(), index.end());
    return bytes;
  };
  const auto attach = [](const std::vector<std::byte>& bytes) {
    const std::string id = "fedcba9876543210fedcba9876543210";
    const auto fd = Forge(id, bytes, /*seal=*/true);
    EXPECT_TRUE(fd.ok());
    return AttachShared(HandleOf(id)).status();
  };
  const SharedRange a = {4096, 5};
  const SharedRange none;
  EXPECT_TRUE(attach(image({{a, none}}, {{0}})).ok());
  const auto expect = [&](const std::vector<std::byte>& bytes,
                          const char* message) {
    const Status status = attach(bytes);
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_THAT(std::string(status.message()), StartsWith(message));
  };
  expect(image({{a, none}}, std::nullopt), "a storage is missing");
  expect(image({{a, none}}, {{1}}), "a storage is missing");
  expect(image({{a, none}}, {{2}}), "no entry 2: expected below 2");
  expect(image({{a}}, {{0}}), "storages differ: expected 2, found 1");
  expect(image({{{4096, 6}, none}}, {{0}}),
         "size of a storage differs: expected 5, found 6");
  expect(image({{{4096 + 8190, 5}, none}}, {{0}}),
         "a storage ends past the shared memory");
  expect(image({{{0, 5}, none}}, {{0}}),
         "a storage ends past the shared memory");
}

TEST(Recording, KeepsWhatWasReadAndNothingElse) {
  const std::string text = "0123456789abcdef";
  const auto recording = std::make_shared<Recording>();
  const auto source = RecordSource(OwnedMemory(text), recording);
  std::string out(4, '\0');
  const auto read = [&](uint64_t offset, size_t length) {
    out.resize(length);
    return source->ReadAt(offset, std::as_writable_bytes(std::span(out))).ok();
  };
  EXPECT_FALSE(source->View(0, 1).has_value());
  ASSERT_TRUE(read(8, 2));
  ASSERT_TRUE(read(2, 2));
  ASSERT_TRUE(read(4, 1));  // Touches the previous range.
  ASSERT_TRUE(read(3, 6));  // Joins all ranges.
  ASSERT_TRUE(read(14, 2));
  ASSERT_TRUE(read(4, 2));  // Recorded already.
  EXPECT_FALSE(read(15, 2));
  recording->Stop();
  ASSERT_TRUE(read(0, 2));
  EXPECT_TRUE(source->View(0, 1).has_value());
  ASSERT_EQ(recording->files().size(), 1u);
  const auto& ranges = recording->files()[0].ranges;
  ASSERT_EQ(ranges.size(), 2u);
  const auto text_at = [&](uint64_t offset) {
    const auto& bytes = ranges.at(offset);
    return std::string(reinterpret_cast<const char*>(bytes.data()),
                       bytes.size());
  };
  EXPECT_EQ(text_at(2), "23456789");
  EXPECT_EQ(text_at(14), "ef");
}

}  // namespace
}  // namespace haulway
