#include "io/spool.h"

#include <gtest/gtest.h>

#include <span>
#include <string>

namespace haulway {
namespace {

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

Status Write(Spool& spool, uint64_t offset, const std::string& text) {
  const auto bytes = Bytes(text);
  return spool.WriteAt(offset, std::span(&bytes, 1));
}

std::string Read(const Spool& spool, uint64_t offset, size_t length) {
  std::string text(length, '?');
  EXPECT_TRUE(
      spool.ReadAt(offset, std::as_writable_bytes(std::span(text))).ok());
  return text;
}

TEST(Spool, ReadsWhatWasWrittenAndWhatIsShared) {
  Spool spool;
  ASSERT_TRUE(spool.Open().ok());
  {
    auto file = OpenNameless("/tmp");
    ASSERT_TRUE(file.ok());
    const std::string text = "0123456789";
    const auto bytes = Bytes(text);
    ASSERT_TRUE(WriteFully(file->get(), 0, std::span(&bytes, 1)).ok());
    ASSERT_TRUE(spool.ShareAt(6, {file->get(), 5}, 5).ok());
    ASSERT_TRUE(spool.ShareAt(3, {file->get(), 1}, 3).ok());
  }  // Closed before the spool is read.
  ASSERT_TRUE(Write(spool, 0, "abc").ok());
  ASSERT_TRUE(Write(spool, 13, "xyz").ok());
  ASSERT_TRUE(spool.End(18).ok());
  const std::string whole("abc12356789\0\0xyz\0\0", 18);
  for (size_t begin = 0; begin <= whole.size(); ++begin) {
    for (size_t end = begin; end <= whole.size(); ++end) {
      EXPECT_EQ(Read(spool, begin, end - begin),
                whole.substr(begin, end - begin));
    }
  }
  std::byte behind[2];
  EXPECT_EQ(spool.ReadAt(17, behind).code(), Code::kTruncated);
}

}  // namespace
}  // namespace haulway
