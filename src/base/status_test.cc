#include "haulway/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>

namespace haulway {
namespace {

TEST(Status, IsOkByDefaultAndHasNoMessage) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.message(), "");
}

TEST(Status, GrowsItsAddressInTheOrderOfTheGrammar) {
  const Status status = Status(Code::kCorrupt, "entry is cut")
                            .At(18331)
                            .In("zip directory")
                            .Of("file:///m/a.pt");
  EXPECT_EQ(status.message(),
            "entry is cut; at byte 18331; in zip directory; of file:///m/a.pt");
  EXPECT_EQ(status.byte(), 18331u);
}

TEST(Status, NamesASourceOnce) {
  const std::string message = "cannot open 'a.pt': no such file";
  EXPECT_EQ(Status(Code::kNotFound, message).Of("a.pt").message(), message);
  EXPECT_EQ(Status(Code::kNotFound, "x").Of("a.pt").Of("a.pt").message(),
            "x; of a.pt");
  EXPECT_EQ(Status(Code::kNotFound, message).Of("b.pt").message(),
            message + "; of b.pt");
}

TEST(Status, NamesAPartOnce) {
  EXPECT_EQ(Status(Code::kCorrupt, "x").In("'a'").In("'a'").In("b").message(),
            "x; in 'a'; in b");
}

TEST(Status, KeepsItsCause) {
  const auto cause = std::make_shared<int>(1);
  const Status status = Status(Code::kCorrupt, "x").Because(cause).In("a");
  EXPECT_EQ(status.cause(), cause);
  EXPECT_EQ(Status(status).cause(), cause);
  EXPECT_EQ(Status().Because(cause).cause(), nullptr);
  EXPECT_EQ(Status(Code::kCorrupt, "x").cause(), nullptr);
}

TEST(Status, KeepsTheInnermostByte) {
  const Status status = Status(Code::kCorrupt, "x").At(4).At(9);
  EXPECT_EQ(status.message(), "x; at byte 4");
  EXPECT_EQ(status.byte(), 4u);
}

TEST(Status, PlacesDoNothingToAnOkStatus) {
  EXPECT_TRUE(Status().At(1).In("a").Of("b").ok());
}

TEST(Status, CopiesAreIndependent) {
  Status first(Code::kTruncated, "short");
  Status second = first;
  first = std::move(first).At(3);
  EXPECT_EQ(second.message(), "short");
  second = first;
  EXPECT_EQ(second.byte(), 3u);
}

TEST(Status, PicksTheCodeFromErrnoAndKeepsIt) {
  const Status missing = Status::FromErrno(ENOENT, "cannot open 'x'");
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_EQ(missing.os_error(), ENOENT);
  EXPECT_EQ(missing.message(),
            "cannot open 'x': No such file or directory (errno 2)");
  EXPECT_EQ(Status::FromErrno(EACCES, "x").code(), Code::kPermissionDenied);
  EXPECT_EQ(Status::FromErrno(EIO, "x").code(), Code::kIoError);
}

TEST(Status, EveryCodeHasItsOwnName) {
  EXPECT_EQ(CodeName(Code::kCorrupt), "kCorrupt");
  EXPECT_EQ(CodeName(Code::kInternal), "kInternal");
}

Result<int> Half(int number) {
  if (number % 2 != 0) return Status(Code::kInvalidArgument, "odd");
  return number / 2;
}

Result<int> Quarter(int number) {
  HAULWAY_ASSIGN(const int half, Half(number));
  return Half(half);
}

TEST(Result, CarriesValuesAndFailuresThroughTheMacros) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
  EXPECT_FALSE(Quarter(5).ok());
}

}  // namespace
}  // namespace haulway
