// A Stream is a connected socket, perhaps with TLS. Every wait has a timeout,
// and ends with kCancelled soon after a CancelScope is cancelled.
//
// Threads: one at a time.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "haulway/source.h"
#include "haulway/status.h"
#include "net/stall_clock.h"
#include "redis/deadline.h"
#include "redis/redis_target.h"

namespace haulway::redis {

class Stream {
 public:
  // Connects to the first of the host's addresses that answers. The connect
  // timeout applies to each address and to each reply of the TLS handshake.
  // Fails with kUnavailable, kTimeout, kCancelled, kPermissionDenied if the
  // server refuses or requires a client certificate, and kIoError with errno
  // EKEYREJECTED if the server's certificate does not verify.
  static Result<std::unique_ptr<Stream>> Open(const Target& target,
                                              const Deadline& deadline);
  virtual ~Stream() = default;

  // Sets the deadline for reads, which then fail with kTimeout.
  void SetDeadline(const Deadline& deadline) {
    deadline_ = deadline;
    StartClock();
  }

  // Reads at least one byte. Fails with kUnavailable if the server closed the
  // connection, and with kTimeout if less than 1 kB a second arrives for the
  // stall timeout.
  virtual Result<size_t> Read(std::span<std::byte> out) = 0;
  // Writes both spans, one after the other.
  virtual Status Write(std::span<const std::byte> first,
                       std::span<const std::byte> second) = 0;
  // Writes bytes of an open file. Fails with kTruncated if the file ends first.
  virtual Status WriteFile(const FileBytes& from, uint64_t length) = 0;

 protected:
  // The time for which less than 1 kB a second may move.
  void SetStallTimeout(std::chrono::milliseconds timeout) {
    clock_ = net::StallClock(timeout);
    StartClock();
  }
  // Begins that time anew.
  void StartClock() { clock_.Begin(net::StallClock::Clock::now(), moved_); }
  // Waits until the socket is readable or writable.
  Status Await(int fd, short events, std::string_view doing);

  Deadline deadline_;
  uint64_t moved_ = 0;  // Bytes in both directions.

 private:
  net::StallClock clock_{std::chrono::milliseconds(0)};
};

}  // namespace haulway::redis
