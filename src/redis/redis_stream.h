// A Stream is a connected socket, perhaps with TLS over it. Every wait ends
// after a time, and with kCancelled soon after a CancelScope says so.
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
  // Connects: to each of the host's addresses, until one answers, within the
  // connect timeout, and as long for every answer while TLS is agreed on. Fails
  // with kUnavailable, kTimeout, kCancelled, kPermissionDenied if the server
  // refuses the client's certificate or misses one, and kIoError with errno
  // EKEYREJECTED if the server's certificate does not verify.
  static Result<std::unique_ptr<Stream>> Open(const Target& target,
                                              const Deadline& deadline);
  virtual ~Stream() = default;

  // Until when what is read must be there, from now on; else kTimeout.
  void SetDeadline(const Deadline& deadline) { deadline_ = deadline; }

  // Some bytes, at least one; kUnavailable if the server closed, kTimeout
  // after the stall timeout without any.
  virtual Result<size_t> Read(std::span<std::byte> out) = 0;
  // Both, one after the other.
  virtual Status Write(std::span<const std::byte> first,
                       std::span<const std::byte> second) = 0;
  // Bytes of an open file; kTruncated if it ends before.
  virtual Status WriteFile(const FileBytes& from, uint64_t length) = 0;

 protected:
  Deadline deadline_;
};

}  // namespace haulway::redis
