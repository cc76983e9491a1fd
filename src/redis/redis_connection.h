// A Connection speaks RESP2 with one Redis server: commands are sent in
// batches, and replies read in their order, values straight to where they are
// wanted.
//
// Threads: one at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/source.h"
#include "haulway/status.h"
#include "redis/deadline.h"
#include "redis/redis_target.h"

namespace haulway::redis {

// Bytes to a server and back: a socket, perhaps with TLS.
class Stream;

class Connection {
 public:
  // Connects, authenticates and selects the database. Fails with kUnavailable,
  // kTimeout, kPermissionDenied; no message holds a credential.
  static Result<std::unique_ptr<Connection>> Open(
      const Target& target, const Deadline& deadline = {});
  // Over what is connected to a server that asks for nothing.
  explicit Connection(std::unique_ptr<Stream> stream);
  ~Connection();

  // Until when replies must be there, from now on; else kTimeout.
  void SetDeadline(const Deadline& deadline);

  // Appends a command to what Flush() sends.
  void Add(std::initializer_list<std::string_view> words);
  // Begins SET of a value of `length` bytes, which must follow by Send(), and
  // then EndSet(), with as many words of options as are said here.
  void BeginSet(std::string_view key, uint64_t length, size_t options);
  void EndSet(std::span<const std::string_view> options);
  Status Flush();
  // Sends bytes, or those of an open file, after what was added before.
  Status Send(std::span<const std::byte> bytes);
  Status SendFile(const FileBytes& from, uint64_t length);

  // Each reads the next reply, and fails if it is another kind of reply; an
  // error reply becomes a Status: kPermissionDenied, kUnavailable (the server
  // is loading or busy), kUnsupported (a cluster's other node has the key),
  // kCorrupt (not a string), else kIoError (out of memory, for one).
  Status ReadOk();
  // Reads the answer to a SET on a condition: whether the condition was met.
  Result<bool> ReadWhetherSet();
  Result<int64_t> ReadInteger();
  // Fills all of `out`; false if there is no such value. One of another length
  // is kCorrupt.
  Result<bool> ReadValue(std::span<std::byte> out);
  // The number of replies that follow; nullopt if a transaction was refused.
  Result<std::optional<int64_t>> ReadArray();

 private:
  Status Begin(const Target& target);
  // Sends what was added, and these.
  Status SendAfter(std::span<const std::byte> bytes);
  Result<std::string> ReadLine();
  // The reply's line without its first byte, if that is `kind`.
  Result<std::string> ReadReply(char kind);
  Status CheckKind(std::string_view line, char kind) const;
  Result<int64_t> ReadNumber(char kind);
  Status ReadRaw(std::span<std::byte> out);

  std::unique_ptr<Stream> stream_;
  std::string out_;
  std::vector<std::byte> in_;
  size_t in_begin_ = 0;
  size_t in_end_ = 0;
  bool shows_text_ = true;  // In errors; not while credentials were sent.
};

}  // namespace haulway::redis
