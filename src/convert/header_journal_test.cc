#include "convert/header_journal.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace haulway::convert {
namespace {

class HeaderJournalTest : public ::testing::Test {
 protected:
  HeaderJournalTest() {
    char name[] = "/tmp/haulway-journal-XXXXXX";
    folder_ = ::mkdtemp(name);
    path_ = folder_ + "/x.safetensors";
    journal_ = folder_ + "/.x.safetensors.haulway-header";
  }
  ~HeaderJournalTest() override { std::filesystem::remove_all(folder_); }

  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  static std::vector<std::byte> Bytes(const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }

  void Save() {
    const HeaderJournal journal(path_, Durability::kFull);
    const Status saved = journal.Save(
        {100, Bytes(std::string(2000, 'o')), Bytes(std::string(2000, 'n'))});
    ASSERT_TRUE(saved.ok()) << saved.message();
  }
  // Returns the file with bytes `begin` to `end` of the new header.
  static std::string File(size_t begin, size_t end) {
    std::string text =
        std::string(100, 'a') + std::string(2000, 'o') + std::string(500, 'z');
    std::fill(text.begin() + static_cast<ptrdiff_t>(begin),
              text.begin() + static_cast<ptrdiff_t>(end), 'n');
    return text;
  }
  bool HasJournal() const { return std::filesystem::exists(journal_); }
  std::string Undone(const std::string& text) {
    Write(path_, text);
    const Status undone = UndoInterruptedEdit(path_, Durability::kFull);
    EXPECT_TRUE(undone.ok()) << undone.message();
    return Read(path_);
  }

  std::string folder_, path_, journal_;
};

TEST_F(HeaderJournalTest, PutsTheOldBytesBackWhereSomeAreNew) {
  for (const auto& [begin, end] :
       {std::pair<size_t, size_t>{100, 512}, {512, 1024}, {100, 1536}}) {
    Save();
    EXPECT_EQ(Undone(File(begin, end)), File(0, 0)) << begin;
    EXPECT_FALSE(HasJournal());
  }
}

TEST_F(HeaderJournalTest, LeavesAFileThatIsWhole) {
  for (const std::string& text : {File(0, 0), File(100, 2100)}) {
    Save();
    EXPECT_EQ(Undone(text), text);
    EXPECT_FALSE(HasJournal());
  }
}

TEST_F(HeaderJournalTest, IsAboutNoOtherFile) {
  Save();
  std::string other = File(100, 512);
  other[700] = 'x';
  EXPECT_EQ(Undone(other), other);
  EXPECT_FALSE(HasJournal());
}

TEST_F(HeaderJournalTest, IsNotBelievedIfItIsNotWhole) {
  Write(path_, File(0, 0));
  Save();
  const std::string whole = Read(journal_);
  const std::string half = File(100, 512);
  for (size_t size = 0; size < whole.size(); size += 61) {
    Write(journal_, whole.substr(0, size));
    EXPECT_EQ(Undone(half), half) << size;
  }
  std::string changed = whole;
  changed[20] ^= 1;
  Write(journal_, changed);
  EXPECT_EQ(Undone(half), half);
  // A file shorter than the journal claims.
  Write(journal_, whole);
  EXPECT_EQ(Undone(half.substr(0, 1500)), half.substr(0, 1500));
}

TEST_F(HeaderJournalTest, IsNoLinkAndNoPipe) {
  Save();
  std::filesystem::rename(journal_, folder_ + "/elsewhere");
  std::filesystem::create_symlink(folder_ + "/elsewhere", journal_);
  EXPECT_EQ(Undone(File(100, 512)), File(100, 512));
  std::filesystem::remove(journal_);
  ASSERT_EQ(::mkfifo(journal_.c_str(), 0600), 0);
  EXPECT_EQ(Undone(File(100, 512)), File(100, 512));
}

TEST_F(HeaderJournalTest, NothingIsDoneWithoutOne) {
  EXPECT_EQ(Undone(File(100, 512)), File(100, 512));
}

}  // namespace
}  // namespace haulway::convert
