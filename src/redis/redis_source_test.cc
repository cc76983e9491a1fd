#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>

#include "base/posix.h"
#include "haulway/options.h"
#include "redis/redis.h"

namespace haulway::redis {
namespace {

// A server that accepts connections but sends nothing.
UniqueFd Mute(uint16_t* port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(fd.get(), any, length), 0);
  EXPECT_EQ(::listen(fd.get(), 8), 0);
  EXPECT_EQ(::getsockname(fd.get(), any, &length), 0);
  *port = ::ntohs(address.sin_port);
  return fd;
}

TEST(RedisSource, IsCancelledByAScope) {
  uint16_t port = 0;
  const UniqueFd server = Mute(&port);
  const std::atomic<bool> stop = true;
  const CancelScope scope(&stop);
  const auto source =
      OpenSource(fmt::format("redis://127.0.0.1:{}/m", port), "");
  EXPECT_EQ(source.status().code(), Code::kCancelled);
}

}  // namespace
}  // namespace haulway::redis
