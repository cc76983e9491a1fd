#include "redis/redis_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace haulway::redis {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(RedisTarget, HasServerDatabaseAndPrefix) {
  const auto target = ParseTarget("redis://h:7/3/models/a:b", "");
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->host, "h");
  EXPECT_EQ(target->port, 7);
  EXPECT_EQ(target->database, 3U);
  EXPECT_EQ(target->prefix, "models/a:b");
  EXPECT_EQ(target->name, "redis://h:7/3/models/a:b");
}

TEST(RedisTarget, TakesDigitsAloneForAPrefix) {
  const auto target = ParseTarget("redis://h/7", "");
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->database, 0U);
  EXPECT_EQ(target->prefix, "7");
  EXPECT_EQ(target->port, 6379);
}

TEST(RedisTarget, DecodesTheLoginAndNeverShowsIt) {
  const auto target = ParseTarget("rediss://us%40er:p%3Aw@h/m", "");
  ASSERT_TRUE(target.ok());
  EXPECT_TRUE(target->is_tls);
  EXPECT_EQ(target->user, "us@er");
  EXPECT_EQ(target->password, "p:w");
  EXPECT_EQ(target->name, "rediss://h:6379/m");
}

TEST(RedisTarget, NamesSocketsAndPlainValues) {
  const auto file = ParseTarget("redis+unix:///run/r.sock?db=2&prefix=m", "");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->socket_path, "/run/r.sock");
  EXPECT_EQ(file->database, 2U);
  EXPECT_EQ(file->name, "redis+unix:///run/r.sock?prefix=m");
  const auto value = ParseTarget("redis://[::1]:8/2?key=a%20b", "");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value->host, "::1");
  EXPECT_EQ(value->key, "a b");
  EXPECT_EQ(value->name, "redis://[::1]:8/2/?key=a b");
}

TEST(RedisTarget, TakesTheServerOfTheEnvironment) {
  const auto target = ParseTarget("redis:///m", "rediss://:pw@h:9/4");
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->host, "h");
  EXPECT_EQ(target->password, "pw");
  EXPECT_EQ(target->database, 4U);
  EXPECT_EQ(target->prefix, "m");
}

TEST(RedisTarget, RefusesOthersWithoutShowingThem) {
  for (const char* uri :
       {"redis://", "redis:///m", "redis://h", "redis://h/", "redis://h/?key=",
        "redis://h/m?key=k", "redis://h:0/m", "redis://h:99999/m",
        "redis://secret@h/m", "redis://u:secret@h:x/m", "redis://[::1/m",
        "redis://h/m?db=x", "redis://h/m?other=secret", "redis+unix://",
        "redis+unix:///s", "redis+unix://u:secret@h/s?prefix=m"}) {
    const Status status = ParseTarget(uri, "").status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << uri;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("secret")));
  }
}

}  // namespace
}  // namespace haulway::redis
