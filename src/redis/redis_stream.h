// A Stream is a connected socket, perhaps with TLS. Every wait has a timeout,
// and ends with kCancelled soon after a CancelScope is cancelled.
//
// Threads: one at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "haulway/source.h"
#include "haulway/status.h"
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
  void SetDeadline(const Deadline& deadline) { deadline_ = deadline; }

  // Reads at least one byte. Fails with kUnavailable if the server closed the
  // connection, and with kTimeout if nothing arrives within the stall timeout.
  virtual Result<size_t> Read(std::span<std::byte> out) = 0;
  // Writes both spans, one after the other.
  virtual Status Write(std::span<const std::byte> first,
                       std::span<const std::byte> second) = 0;
  // Writes bytes of an open file. Fails with kTruncated if the file ends first.
  virtual Status WriteFile(const FileBytes& from, uint64_t length) = 0;

 protected:
  Deadline deadline_;
};

}  // namespace haulway::redis
