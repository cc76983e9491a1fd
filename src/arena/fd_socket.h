// Passing file descriptors between processes over a Unix socket.

#pragma once

#include <cstdint>

#include "base/posix.h"
#include "haulway/status.h"

namespace haulway::arena {

struct SocketPair {
  UniqueFd first;
  UniqueFd second;
};
// Two connected ends, closed on exec.
Result<SocketPair> MakeSocketPair();

// Sends a duplicate of `fd` with `tag`, a number for the receiver.
Status SendFd(int socket, int fd, uint64_t tag);

struct ReceivedFd {
  UniqueFd fd;
  uint64_t tag;
};
// Waits up to `timeout_ms`. kTimeout; kUnavailable if the other end is closed;
// kCorrupt if a message came without exactly one descriptor.
Result<ReceivedFd> ReceiveFd(int socket, int timeout_ms);

}  // namespace haulway::arena
