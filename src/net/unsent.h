// A limit for the bytes that the kernel takes before it has sent them.

#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace haulway::net {

// With the kernel's own limit, of megabytes, a slow connection seems to stall
// although its bytes are being sent.
inline constexpr int kMostUnsentBytes = 1 << 17;

// Sets the limit. Without it, a stall is only detected less well, so failures
// are ignored.
inline void LimitUnsent(int socket) {
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kMostUnsentBytes,
                     sizeof(kMostUnsentBytes));
}

}  // namespace haulway::net
