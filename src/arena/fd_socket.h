// Passes file descriptors between processes over a Unix socket.

#pragma once

#include <cstdint>

#include "base/posix.h"
#include "haulway/status.h"

namespace haulway::arena {

struct SocketPair {
  UniqueFd first;
  UniqueFd second;
};
// Creates two connected sockets, closed on exec.
Result<SocketPair> MakeSocketPair();

// Sends a duplicate of `fd` with `tag`, a number for the receiver.
Status SendFd(int socket, int fd, uint64_t tag);

struct ReceivedFd {
  UniqueFd fd;
  uint64_t tag;
};
// Waits up to `timeout_ms`. Fails with kTimeout, with kUnavailable if the other
// end is closed, and with kCorrupt if a message does not have exactly one
// descriptor.
Result<ReceivedFd> ReceiveFd(int socket, int timeout_ms);

}  // namespace haulway::arena
