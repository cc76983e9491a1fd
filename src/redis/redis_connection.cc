#include "redis/redis_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/ascii.h"
#include "base/posix.h"
#include "base/text.h"
#include "redis/redis_stream.h"

namespace haulway::redis {

namespace {

constexpr size_t kBufferBytes = size_t{64} << 10;
// Longest line of the protocol in the replies we request.
constexpr size_t kMostLineBytes = size_t{64} << 10;

Status ProtocolError(std::string_view found, bool shows_text = true) {
  constexpr std::string_view kWhat =
      "the server does not speak Redis's protocol";
  if (!shows_text) return Status(Code::kCorrupt, kWhat);
  return Status(Code::kCorrupt,
                fmt::format("{}: found {}", kWhat, Quote(found)));
}

struct ErrorKind {
  std::string_view word;
  Code code;
  std::string_view meaning;
};
constexpr ErrorKind kErrors[] = {
    {"NOAUTH", Code::kPermissionDenied, "the server asks for a password"},
    {"WRONGPASS", Code::kPermissionDenied,
     "the server refuses user or password"},
    {"NOPERM", Code::kPermissionDenied, "the user may not do this"},
    {"LOADING", Code::kUnavailable, "the server is still loading its data"},
    {"BUSY", Code::kUnavailable, "the server is busy with a script"},
    {"MASTERDOWN", Code::kUnavailable, "the replica has lost its master"},
    {"CLUSTERDOWN", Code::kUnavailable, "the cluster is down"},
    {"TRYAGAIN", Code::kUnavailable, "the cluster is moving this key"},
    {"MOVED", Code::kUnsupported, "a cluster's other node has it"},
    {"ASK", Code::kUnsupported, "a cluster's other node has it"},
    {"CROSSSLOT", Code::kUnsupported, "a cluster keeps these keys apart"},
    {"OOM", Code::kIoError, "the server is out of memory"},
    {"READONLY", Code::kPermissionDenied, "the server is a replica"},
    {"WRONGTYPE", Code::kCorrupt, "a key holds something other than a string"},
};

// Converts an error reply. Its text may repeat what was sent, so it is shown
// only if `shows_text`.
Status ErrorReply(std::string_view text, bool shows_text) {
  const std::string_view word = text.substr(0, text.find(' '));
  const auto* const kind = std::ranges::find(kErrors, word, &ErrorKind::word);
  if (kind != std::end(kErrors)) return Status(kind->code, kind->meaning);
  if (!shows_text) {
    return Status(Code::kPermissionDenied, "the server refuses the login");
  }
  return Status(Code::kIoError,
                fmt::format("the server answers {}", Quote(text)));
}

void AddWord(std::string_view word, std::string* out) {
  *out += fmt::format("${}\r\n", word.size());
  *out += word;
  *out += "\r\n";
}

}  // namespace

Connection::Connection(std::unique_ptr<Stream> stream)
    : stream_(std::move(stream)), in_(kBufferBytes) {}
Connection::~Connection() = default;

Result<std::unique_ptr<Connection>> Connection::Open(const Target& target,
                                                     const Deadline& deadline) {
  HAULWAY_ASSIGN(auto stream, Stream::Open(target, deadline));
  std::unique_ptr<Connection> connection(new Connection(std::move(stream)));
  HAULWAY_TRY(connection->Begin(target));
  return connection;
}

void Connection::SetDeadline(const Deadline& deadline) {
  stream_->SetDeadline(deadline);
}

Status Connection::Begin(const Target& target) {
  if (!target.password.empty()) {
    if (target.user.empty()) {
      Add({"AUTH", target.password});
    } else {
      Add({"AUTH", target.user, target.password});
    }
    shows_text_ = false;
    HAULWAY_TRY(Flush());
    HAULWAY_TRY(ReadOk());
    shows_text_ = true;
  }
  if (target.database == 0) return Status();
  Add({"SELECT", std::to_string(target.database)});
  HAULWAY_TRY(Flush());
  return ReadOk();
}

void Connection::Add(std::initializer_list<std::string_view> words) {
  out_ += fmt::format("*{}\r\n", words.size());
  for (const std::string_view word : words) AddWord(word, &out_);
}

void Connection::BeginSet(std::string_view key, uint64_t length,
                          size_t options) {
  out_ += fmt::format("*{}\r\n", 3 + options);
  AddWord("SET", &out_);
  AddWord(key, &out_);
  out_ += fmt::format("${}\r\n", length);
}

void Connection::EndSet(std::span<const std::string_view> options) {
  out_ += "\r\n";
  for (const std::string_view word : options) AddWord(word, &out_);
}

Status Connection::Flush() { return out_.empty() ? Status() : SendAfter({}); }

Status Connection::SendAfter(std::span<const std::byte> bytes) {
  const Status sent =
      stream_->Write(std::as_bytes(std::span(out_.data(), out_.size())), bytes);
  out_.clear();
  return sent;
}

Status Connection::Send(std::span<const std::byte> bytes) {
  if (out_.size() + bytes.size() > kBufferBytes) return SendAfter(bytes);
  out_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return Status();
}

Status Connection::SendFile(const FileBytes& from, uint64_t length) {
  if (out_.size() + length > kBufferBytes) {
    HAULWAY_TRY(Flush());
    return stream_->WriteFile(from, length);
  }
  const size_t before = out_.size();
  out_.resize(before + length);
  return ReadFully(from.fd, from.offset,
                   std::as_writable_bytes(std::span(out_)).subspan(before));
}

Result<std::string> Connection::ReadLine() {
  std::string line;
  while (true) {
    if (in_begin_ == in_end_) {
      in_begin_ = 0;
      HAULWAY_ASSIGN(in_end_, stream_->Read(in_));
    }
    const std::string_view have(
        reinterpret_cast<const char*>(in_.data()) + in_begin_,
        in_end_ - in_begin_);
    const size_t end = have.find('\n');
    const size_t taken = end == have.npos ? have.size() : end + 1;
    line += have.substr(0, taken);
    in_begin_ += taken;
    if (line.size() > kMostLineBytes) return ProtocolError(line, shows_text_);
    if (end == have.npos) continue;
    if (!line.ends_with("\r\n") || line.size() < 3) {
      return ProtocolError(line, shows_text_);
    }
    line.resize(line.size() - 2);
    return line;
  }
}

Result<std::string> Connection::ReadReply(char kind) {
  HAULWAY_ASSIGN(std::string line, ReadLine());
  HAULWAY_TRY(CheckKind(line, kind));
  return line.substr(1);
}

Status Connection::CheckKind(std::string_view line, char kind) const {
  if (line.front() == '-') return ErrorReply(line.substr(1), shows_text_);
  if (line.front() != kind) return ProtocolError(line, shows_text_);
  return Status();
}

Result<int64_t> Connection::ReadNumber(char kind) {
  HAULWAY_ASSIGN(const std::string text, ReadReply(kind));
  const auto number = ParseNumber<int64_t>(text);
  if (!number.has_value()) return ProtocolError(text);
  return *number;
}

Status Connection::ReadOk() { return ReadReply('+').status(); }

Result<bool> Connection::ReadWhetherSet() {
  HAULWAY_ASSIGN(const std::string line, ReadLine());
  if (line == "$-1") return false;
  HAULWAY_TRY(CheckKind(line, '+'));
  return true;
}

Result<int64_t> Connection::ReadInteger() { return ReadNumber(':'); }

Status Connection::ReadRaw(std::span<std::byte> out) {
  while (!out.empty()) {
    if (in_begin_ < in_end_) {
      const size_t part = std::min(out.size(), in_end_ - in_begin_);
      std::memcpy(out.data(), in_.data() + in_begin_, part);
      in_begin_ += part;
      out = out.subspan(part);
    } else if (out.size() >= in_.size()) {
      HAULWAY_ASSIGN(const size_t got, stream_->Read(out));
      out = out.subspan(got);
    } else {
      in_begin_ = 0;
      in_end_ = 0;
      HAULWAY_ASSIGN(in_end_, stream_->Read(in_));
    }
  }
  return Status();
}

Result<bool> Connection::ReadValue(std::span<std::byte> out) {
  HAULWAY_ASSIGN(const int64_t length, ReadNumber('$'));
  if (length == -1) return false;
  if (length < 0 || static_cast<uint64_t>(length) != out.size()) {
    return Status(Code::kCorrupt,
                  fmt::format("a value has a wrong length: expected {} bytes, "
                              "found {}",
                              out.size(), length));
  }
  HAULWAY_TRY(ReadRaw(out));
  std::byte end[2];
  HAULWAY_TRY(ReadRaw(end));
  if (end[0] != std::byte{'\r'} || end[1] != std::byte{'\n'}) {
    return ProtocolError("a value that goes on behind its end");
  }
  return true;
}

Result<std::optional<int64_t>> Connection::ReadArray() {
  HAULWAY_ASSIGN(const int64_t count, ReadNumber('*'));
  if (count == -1) return std::optional<int64_t>();
  if (count < 0) return ProtocolError("an array of less than nothing");
  return std::optional<int64_t>(count);
}

}  // namespace haulway::redis
