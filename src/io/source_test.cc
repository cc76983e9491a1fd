// What every source promises (source.h), of every source.

#include "haulway/source.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace haulway {
namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;

const std::string& Content() {
  static const std::string* content = [] {
    auto* text = new std::string;
    for (int i = 0; i < 10'000; ++i) *text += static_cast<char>(i * 31 >> 3);
    return text;
  }();
  return *content;
}

// A file that is gone when the test ends.
class TemporaryFile {
 public:
  TemporaryFile() {
    char path[] = "/tmp/haulway_source_test_XXXXXX";
    const int fd = ::mkstemp(path);
    EXPECT_GE(fd, 0);
    ::close(fd);
    path_ = path;
    std::ofstream(path_, std::ios::binary) << Content();
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Backend {
  const char* name;
  bool has_views;
  std::function<SourcePtr(const std::string& path)> open;
};

void PrintTo(const Backend& backend, std::ostream* out) {
  *out << backend.name;
}

std::span<const std::byte> ContentBytes() {
  return std::as_bytes(std::span(Content()));
}

class Source : public testing::TestWithParam<Backend> {
 protected:
  std::string Read(uint64_t offset, size_t length) {
    std::string out(length, '?');
    const Status status =
        source_->ReadAt(offset, std::as_writable_bytes(std::span(out)));
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
  TemporaryFile file_;
  SourcePtr source_ = GetParam().open(file_.path());
};

TEST_P(Source, HasTheSizeAndAName) {
  EXPECT_EQ(source_->size(), Content().size());
  EXPECT_FALSE(source_->name().empty());
}

TEST_P(Source, ReadsExactlyWhatIsThere) {
  EXPECT_EQ(Read(0, Content().size()), Content());
  EXPECT_EQ(Read(4321, 99), Content().substr(4321, 99));
  EXPECT_EQ(Read(Content().size() - 1, 1), Content().substr(9'999));
  EXPECT_EQ(Read(0, 0), "");
  EXPECT_EQ(Read(Content().size(), 0), "");
}

TEST_P(Source, RefusesToReadPastItsEnd) {
  std::vector<std::byte> out(10);
  for (const uint64_t offset :
       {Content().size() - 9, Content().size(), Content().size() + 1,
        uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} - 5}) {
    const Status status = source_->ReadAt(offset, out);
    EXPECT_EQ(status.code(), Code::kTruncated) << offset;
    EXPECT_EQ(status.byte(), offset);
  }
  EXPECT_EQ(Read(1, 1), Content().substr(1, 1)) << "and goes on working";
}

TEST_P(Source, ReadsManyInAnyOrderAndOverlapping) {
  std::vector<std::byte> a(100), b(5), c(5'000), none;
  const ReadRequest requests[] = {
      {9'000, a}, {0, b}, {4'000, c}, {9'050, std::span(b).subspan(0, 0)}};
  ASSERT_TRUE(source_->ReadMany(requests).ok());
  EXPECT_EQ(0, std::memcmp(a.data(), Content().data() + 9'000, a.size()));
  EXPECT_EQ(0, std::memcmp(b.data(), Content().data(), b.size()));
  EXPECT_EQ(0, std::memcmp(c.data(), Content().data() + 4'000, c.size()));
  EXPECT_TRUE(source_->ReadMany({}).ok());
}

TEST_P(Source, ReadsManyOrFails) {
  std::vector<std::byte> out(20);
  const ReadRequest requests[] = {{0, out}, {Content().size() - 5, out}};
  EXPECT_EQ(source_->ReadMany(requests).code(), Code::kTruncated);
}

TEST_P(Source, IsReadByManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  std::vector<int> right(8);
  for (size_t t = 0; t < right.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const uint64_t offset = (t * 1'237 + i * 41) % 9'000;
        std::vector<std::byte> out(700);
        if (source_->ReadAt(offset, out).ok() &&
            std::memcmp(out.data(), Content().data() + offset, out.size()) ==
                0) {
          ++right[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : right) EXPECT_EQ(count, 200);
}

TEST_P(Source, AViewOutlivesTheSource) {
  const auto view = source_->View(100, 50);
  ASSERT_EQ(view.has_value(), GetParam().has_views);
  if (!view.has_value()) return;
  source_.reset();
  std::remove(file_.path().c_str());
  EXPECT_EQ(view->size(), 50u);
  EXPECT_EQ(0, std::memcmp(view->data(), Content().data() + 100, 50));
}

const Backend kBackends[] = {
    {"memory", true,
     [](const std::string&) { return MakeMemorySource(ContentBytes()); }},
    {"buffer", true,
     [](const std::string&) {
       auto owner = std::make_shared<std::string>(Content());
       const auto bytes = std::as_writable_bytes(std::span(*owner));
       return MakeBufferSource(Buffer(std::move(owner), bytes, true));
     }},
    {"stream", false,
     [](const std::string&) {
       return *MakeIstreamSource(
           std::make_shared<std::istringstream>(Content()));
     }},
    {"function", false,
     [](const std::string&) {
       return MakeFunctionSource(
           Content().size(),
           [](uint64_t offset, std::span<std::byte> out) {
             std::memcpy(out.data(), Content().data() + offset, out.size());
             return Status();
           },
           "function");
     }},
    {"file", false,
     [](const std::string& path) { return *OpenFileSource(path); }},
    {"mmap", true,
     [](const std::string& path) { return *OpenMmapSource(path); }},
    {"slice", true,
     [](const std::string&) {
       static const std::string* longer =
           new std::string("before" + Content() + "after");
       return *MakeSliceSource(
           MakeMemorySource(std::as_bytes(std::span(*longer))), 6,
           Content().size());
     }},
};
INSTANTIATE_TEST_SUITE_P(All, Source, testing::ValuesIn(kBackends),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

TEST(MmapSource, WritesNeverReachTheFile) {
  const TemporaryFile file;
  const SourcePtr source = *OpenMmapSource(file.path());
  const auto view = source->View(0, 4);
  ASSERT_TRUE(view.has_value() && view->writable());
  std::memset(view->mutable_bytes().data(), 0, 4);
  std::string out(4, '?');
  ASSERT_TRUE((*OpenFileSource(file.path()))
                  ->ReadAt(0, std::as_writable_bytes(std::span(out)))
                  .ok());
  EXPECT_EQ(out, Content().substr(0, 4));
}

TEST(FileSource, RefusesWhatIsNoFile) {
  EXPECT_EQ(OpenFileSource("/tmp").status().code(), Code::kUnsupported);
  EXPECT_EQ(OpenMmapSource("/nonexistent").status().code(), Code::kNotFound);
}

TEST(FileSource, AFileThatShrinksIsTruncated) {
  const TemporaryFile file;
  const SourcePtr source = *OpenFileSource(file.path());
  ASSERT_EQ(::truncate(file.path().c_str(), 100), 0);
  std::vector<std::byte> out(200);
  EXPECT_EQ(source->ReadAt(0, out).code(), Code::kTruncated);
}

TEST(SliceSource, MustLieWithinItsParent) {
  const SourcePtr parent = MakeMemorySource(ContentBytes());
  EXPECT_EQ(MakeSliceSource(parent, 9'000, 1'001).status().code(),
            Code::kTruncated);
  EXPECT_EQ(MakeSliceSource(parent, ~uint64_t{0}, 2).status().code(),
            Code::kTruncated);
}

}  // namespace
}  // namespace haulway
