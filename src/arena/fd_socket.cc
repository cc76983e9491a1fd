#include "arena/fd_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace haulway::arena {

namespace {

// Room for several descriptors, so that surplus ones are detected and closed
// rather than truncated.
constexpr size_t kMostFds = 4;

union Control {
  cmsghdr align;
  char bytes[CMSG_SPACE(kMostFds * sizeof(int))];
};

}  // namespace

Result<SocketPair> MakeSocketPair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return Status::FromErrno(errno, "cannot create a socket pair");
  }
  return SocketPair{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Status SendFd(int socket, int fd, uint64_t tag) {
  iovec body = {&tag, sizeof(tag)};
  Control control = {};
  msghdr message = {};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = CMSG_SPACE(sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return Status::FromErrno(errno, "cannot send a descriptor");
  return Status();
}

Result<ReceivedFd> ReceiveFd(int socket, int timeout_ms) {
  pollfd ready = {socket, POLLIN, 0};
  int count = 0;
  do {
    count = ::poll(&ready, 1, timeout_ms);
  } while (count < 0 && errno == EINTR);
  if (count == 0) return Status(Code::kTimeout, "no descriptor came");

  uint64_t tag = 0;
  iovec body = {&tag, sizeof(tag)};
  Control control = {};
  msghdr message = {};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  ssize_t received = 0;
  do {
    received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) {
    return Status::FromErrno(errno, "cannot receive a descriptor");
  }
  UniqueFd first;
  size_t descriptors = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t held = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < held; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      UniqueFd owned(fd);  // Surplus ones are closed here.
      if (descriptors++ == 0) first = std::move(owned);
    }
  }
  if (received == 0 && descriptors == 0) {
    return Status(Code::kUnavailable, "the other end of the socket is closed");
  }
  if (received != sizeof(tag) || descriptors != 1) {
    return Status(Code::kCorrupt, "a message without exactly one descriptor");
  }
  return ReceivedFd{std::move(first), tag};
}

}  // namespace haulway::arena
