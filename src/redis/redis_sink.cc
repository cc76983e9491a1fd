// How: a file that is written is spooled, and sent on Commit(): only then is
// the layout complete from which the keys are named. What lies in a file
// already is sent from there. Values are sent many before their answers are
// read. A file that is
// there already is removed before, its first key first, so that nobody takes
// what is left of it for a file.
//
// A transaction (MULTI) was left out: the server would hold a second copy of
// the whole model until EXEC. Sending while the file is made was, too:
// Tensorizer's headers hold digests, which are known after the data. What was
// set before a failure is removed on another connection, since the first may be
// of no use.

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "haulway/options.h"
#include "io/spool.h"
#include "redis/redis.h"
#include "redis/redis_connection.h"
#include "redis/redis_layout.h"
#include "tensorizer/tensorizer_layout.h"

namespace haulway::redis {

namespace {

constexpr uint64_t kCopyBytes = kMiB;
constexpr size_t kBatch = 64;  // Values sent before their answers are read.

struct Value {
  std::string key;
  uint64_t offset;  // In the file.
  uint64_t length;
};

// The values of a file; data that is too long for one is cut.
std::vector<Value> ValuesOf(const KeyLayout& layout) {
  std::vector<Value> values;
  for (const Piece& piece : layout.pieces) {
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

class Sink : public ByteSink {
 public:
  Sink(Target target, Existing existing)
      : target_(std::move(target)), existing_(existing) {}

  std::string_view name() const override { return target_.name; }

  // Refuses what it can before anything is written.
  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    if (!target_.key.empty() && size.has_value()) {
      HAULWAY_TRY(CheckValueBytes(*size));
    }
    HAULWAY_ASSIGN(const auto server, Connection::Open(target_));
    HAULWAY_TRY(CheckExisting(*server));
    HAULWAY_TRY(spool_.Open());
    return SinkTraits{};
  }

  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    return spool_.WriteAt(offset, parts);
  }

  Status CopyAt(uint64_t offset, const FileBytes& from,
                uint64_t length) override {
    return spool_.ShareAt(offset, from, length);
  }

  Status Commit(uint64_t size) override {
    HAULWAY_TRY(spool_.End(size));
    // Idle since Begin(), the first connection may be closed by now.
    HAULWAY_ASSIGN(server_, Connection::Open(target_));
    HAULWAY_TRY(CheckExisting(*server_));
    return target_.key.empty() ? CommitFile(size) : CommitValue(size);
  }

 private:
  Status CheckExisting(Connection& server) const {
    // A plain value is replaced as a file is.
    const bool replaces =
        existing_ == Existing::kReplace ||
        (existing_ == Existing::kUsual && !target_.key.empty());
    if (replaces) return Status();
    const std::string key =
        target_.key.empty() ? HeaderKey(target_.prefix) : target_.key;
    server.Add({"EXISTS", key});
    HAULWAY_TRY(server.Flush());
    HAULWAY_ASSIGN(const int64_t count, server.ReadInteger());
    if (count == 0) return Status();
    return Status(
        Code::kInvalidArgument,
        fmt::format("key {} is there already: expected a new {}, or "
                    "to be told to overwrite",
                    Quote(key), target_.key.empty() ? "prefix" : "key"));
  }

  static Status CheckValueBytes(uint64_t size) {
    if (size <= kMostStringBytes) return Status();
    return Status(Code::kLimit,
                  fmt::format("a value in Redis holds {} bytes at most, found "
                              "{}: a Tensorizer file under a prefix may be "
                              "longer",
                              kMostStringBytes, size));
  }

  Status CommitValue(uint64_t size) {
    HAULWAY_TRY(CheckValueBytes(size));
    const Value value{target_.key, 0, size};
    return SetAll(std::span(&value, 1));
  }

  Status CommitFile(uint64_t size) {
    HAULWAY_ASSIGN(const KeyLayout layout, ReadLayout(size));
    std::vector<Value> values = ValuesOf(layout);
    if (existing_ == Existing::kReplace) HAULWAY_TRY(RemoveOld());
    const std::span<const Value> all = values;
    Status written = SetAll(all.subspan(1));
    if (written.ok()) written = SetAll(all.first(1));
    if (!written.ok()) RemoveWritten(all);
    return written;
  }

  Result<KeyLayout> ReadLayout(uint64_t size) const {
    std::vector<std::byte> head(
        std::min<uint64_t>(size, tensorizer::kPreambleBytes));
    HAULWAY_TRY(spool_.ReadAt(0, head));
    if (!tensorizer::IsTensorizer(head)) {
      return Status(Code::kUnsupported,
                    "only a Tensorizer file has keys under a prefix: expected "
                    "one, or ?key=NAME for a file of another format");
    }
    HAULWAY_ASSIGN(const tensorizer::Preamble preamble,
                   tensorizer::ParsePreamble(head, size, {}));
    head.resize(preamble.index_offset + preamble.index_bytes);
    HAULWAY_TRY(spool_.ReadAt(0, head));
    HAULWAY_ASSIGN(KeyLayout layout, LayOutKeys(target_.prefix, head));
    if (layout.file_bytes != size) {
      return Status(Code::kUnsupported,
                    fmt::format("what follows the last tensor has no key in "
                                "Redis: expected {} bytes, found {}; an "
                                "encrypted file of Haulway's can be kept by "
                                "?key=NAME",
                                layout.file_bytes, size));
    }
    return layout;
  }

  // Sets values from the spool, many before their answers are read.
  Status SetAll(std::span<const Value> values) {
    for (size_t begin = 0; begin < values.size(); begin += kBatch) {
      const auto batch =
          values.subspan(begin, std::min(kBatch, values.size() - begin));
      for (const Value& value : batch) HAULWAY_TRY(SendValue(value));
      HAULWAY_TRY(server_->Flush());
      // All answers, so that no value is set after the failure is known.
      Status first;
      for (const Value& value : batch) {
        Status status = server_->ReadOk();
        if (status.ok() || !first.ok()) continue;
        first = std::move(status).In(fmt::format("key {}", Quote(value.key)));
      }
      HAULWAY_TRY(std::move(first));
    }
    return Status();
  }

  Status SendValue(const Value& value) {
    server_->AddSet(value.key, value.length);
    copy_.resize(kCopyBytes);
    for (uint64_t done = 0; done < value.length;) {
      const auto part = std::span(copy_).first(
          std::min<uint64_t>(kCopyBytes, value.length - done));
      HAULWAY_TRY(spool_.ReadAt(value.offset + done, part));
      HAULWAY_TRY(server_->Send(part));
      done += part.size();
    }
    server_->AddEndOfValue();
    return Status();
  }

  // Removes the file that is there, its first key first: from then on nobody
  // takes what is left of it for a file.
  Status RemoveOld() {
    const std::string key = HeaderKey(target_.prefix);
    server_->Add({"STRLEN", key});
    HAULWAY_TRY(server_->Flush());
    HAULWAY_ASSIGN(const int64_t length, server_->ReadInteger());
    // No server holds a longer one, whatever it says.
    if (length <= 0 || static_cast<uint64_t>(length) > kMostStringBytes) {
      return Status();
    }
    std::vector<std::byte> head(static_cast<size_t>(length));
    server_->Add({"GET", key});
    HAULWAY_TRY(server_->Flush());
    HAULWAY_ASSIGN(const bool found, server_->ReadValue(head));
    server_->Add({"DEL", key});
    HAULWAY_TRY(server_->Flush());
    HAULWAY_TRY(server_->ReadInteger().status());
    const auto layout = LayOutKeys(target_.prefix, head);
    if (!found || !layout.ok()) return Status();  // No file, but a key.
    for (const Piece& piece : layout->pieces) {
      HAULWAY_TRY(RemovePiece(piece));
    }
    return Status();
  }

  Status RemovePiece(const Piece& piece) {
    uint64_t at = piece.offset;
    const uint64_t end = piece.offset + piece.length;
    do {
      const std::string key = piece.KeyAt(at);
      server_->Add({"STRLEN", key});
      server_->Add({"UNLINK", key});
      HAULWAY_TRY(server_->Flush());
      HAULWAY_ASSIGN(const int64_t length, server_->ReadInteger());
      HAULWAY_TRY(server_->ReadInteger().status());
      if (length <= 0) return Status();
      at += static_cast<uint64_t>(length);
    } while (at < end);
    return Status();
  }

  // As far as the server still answers. The connection may be of no use after
  // a failure, so on another one.
  void RemoveWritten(std::span<const Value> values) const {
    // What was cancelled is removed, too.
    const CancelScope whatever(static_cast<const CancelScope*>(nullptr));
    auto server = Connection::Open(target_);
    if (!server.ok()) return;
    for (size_t begin = 0; begin < values.size(); begin += kBatch) {
      const auto batch =
          values.subspan(begin, std::min(kBatch, values.size() - begin));
      for (const Value& value : batch) (*server)->Add({"UNLINK", value.key});
      if (!(*server)->Flush().ok()) return;
      for (size_t i = 0; i < batch.size(); ++i) {
        const Code code = (*server)->ReadInteger().status().code();
        // What may not be removed keeps nothing else from being.
        if (code != Code::kOk && code != Code::kPermissionDenied) return;
      }
    }
  }

  const Target target_;
  const Existing existing_;
  Spool spool_;
  std::unique_ptr<Connection> server_;
  std::vector<std::byte> copy_;
};

}  // namespace

Result<std::unique_ptr<ByteSink>> OpenSink(std::string_view uri,
                                           std::string_view server,
                                           const FileSinkOptions& options) {
  HAULWAY_ASSIGN(Target target, ParseTarget(uri, server));
  return std::unique_ptr<ByteSink>(
      std::make_unique<Sink>(std::move(target), options.existing));
}

}  // namespace haulway::redis
