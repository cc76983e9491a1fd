#include "haulway/source.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "testing/source_suite.h"

namespace haulway {
namespace {

using test::SourceCase;
using test::SourceSuite;

// A file that is removed at the end of its lifetime. Sources that opened it can
// still read it.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& bytes) {
    path_ = ::testing::TempDir() + "haulway-source-XXXXXX";
    ::close(::mkstemp(path_.data()));
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Buffer OwnedCopy(const std::string& bytes) {
  auto owner = std::make_shared<std::vector<std::byte>>(bytes.size());
  if (!bytes.empty()) std::memcpy(owner->data(), bytes.data(), bytes.size());
  const std::span<std::byte> all(*owner);
  return Buffer(std::move(owner), all, /*writable=*/true);
}

std::shared_ptr<const ByteSource> OfStream(const std::string& bytes) {
  auto stream = std::make_shared<std::istringstream>("head" + bytes);
  stream->seekg(4);
  return *MakeIstreamSource(stream);
}

std::shared_ptr<const ByteSource> OfFunction(const std::string& bytes) {
  return MakeFunctionSource(
      bytes.size(),
      [bytes](uint64_t offset, std::span<std::byte> out) {
        std::memcpy(out.data(), bytes.data() + offset, out.size());
        return Status();
      },
      "function");
}

// Makes a source over memory that lives until the end of the program.
std::shared_ptr<const ByteSource> OfMemory(const std::string& bytes) {
  static std::vector<std::unique_ptr<std::string>> kept;
  kept.push_back(std::make_unique<std::string>(bytes));
  return MakeMemorySource(std::as_bytes(std::span<const char>(*kept.back())));
}

// Makes a source of two parts if there are enough bytes.
std::shared_ptr<const ByteSource> OfParts(const std::string& bytes) {
  constexpr size_t kFirst = 4096;
  std::vector<std::shared_ptr<const ByteSource>> parts;
  parts.push_back(OfFunction(bytes.substr(0, kFirst)));
  if (bytes.size() > kFirst) parts.push_back(OfFunction(bytes.substr(kFirst)));
  return ConcatenateSources(std::move(parts), "parts")->source;
}

// Returns a plain source on a system that has no such mode.
std::shared_ptr<const ByteSource> OfFile(const std::string& bytes, IoMode io) {
  const TemporaryFile file(bytes);
  auto plain = *OpenFileSource(file.path());
  const auto source = plain->Reopen(io);
  if (source.status().code() == Code::kUnsupported) return plain;
  EXPECT_TRUE(source.ok()) << source.status().message();
  return *source;
}

INSTANTIATE_TEST_SUITE_P(
    Io, SourceSuite,
    ::testing::Values(
        SourceCase{"Memory", OfMemory, true},
        SourceCase{"Buffer",
                   [](const std::string& bytes) {
                     return MakeBufferSource(OwnedCopy(bytes));
                   },
                   true},
        SourceCase{"Istream", OfStream}, SourceCase{"Function", OfFunction},
        SourceCase{"Parts", OfParts},
        SourceCase{"File",
                   [](const std::string& bytes) {
                     return *OpenFileSource(TemporaryFile(bytes).path());
                   }},
        SourceCase{"Mmap",
                   [](const std::string& bytes) {
                     return *OpenMmapSource(TemporaryFile(bytes).path());
                   },
                   true},
        SourceCase{"Direct",
                   [](const std::string& bytes) {
                     return OfFile(bytes, IoMode::kDirect);
                   }},
        SourceCase{"Uring",
                   [](const std::string& bytes) {
                     return OfFile(bytes, IoMode::kUring);
                   }},
        SourceCase{"Snapshot",
                   [](const std::string& bytes) {
                     const TemporaryFile file(bytes);
                     const auto source = *OpenFileSource(file.path());
                     auto snapshot = source->Reopen(IoMode::kSnapshot);
                     // Snapshots are not available on every system.
                     return snapshot.ok() ? *snapshot
                                          : *source->Reopen(IoMode::kMmap);
                   },
                   true},
        SourceCase{
            "MmapOfDirect",
            [](const std::string& bytes) {
              return *OfFile(bytes, IoMode::kDirect)->Reopen(IoMode::kMmap);
            },
            true},
        SourceCase{"SliceOfUring",
                   [](const std::string& bytes) {
                     return *MakeSliceSource(
                         OfFile("before" + bytes + "after", IoMode::kUring), 6,
                         bytes.size());
                   }},
        SourceCase{"PartsOfFiles",
                   [](const std::string& bytes) {
                     const size_t half = bytes.size() / 8192 * 4096;
                     return ConcatenateSources(
                                {OfFile(bytes.substr(0, half), IoMode::kDirect),
                                 OfFile(bytes.substr(half), IoMode::kUring)},
                                "parts")
                         ->source;
                   }},
        SourceCase{"SliceOfFile",
                   [](const std::string& bytes) {
                     const TemporaryFile file("before" + bytes + "after");
                     return *MakeSliceSource(*OpenFileSource(file.path()), 6,
                                             bytes.size());
                   }},
        SourceCase{"SliceOfSliceOfBuffer",
                   [](const std::string& bytes) {
                     auto all = MakeBufferSource(OwnedCopy("ab" + bytes + "c"));
                     auto some = *MakeSliceSource(all, 1, bytes.size() + 2);
                     return *MakeSliceSource(some, 1, bytes.size());
                   },
                   true}),
    test::NameOf);

TEST(ConcatenateSources, StartsEveryPartOnAPage) {
  const auto all = ConcatenateSources(
      {MakeBufferSource(OwnedCopy("abc")), MakeBufferSource(OwnedCopy("")),
       MakeBufferSource(OwnedCopy("def"))},
      "all");
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->starts, (std::vector<uint64_t>{0, 4096, 4096}));
  EXPECT_EQ(all->source->size(), 4099u);
  std::string read(4099, 'x');
  ASSERT_TRUE(
      all->source->ReadAt(0, std::as_writable_bytes(std::span<char>(read)))
          .ok());
  EXPECT_EQ(read, "abc" + std::string(4093, '\0') + "def");
  const auto view = all->source->View(4097, 2);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(std::memcmp(view->data(), "ef", 2), 0);
  EXPECT_FALSE(all->source->View(1, 4).has_value());
}

TEST(ConcatenateSources, NamesThePartThatFails) {
  const auto broken = MakeFunctionSource(
      3,
      [](uint64_t, std::span<std::byte>) {
        return Status(Code::kIoError, "out of order");
      },
      "second");
  const auto all =
      ConcatenateSources({MakeBufferSource(OwnedCopy("abc")), broken}, "all");
  std::byte byte;
  EXPECT_EQ(all->source->ReadAt(4096, std::span(&byte, 1)).message(),
            "out of order; of second");
}

// A GatheringSource joins neighbours itself, as the source of a DCP directory
// does.
class GatheringSource : public ByteSource {
 public:
  std::string_view name() const override { return "gathering"; }
  uint64_t size() const override { return 1; }
  Status ReadAt(uint64_t, std::span<std::byte>) const override {
    return Status();
  }
  SourceTraits Look(std::span<const ByteRange>) const override {
    return {.gathers = true};
  }
};

TEST(ConcatenateSources, GathersIfAPartDoes) {
  const auto bytes = MakeBufferSource(OwnedCopy("abc"));
  const auto gathering = std::make_shared<GatheringSource>();
  EXPECT_FALSE(
      (*ConcatenateSources({bytes, bytes}, "all")).source->Look({}).gathers);
  EXPECT_TRUE((*ConcatenateSources({bytes, gathering}, "all"))
                  .source->Look({})
                  .gathers);
}

TEST(FileSource, OpensItsNeighboursOnly) {
  const TemporaryFile file("one");
  const TemporaryFile beside("two!");
  const std::string name = beside.path().substr(beside.path().rfind('/') + 1);
  for (const auto& source :
       {*OpenFileSource(file.path()), *OpenMmapSource(file.path())}) {
    const auto opened = source->OpenNeighbour(name);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    EXPECT_EQ((*opened)->size(), 4u);
    EXPECT_EQ((*opened)->View(0, 1).has_value(),
              source->View(0, 1).has_value());
    EXPECT_EQ(source->OpenNeighbour("none").status().code(), Code::kNotFound);
    for (const std::string wrong :
         {"", "/etc/passwd", "../x", "a/../x", "./a", "a//b", "a/"}) {
      EXPECT_EQ(source->OpenNeighbour(wrong).status().code(),
                Code::kInvalidArgument)
          << wrong;
    }
  }
  EXPECT_EQ(
      MakeBufferSource(OwnedCopy("x"))->OpenNeighbour("a").status().code(),
      Code::kUnsupported);
}

TEST(SliceSource, LiesWithinItsParent) {
  const auto parent = MakeBufferSource(OwnedCopy("0123456789"));
  EXPECT_TRUE(MakeSliceSource(parent, 10, 0).ok());
  EXPECT_EQ(MakeSliceSource(parent, 5, 6).status().code(), Code::kTruncated);
  EXPECT_EQ(MakeSliceSource(parent, 11, 0).status().code(), Code::kTruncated);
  EXPECT_EQ(MakeSliceSource(parent, ~uint64_t{0}, 2).status().code(),
            Code::kTruncated);
}

TEST(FileSource, SaysWhyAPathCannotBeOpened) {
  for (const auto open : {&OpenFileSource, &OpenMmapSource}) {
    const auto missing = open("/no/such/file.pt");
    EXPECT_EQ(missing.status().code(), Code::kNotFound);
    EXPECT_NE(missing.status().message().find("'/no/such/file.pt'"),
              std::string_view::npos)
        << missing.status().message();
    EXPECT_EQ(open(::testing::TempDir()).status().code(), Code::kUnsupported);
    EXPECT_EQ(open("/dev/null").status().code(), Code::kUnsupported);
  }
}

TEST(FileSource, SeesThatTheFileWasCutWhileItIsOpen) {
  const TemporaryFile file(std::string(1000, 'x'));
  const auto source = *OpenFileSource(file.path());
  ASSERT_EQ(::truncate(file.path().c_str(), 500), 0);
  std::byte out[10];
  EXPECT_TRUE(source->ReadAt(490, out).ok());
  EXPECT_EQ(source->ReadAt(495, out).code(), Code::kTruncated);
  EXPECT_EQ(source->size(), 1000u);
}

TEST(FileSource, IsTheSameFileWhenItIsReopenedWhateverItsNameLeadsTo) {
  const std::string bytes = "the file that was opened";
  const TemporaryFile file(bytes);
  const TemporaryFile other(std::string(bytes.size(), 'x'));
  const auto source = *OpenFileSource(file.path());
  ASSERT_EQ(::rename(other.path().c_str(), file.path().c_str()), 0);
  for (const IoMode io : {IoMode::kPread, IoMode::kMmap, IoMode::kUring}) {
    const auto again = source->Reopen(io);
    if (!again.ok()) continue;  // The test suite checks which modes must exist.
    std::string read(bytes.size(), '?');
    ASSERT_TRUE((*again)
                    ->ReadAt(0, std::as_writable_bytes(std::span<char>(read)))
                    .ok());
    EXPECT_EQ(read, bytes) << Name(io);
  }
}

TEST(FileSource, SeesWhatIsInThePageCache) {
  constexpr uint64_t kBytes = 8 << 20;
  const TemporaryFile file(std::string(kBytes, 'x'));
  const int fd = ::open(file.path().c_str(), O_RDONLY);
  ASSERT_EQ(::fsync(fd), 0);  // Dirty pages cannot be dropped.
  ::close(fd);
  const auto source = *OpenFileSource(file.path());
  const ByteRange all[] = {{0, kBytes}};
  EXPECT_GT(source->Look(all).resident, 0.9);
  source->DropCache(0, kBytes);
  if (source->Look(all).file_system != "ext4") return;  // tmpfs drops nothing.
  EXPECT_LT(source->Look(all).resident, 0.5);
  std::vector<std::byte> half(kBytes / 2);
  ASSERT_TRUE(source->ReadAt(0, half).ok());
  const ByteRange parts[] = {{0, kBytes / 4}, {kBytes / 4, kBytes / 4}};
  EXPECT_GT(source->Look(parts).resident, 0.9);
}

TEST(MmapSource, WritingToAViewNeverReachesTheFile) {
  const TemporaryFile file("unchanged");
  const auto source = *OpenMmapSource(file.path());
  const auto view = source->View(0, 9);
  ASSERT_TRUE(view.has_value() && view->writable());
  std::memcpy(view->mutable_bytes().data(), "CHANGED!!", 9);
  std::ifstream in(file.path());
  const std::string now{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(now, "unchanged");
}

// The number that the next open file gets.
int NextDescriptor() {
  const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(fd);
  return fd;
}

TEST(MmapSource, ViewsKeepNoDescriptorOnceTheSourceIsGone) {
  const TemporaryFile file("unchanged");
  const int before = NextDescriptor();
  auto source = *OpenMmapSource(file.path());
  const auto view = source->View(2, 7);
  source.reset();
  EXPECT_EQ(NextDescriptor(), before);
  EXPECT_EQ(std::memcmp(view->bytes().data(), "changed", 7), 0);
}

TEST(MemorySource, ItsViewsAreNotWritable) {
  const std::string bytes = "borrowed";
  const auto source =
      MakeMemorySource(std::as_bytes(std::span<const char>(bytes)));
  EXPECT_FALSE(source->View(0, 4)->writable());
}

TEST(IstreamSource, AStreamThatCannotSeekIsAnIoError) {
  auto stream = std::make_shared<std::istringstream>("bytes");
  stream->setstate(std::ios::badbit);
  const auto source = MakeIstreamSource(stream, "pipe");
  EXPECT_EQ(source.status().code(), Code::kIoError);
  EXPECT_NE(source.status().message().find("pipe"), std::string_view::npos);
}

TEST(IstreamSource, AStreamSetToThrowGivesAStatus) {
  auto stream = std::make_shared<std::stringstream>("0123456789");
  stream->exceptions(std::ios::failbit | std::ios::badbit | std::ios::eofbit);
  const auto source = MakeIstreamSource(stream);
  ASSERT_TRUE(source.ok());
  stream->str("01");  // The stream shrinks after opening.
  std::byte out[8];
  EXPECT_EQ((*source)->ReadAt(0, out).code(), Code::kIoError);
}

TEST(FunctionSource, ItsErrorsReachTheCallerAndItIsNeverAskedPastTheEnd) {
  int calls = 0;
  const auto source = MakeFunctionSource(
      100,
      [&](uint64_t, std::span<std::byte>) {
        ++calls;
        return Status(Code::kTimeout, "no answer");
      },
      "slow");
  std::byte out[10];
  EXPECT_EQ(source->ReadAt(0, out).code(), Code::kTimeout);
  EXPECT_EQ(source->ReadAt(95, out).code(), Code::kTruncated);
  EXPECT_TRUE(source->ReadAt(50, {}).ok());
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace haulway
