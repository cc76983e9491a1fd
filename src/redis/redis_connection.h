// A Connection speaks RESP2 with one Redis server. Commands are sent in
// batches, replies are read in order, and values are read directly into their
// destination.
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

// A connected socket, perhaps with TLS.
class Stream;

class Connection {
 public:
  // Connects, authenticates and selects the database. Fails with kUnavailable,
  // kTimeout or kPermissionDenied; no message contains a credential.
  static Result<std::unique_ptr<Connection>> Open(
      const Target& target, const Deadline& deadline = {});
  // Uses a stream to a server that needs neither authentication nor a database.
  explicit Connection(std::unique_ptr<Stream> stream);
  ~Connection();

  // Sets the deadline for replies; later ones fail with kTimeout.
  void SetDeadline(const Deadline& deadline);

  // Appends a command to the bytes that Flush() sends.
  void Add(std::initializer_list<std::string_view> words);
  // Begins a SET of a value of `length` bytes. The value must follow by Send(),
  // then EndSet() with `options` words.
  void BeginSet(std::string_view key, uint64_t length, size_t options);
  void EndSet(std::span<const std::string_view> options);
  Status Flush();
  // Send bytes, or bytes of an open file, after those added before.
  Status Send(std::span<const std::byte> bytes);
  Status SendFile(const FileBytes& from, uint64_t length);

  // These functions read the next reply, and fail if it is of another kind. An
  // error reply becomes a Status: kPermissionDenied, kUnavailable (the server
  // is loading or busy), kUnsupported (another node of a cluster has the key),
  // kCorrupt (not a string), else kIoError (e.g. out of memory).
  Status ReadOk();
  // Reads the reply to a conditional SET. Returns whether the condition was
  // met.
  Result<bool> ReadWhetherSet();
  Result<int64_t> ReadInteger();
  // Fills all of `out`. Returns false if the value does not exist. Fails with
  // kCorrupt if the length differs.
  Result<bool> ReadValue(std::span<std::byte> out);
  // Returns the number of replies that follow, or nullopt if a transaction was
  // aborted.
  Result<std::optional<int64_t>> ReadArray();

 private:
  Status Begin(const Target& target);
  // Sends the bytes added before, and then `bytes`.
  Status SendAfter(std::span<const std::byte> bytes);
  Result<std::string> ReadLine();
  // Returns the line of a reply without its first byte. Fails unless that byte
  // is `kind`.
  Result<std::string> ReadReply(char kind);
  Status CheckKind(std::string_view line, char kind) const;
  Result<int64_t> ReadNumber(char kind);
  Status ReadRaw(std::span<std::byte> out);

  std::unique_ptr<Stream> stream_;
  std::string out_;
  std::vector<std::byte> in_;
  size_t in_begin_ = 0;
  size_t in_end_ = 0;
  // Whether errors show the server's text; false while credentials are sent.
  bool shows_text_ = true;
};

}  // namespace haulway::redis
