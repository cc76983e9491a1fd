#include "io/exchange.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <tuple>

#include "base/posix.h"

namespace haulway {
namespace {

constexpr size_t kExchanged = 1 << 20;

// A file in memory. It cannot grow if it is sealed.
UniqueFd FileOf(const std::string& text) {
  UniqueFd fd(::memfd_create("exchange", MFD_ALLOW_SEALING));
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  EXPECT_TRUE(WriteFully(fd.get(), 0, {&bytes, 1}).ok());
  return fd;
}

std::string ContentOf(const UniqueFd& fd) {
  std::string text(static_cast<size_t>(::lseek(fd.get(), 0, SEEK_END)), '\0');
  EXPECT_TRUE(
      ReadFully(fd.get(), 0, std::as_writable_bytes(std::span(text))).ok());
  return text;
}

using Sizes = std::tuple<size_t, size_t>;
class ExchangeTest : public ::testing::TestWithParam<Sizes> {
 protected:
  const std::string old_ = std::string(std::get<0>(GetParam()), 'o');
  const std::string new_ = std::string(std::get<1>(GetParam()), 'n');
};

INSTANTIATE_TEST_SUITE_P(
    Sizes, ExchangeTest,
    ::testing::Combine(::testing::Values(0, 1, kExchanged, 3 * kExchanged + 7),
                       ::testing::Values(0, 1, kExchanged,
                                         3 * kExchanged + 7)));

TEST_P(ExchangeTest, GivesTheNewContent) {
  const UniqueFd to = FileOf(old_);
  const UniqueFd from = FileOf(new_);
  ASSERT_TRUE(ExchangeContent(to.get(), from.get(), new_.size(), true).ok());
  EXPECT_TRUE(ContentOf(to) == new_);
}

TEST_P(ExchangeTest, LeavesTheOldContentWhereThereIsNoRoom) {
  if (new_.size() <= old_.size()) return;
  const UniqueFd to = FileOf(old_);
  const UniqueFd from = FileOf(new_);
  ASSERT_EQ(::fcntl(to.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_FALSE(ExchangeContent(to.get(), from.get(), new_.size(), true).ok());
  EXPECT_TRUE(ContentOf(to) == old_);
}

TEST_P(ExchangeTest, LeavesTheOldContentWhereItCannotBeKept) {
  if (old_.empty() || new_.size() < old_.size()) return;
  const UniqueFd to = FileOf(old_);
  const UniqueFd from = FileOf(new_);
  ASSERT_EQ(::fcntl(from.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_FALSE(ExchangeContent(to.get(), from.get(), new_.size(), true).ok());
  EXPECT_TRUE(ContentOf(to) == old_);
}

}  // namespace
}  // namespace haulway
