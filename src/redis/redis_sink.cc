// Design: a file is written in order, and the bytes before its first tensor say
// where each value begins and ends. So each value is sent as it arrives, from
// the writer's memory or, by the kernel, from the writer's file. Replies are
// read some way behind. Until all replies are there, values have temporary
// names and expire after a day, in case the process is killed. Then one
// transaction removes the existing file and renames the values, or does nothing
// if another client was faster. So readers find either the old file or the new
// one.
//
// Not used: a transaction around the values themselves, because the server
// would hold a second copy of the whole model until EXEC; and a local file that
// is sent in Commit(), which takes twice as long. A plain value of unknown size
// still needs a local file, since the length of a value is sent before it.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "base/text.h"
#include "haulway/options.h"
#include "io/process_sink.h"
#include "io/spool.h"
#include "redis/redis.h"
#include "redis/redis_connection.h"
#include "redis/redis_layout.h"
#include "redis/redis_values.h"
#include "tensorizer/tensorizer_layout.h"

namespace haulway::redis {

namespace {

constexpr uint64_t kCopyBytes = kMiB;
// Values that may be sent before the server's reply, limited so that a full
// server is detected soon.
constexpr size_t kMostUnanswered = 64;
constexpr uint64_t kMostUnansweredBytes = 128 * kMiB;
// Expiry of values that a killed process leaves: longer than any write takes.
constexpr std::array<std::string_view, 2> kStagedFor = {"EX", "86400"};
constexpr std::array<std::string_view, 1> kIfNew = {"NX"};
// Time that removing values may take after a cancellation.
constexpr std::chrono::milliseconds kGrace{300};
// Attempts to commit while other clients replace the existing file.
constexpr int kMostCommits = 5;

struct Value {
  std::string key;
  uint64_t offset;  // In the file.
  uint64_t length;

  uint64_t end() const { return offset + length; }
};

// Returns the values of a file. Data that is too long for one value is split.
// Fails with kUnsupported if tensors share bytes.
Result<std::vector<Value>> ValuesOf(const KeyLayout& layout) {
  std::vector<Value> values;
  for (const Piece& piece : layout.pieces) {
    if (!values.empty() && piece.offset < values.back().end()) {
      return Status(Code::kUnsupported,
                    "tensors that share bytes have no keys in Redis");
    }
    uint64_t at = piece.offset;
    const uint64_t end = piece.offset + piece.length;
    do {
      const uint64_t length = std::min(end - at, kMostValueBytes);
      values.push_back({piece.KeyAt(at), at, length});
      at += length;
    } while (at < end);
  }
  return values;
}

// Bytes passed to a sink: in memory or in a file.
class Given {
 public:
  explicit Given(std::span<const std::byte> bytes)
      : bytes_(bytes), length_(bytes.size()) {}
  Given(const FileBytes& file, uint64_t length)
      : file_(file), length_(length) {}

  uint64_t length() const { return length_; }

  // Removes and returns the first `length` bytes.
  Given Take(uint64_t length) {
    Given first = *this;
    first.length_ = length;
    if (file_.fd < 0) {
      first.bytes_ = bytes_.first(length);
      bytes_ = bytes_.subspan(length);
    }
    file_.offset += length;
    length_ -= length;
    return first;
  }
  Status AppendTo(std::vector<std::byte>* out) const {
    if (file_.fd < 0) {
      out->insert(out->end(), bytes_.begin(), bytes_.end());
      return Status();
    }
    out->resize(out->size() + length_);
    return ReadFully(file_.fd, file_.offset, std::span(*out).last(length_));
  }
  Status SendTo(Connection& server) const {
    return file_.fd < 0 ? server.Send(bytes_) : server.SendFile(file_, length_);
  }

 private:
  std::span<const std::byte> bytes_;
  FileBytes file_;
  uint64_t length_;
};

std::string RandomWord() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

Status CheckValueBytes(uint64_t size) {
  if (size <= kMostStringBytes) return Status();
  return Status(Code::kLimit,
                fmt::format("a value in Redis holds {} bytes at most, found "
                            "{}: a Tensorizer file under a prefix may be "
                            "longer",
                            kMostStringBytes, size));
}

class Sink : public ByteSink {
 public:
  Sink(Target target, Existing existing)
      : target_(std::move(target)),
        is_value_(!target_.key.empty()),
        // By default a plain value is replaced, like a file.
        replaces_(existing == Existing::kReplace ||
                  (existing == Existing::kUsual && is_value_)),
        staging_(fmt::format("{}.haulway-{}", target_.prefix, RandomWord())) {}

  ~Sink() override { RemoveStaged(); }

  std::string_view name() const override { return target_.name; }

  // Refuses as much as possible before anything is written.
  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    if (is_value_ && size.has_value()) HAULWAY_TRY(CheckValueBytes(*size));
    HAULWAY_ASSIGN(server_, Connection::Open(target_, NewDeadline()));
    if (!replaces_) HAULWAY_TRY(CheckAbsent());
    SinkTraits traits;
    if (is_value_ && !size.has_value()) {
      is_spooled_ = true;
      HAULWAY_TRY(spool_.Open());
      return traits;
    }
    traits.ordered = true;
    if (is_value_) HAULWAY_TRY(BeginValue(*size));
    return traits;
  }

  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    if (is_spooled_) return spool_.WriteAt(offset, parts);
    HAULWAY_TRY(CheckOrder(offset));
    server_->SetDeadline(NewDeadline());
    for (const auto part : parts) HAULWAY_TRY(Send(Given(part)));
    return Status();
  }

  Status CopyAt(uint64_t offset, const FileBytes& from,
                uint64_t length) override {
    if (is_spooled_) return spool_.ShareAt(offset, from, length);
    HAULWAY_TRY(CheckOrder(offset));
    server_->SetDeadline(NewDeadline());
    return Send(Given(from, length));
  }

  Status Commit(uint64_t size) override {
    if (is_spooled_) HAULWAY_TRY(SendSpooled(size));
    server_->SetDeadline(NewDeadline());
    if (size < at_) {
      return Status(Code::kInvalidArgument,
                    "bytes that were sent cannot be cut");
    }
    // Bytes that were not written are zero.
    const std::vector<std::byte> zeros(std::min(size - at_, kCopyBytes));
    while (at_ < size) {
      const auto some =
          std::span(zeros).first(std::min<uint64_t>(zeros.size(), size - at_));
      HAULWAY_TRY(Send(Given(some)));
    }
    HAULWAY_TRY(is_value_ ? CommitValue() : CommitFile(size));
    is_committed_ = true;
    return Status();
  }

 private:
  // Returns the key that every reader reads first.
  std::string KeyOfAll() const {
    return is_value_ ? target_.key : HeaderKey(target_.prefix);
  }
  // Returns a temporary key, outside the prefix, so that it is not mistaken for
  // a part of the file.
  std::string Staged(size_t value) const {
    return fmt::format("{}:{}", staging_, value);
  }

  Status IsThere() const {
    return Status(
        Code::kInvalidArgument,
        fmt::format("key {} is there already: expected a new {}, or "
                    "the option overwrite, which save, writer, convert "
                    "and put have",
                    Quote(KeyOfAll()), is_value_ ? "key" : "prefix"));
  }

  Status CheckAbsent() {
    server_->Add({"EXISTS", KeyOfAll()});
    HAULWAY_TRY(server_->Flush());
    HAULWAY_ASSIGN(const int64_t count, server_->ReadInteger());
    return count == 0 ? Status() : IsThere();
  }

  Status CheckOrder(uint64_t offset) const {
    if (offset == at_) return Status();
    return Status(Code::kInvalidArgument, "Redis is written to in order")
        .At(offset);
  }

  std::span<const std::string_view> Condition() const {
    if (replaces_) return {};
    return kIfNew;
  }

  // Begins a plain value. Commit() sends its end, so it does not exist before.
  Status BeginValue(uint64_t size) {
    value_bytes_ = size;
    server_->BeginSet(target_.key, size, Condition().size());
    return server_->Flush();
  }

  Status WrongLength() const {
    return Status(Code::kInvalidArgument,
                  fmt::format("it has a wrong length: expected {} bytes, found "
                              "{}",
                              value_bytes_, at_));
  }

  Status CommitValue() {
    if (at_ != value_bytes_) return WrongLength();
    server_->EndSet(Condition());
    HAULWAY_TRY(server_->Flush());
    auto is_set = server_->ReadWhetherSet();
    if (!is_set.ok()) return InKey(std::move(is_set).status(), target_.key);
    return *is_set ? Status() : IsThere();
  }

  Status SendSpooled(uint64_t size) {
    HAULWAY_TRY(CheckValueBytes(size));
    HAULWAY_TRY(spool_.End(size));
    // The first connection has been idle since Begin(), so the server may have
    // closed it.
    HAULWAY_ASSIGN(server_, Connection::Open(target_, NewDeadline()));
    HAULWAY_TRY(BeginValue(size));
    std::vector<std::byte> copy(std::min(size, kCopyBytes));
    while (at_ < size) {
      server_->SetDeadline(NewDeadline());
      const auto part =
          std::span(copy).first(std::min<uint64_t>(copy.size(), size - at_));
      HAULWAY_TRY(spool_.ReadAt(at_, part));
      HAULWAY_TRY(Send(Given(part)));
    }
    return Status();
  }

  Status Send(Given given) {
    at_ += given.length();
    if (is_value_) {
      return at_ <= value_bytes_ ? given.SendTo(*server_) : WrongLength();
    }
    while (values_.empty() && given.length() != 0) {
      const Given part = given.Take(
          std::min<uint64_t>(given.length(), head_bytes_ - head_.size()));
      HAULWAY_TRY(part.AppendTo(&head_));
      if (head_.size() == head_bytes_) HAULWAY_TRY(ReadHead(UINT64_MAX));
    }
    return values_.empty() ? Status() : SendValues(given);
  }

  // Parses the file's beginning, which gives the length of the head, and then
  // the head, which gives the offset of each value. The head itself is sent
  // last.
  Status ReadHead(uint64_t file_bytes) {
    if (!tensorizer::IsTensorizer(head_)) {
      return Status(Code::kUnsupported,
                    "only a Tensorizer file has keys under a prefix: expected "
                    "one, or ?key=NAME for a file of another format");
    }
    const bool is_all = at_ == file_bytes;
    if (!knows_length_) {
      HAULWAY_ASSIGN(const tensorizer::Preamble preamble,
                     tensorizer::ParsePreamble(
                         std::span(head_).first(std::min<size_t>(
                             head_.size(), tensorizer::kPreambleBytes)),
                         std::min<uint64_t>(file_bytes, INT64_MAX), {}));
      head_bytes_ = preamble.index_offset + preamble.index_bytes;
      knows_length_ = true;
      if (head_.size() < head_bytes_ && !is_all) return Status();
    }
    HAULWAY_ASSIGN(const KeyLayout layout, LayOutKeys(target_.prefix, head_));
    file_bytes_ = layout.file_bytes;
    HAULWAY_ASSIGN(values_, ValuesOf(layout));
    position_ = values_.front().end();
    const std::vector<std::byte> rest(
        head_.begin() + static_cast<ptrdiff_t>(position_), head_.end());
    head_.resize(position_);
    return SendValues(Given(rest));
  }

  // Sends the values, each from its offset on. Skips bytes that belong to no
  // value.
  Status SendValues(Given given) {
    while (sending_ < values_.size()) {
      const Value& value = values_[sending_];
      if (!is_begun_ && position_ == value.offset) {
        server_->BeginSet(Staged(sending_), value.length, kStagedFor.size());
        is_begun_ = true;
      }
      if (is_begun_ && position_ == value.end()) {
        HAULWAY_TRY(EndValue());
        continue;
      }
      if (given.length() == 0) return Status();
      const uint64_t end = is_begun_ ? value.end() : value.offset;
      const Given part = given.Take(std::min(given.length(), end - position_));
      if (is_begun_) HAULWAY_TRY(part.SendTo(*server_));
      position_ += part.length();
    }
    return Status();
  }

  Status EndValue() {
    server_->EndSet(kStagedFor);
    unanswered_bytes_ += values_[sending_].length;
    is_begun_ = false;
    ++sending_;
    if (sending_ - answered_ <= kMostUnanswered &&
        unanswered_bytes_ <= kMostUnansweredBytes) {
      return Status();
    }
    return ReadAnswers(kMostUnanswered / 2, kMostUnansweredBytes / 2);
  }

  // Reads replies until at most this many values and bytes are unanswered.
  Status ReadAnswers(size_t most, uint64_t most_bytes) {
    HAULWAY_TRY(server_->Flush());
    while (sending_ - answered_ > most || unanswered_bytes_ > most_bytes) {
      const Value& value = values_[answered_++];
      unanswered_bytes_ -= value.length;
      Status status = server_->ReadOk();
      if (!status.ok()) return InKey(std::move(status), value.key);
    }
    return Status();
  }

  static Status InKey(Status status, std::string_view key) {
    return std::move(status).In(fmt::format("key {}", Quote(key)));
  }

  Status CommitFile(uint64_t size) {
    if (values_.empty()) HAULWAY_TRY(ReadHead(size));
    if (file_bytes_ != size || sending_ < values_.size()) {
      return Status(Code::kUnsupported,
                    fmt::format("what follows the last tensor has no key in "
                                "Redis: expected {} bytes, found {}; an "
                                "encrypted file of Haulway's can be kept by "
                                "?key=NAME",
                                file_bytes_, size));
    }
    HAULWAY_TRY(ReadAnswers(0, 0));
    server_->BeginSet(Staged(0), head_.size(), kStagedFor.size());
    HAULWAY_TRY(server_->Send(head_));
    server_->EndSet(kStagedFor);
    HAULWAY_TRY(server_->Flush());
    Status status = server_->ReadOk();
    if (!status.ok()) return InKey(std::move(status), values_[0].key);
    for (int i = 0; i < kMostCommits; ++i) {
      HAULWAY_ASSIGN(const bool is_done, TakeNames());
      if (is_done) return Status();
    }
    return Status(Code::kUnavailable, "others replace it again and again");
  }

  // Renames all values and removes an existing file. Returns false if another
  // client changed something meanwhile.
  Result<bool> TakeNames() {
    HAULWAY_ASSIGN(const bool exists, WatchAll());
    if (exists && !replaces_) return IsThere();
    std::vector<std::string> old;
    if (exists) {
      HAULWAY_ASSIGN(old, KeysOfOld());
    }
    server_->Add({"MULTI"});
    for (const std::string& key : old) server_->Add({"UNLINK", key});
    for (size_t i = 0; i < values_.size(); ++i) {
      server_->Add({"RENAME", Staged(i), values_[i].key});
      server_->Add({"PERSIST", values_[i].key});
    }
    server_->Add({"EXEC"});
    HAULWAY_TRY(server_->Flush());
    HAULWAY_TRY(server_->ReadOk());
    for (size_t i = 0; i < old.size() + 2 * values_.size(); ++i) {
      HAULWAY_TRY(server_->ReadOk());  // "QUEUED": the command runs at EXEC.
    }
    HAULWAY_ASSIGN(const std::optional<int64_t> replies, server_->ReadArray());
    if (!replies.has_value()) return false;
    for (size_t i = 0; i < old.size(); ++i) {
      HAULWAY_TRY(server_->ReadInteger().status());
    }
    for (const Value& value : values_) {
      Status renamed = server_->ReadOk();
      if (!renamed.ok()) return InKey(std::move(renamed), value.key);
      HAULWAY_TRY(server_->ReadInteger().status());
    }
    return true;
  }

  // Watches the old file's first key and all values: any change aborts the next
  // transaction. Returns whether there is an old file.
  Result<bool> WatchAll() {
    std::vector<std::string> keys{KeyOfAll()};
    for (size_t i = 0; i < values_.size(); ++i) keys.push_back(Staged(i));
    for (const std::string& key : keys) server_->Add({"WATCH", key});
    for (const std::string& key : keys) server_->Add({"EXISTS", key});
    HAULWAY_TRY(server_->Flush());
    for (size_t i = 0; i < keys.size(); ++i) HAULWAY_TRY(server_->ReadOk());
    HAULWAY_ASSIGN(const int64_t exists, server_->ReadInteger());
    for (const Value& value : values_) {
      HAULWAY_ASSIGN(const int64_t count, server_->ReadInteger());
      if (count == 0) return Missing(value.key);
    }
    return exists != 0;
  }

  Result<std::vector<std::string>> KeysOfOld() {
    const std::string key = KeyOfAll();
    std::vector<std::string> keys{key};
    HAULWAY_ASSIGN(const auto lengths,
                   ReadLengths(*server_, std::span(&key, 1)));
    // No server can hold a longer value, whatever it reports.
    if (lengths.front() > kMostStringBytes) return keys;
    std::vector<std::byte> head(lengths.front());
    server_->Add({"GET", key});
    HAULWAY_TRY(server_->Flush());
    HAULWAY_TRY(server_->ReadValue(head).status());
    const auto layout = LayOutKeys(target_.prefix, head);
    if (!layout.ok()) return keys;  // The key does not hold a file.
    for (const Piece& piece : layout->pieces) {
      if (piece.length == 0) keys.push_back(piece.key());
    }
    HAULWAY_ASSIGN(auto found, FindValues(*server_, layout->pieces));
    for (Stored& one : found) keys.push_back(std::move(one.key));
    return keys;
  }

  // The time limit for one call of this class.
  Deadline NewDeadline() const { return Deadline(target_.options.deadline); }

  // Waits until the server has executed what it was sent: later execution would
  // follow the removal, which uses another connection. Returns false if the
  // server does not reply in time.
  bool AwaitServer(const Deadline& deadline) {
    if (server_ == nullptr) return false;
    server_->SetDeadline(deadline);
    Code code = server_->Flush().code();
    for (; answered_ < sending_ && !IsLost(code); ++answered_) {
      code = server_->ReadOk().code();
    }
    return code != Code::kTimeout && code != Code::kCancelled;
  }
  static bool IsLost(Code code) {
    return code == Code::kUnavailable || code == Code::kTimeout ||
           code == Code::kCancelled;
  }

  // Removes the temporary values as far as the server still replies. Uses a new
  // connection, since the old one may be unusable after a failure.
  void RemoveStaged() {
    if (values_.empty() || is_committed_) return;
    // After a cancellation, values are still removed, for a limited time.
    const Deadline deadline = NewDeadline().WithGrace(kGrace);
    if (!AwaitServer(deadline)) return;
    auto server = Connection::Open(target_, deadline);
    if (!server.ok()) return;
    for (size_t begin = 0; begin < sending_; begin += kBatch) {
      const size_t end = std::min(sending_, begin + kBatch);
      for (size_t i = begin; i < end; ++i) {
        (*server)->Add({"UNLINK", Staged(i)});
      }
      if (!(*server)->Flush().ok()) return;
      for (size_t i = begin; i < end; ++i) {
        const Code code = (*server)->ReadInteger().status().code();
        // A key that may not be removed does not prevent removing the others.
        if (code != Code::kOk && code != Code::kPermissionDenied) return;
      }
    }
  }

  const Target target_;
  const bool is_value_;
  const bool replaces_;
  const std::string staging_;
  std::unique_ptr<Connection> server_;
  uint64_t at_ = 0;  // Bytes written so far.
  bool is_committed_ = false;

  // For a plain value.
  uint64_t value_bytes_ = 0;
  bool is_spooled_ = false;
  Spool spool_;

  // For a file.
  std::vector<std::byte> head_;
  // The length of the head, as far as known.
  uint64_t head_bytes_ = tensorizer::kPreambleBytes;
  bool knows_length_ = false;
  uint64_t file_bytes_ = 0;
  std::vector<Value> values_;  // Empty until the head is parsed.
  uint64_t position_ = 0;      // File offset of the next byte to send.
  size_t sending_ = 1;
  bool is_begun_ = false;
  size_t answered_ = 1;
  uint64_t unanswered_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<ByteSink>> OpenSink(std::string_view uri,
                                           std::string_view server,
                                           const FileSinkOptions& options,
                                           const ConnectOptions& connect) {
  HAULWAY_ASSIGN(Target target, ParseTarget(uri, server));
  target.options = connect;
  return MakeProcessSink(
      std::make_unique<Sink>(std::move(target), options.existing));
}

}  // namespace haulway::redis
