// Design: the writer's thread fills one part while other parts are being sent,
// each by its own thread; a part that lies in a file is read by the sending
// thread. If all threads are busy, the writer waits. So memory use is the parts
// in flight plus one, whatever the object's size, and the memory is reused. If
// parts are signed, two are digested together, which takes little longer than
// one. An object that fits in one part is sent by a single PUT, without an
// upload.
//
// An object appears with the last request. If the response to that request is
// lost, or says that there is no such upload or that an object exists, the
// store is asked whether the object has this upload's mark. Any other failure
// aborts the upload: first all parts in flight are stopped, then the upload is
// deleted, then parts that arrived late.

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/rand.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/no_memory.h"
#include "base/posix.h"
#include "base/sha256.h"
#include "base/text.h"
#include "haulway/open.h"
#include "haulway/options.h"
#include "io/process_sink.h"
#include "s3/digests.h"
#include "s3/part_plan.h"
#include "s3/s3_client.h"
#include "s3/s3_remove.h"
#include "s3/xml.h"

namespace haulway {

namespace {

using s3::ObjectName;
using s3::Pairs;
using s3::S3Client;

constexpr uint64_t kMostInFlight = 128 * kMiB;
constexpr int kMostSenders = 16;
constexpr std::string_view kMark = "x-amz-meta-haulway-upload";
constexpr int kAbortRounds = 3;
// Bytes read from a file at a time: still in the processor's cache when they
// are digested.
constexpr uint64_t kReadBytes = 256 * kKiB;
// Larger parts are not requested from the writer in one piece.
constexpr uint64_t kLargestRequest = 16 * kMiB;
// How often a wait checks whether it is cancelled.
constexpr std::chrono::milliseconds kTick{50};
// Time that aborting an upload may take after a cancellation.
constexpr std::chrono::milliseconds kGrace{500};

Result<std::string> RandomMark() {
  std::array<unsigned char, 16> bytes{};
  if (::RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    return Status(Code::kInternal, "there are no random numbers");
  }
  return Hex(std::as_bytes(std::span(bytes)));
}

std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A part of the upload: bytes, or a range of a file that the sending thread
// reads.
struct Part {
  uint64_t number = 0;  // Starting at 1.
  std::vector<std::byte> bytes;
  UniqueFd file;
  uint64_t offset = 0;
  uint64_t length = 0;
  // Header values, set after digesting.
  std::string payload = std::string(s3::kUnsignedPayload);
  std::string checksum;
  uint32_t crc = 0;

  bool is_file() const { return file.get() >= 0; }
  uint64_t size() const { return is_file() ? length : bytes.size(); }

  // Returns a piece from `begin` on. `memory`: for bytes read from a file.
  Result<std::span<const std::byte>> Piece(
      uint64_t begin, std::vector<std::byte>* memory) const {
    const auto count =
        static_cast<size_t>(std::min(kReadBytes, size() - begin));
    if (!is_file()) return std::span(bytes).subspan(begin, count);
    memory->resize(kReadBytes);
    const auto piece = std::span(*memory).first(count);
    HAULWAY_TRY(ReadFully(file.get(), offset + begin, piece));
    return std::span<const std::byte>(piece);
  }

  // Calls `take` with all pieces.
  Status ForEachPiece(const s3::TakePiece& take) const {
    std::vector<std::byte> memory;
    for (uint64_t done = 0; done < size(); done += kReadBytes) {
      HAULWAY_ASSIGN(const auto piece, Piece(done, &memory));
      take(piece);
    }
    return Status();
  }
};

class S3Sink : public ByteSink {
 public:
  S3Sink(std::shared_ptr<S3Client> client, ObjectName name, Existing existing)
      : client_(std::move(client)),
        object_(std::move(name)),
        name_(object_.Shown()),
        existing_(existing) {}

  ~S3Sink() override {
    if (upload_.empty() || is_ended_) return;
    cancel_ = true;
    (void)Abort();
  }

  std::string_view name() const override { return name_; }

  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    size_ = size;
    if (existing_ == Existing::kRefuse) HAULWAY_TRY(CheckAbsent());
    SinkTraits traits;
    traits.ordered = true;
    const uint64_t part = s3::PartBytes(size, 0);
    if (part <= kLargestRequest) traits.request_bytes = part;
    return traits;
  }

  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    if (offset != end_) {
      return Status(Code::kInvalidArgument, "an upload is written in order")
          .At(offset);
    }
    for (std::span<const std::byte> bytes : parts) {
      end_ += bytes.size();
      while (!bytes.empty()) {
        const uint64_t full = s3::PartBytes(size_, next_number_ - 1);
        if (filling_.size() == full) {
          Status sent = SendFilling();
          if (!sent.ok()) return Fail(std::move(sent));
          continue;
        }
        if (filling_.empty()) {
          filling_ = TakeSpare();
          filling_.clear();
          filling_.reserve(size_.has_value() ? std::min(full, *size_) : full);
        }
        const size_t length =
            std::min<uint64_t>(bytes.size(), full - filling_.size());
        filling_.insert(filling_.end(), bytes.begin(),
                        bytes.begin() + static_cast<ptrdiff_t>(length));
        bytes = bytes.subspan(length);
      }
    }
    return Status();
  }

  Status CopyAt(uint64_t offset, const FileBytes& from,
                uint64_t length) override {
    const uint64_t full = s3::PartBytes(size_, next_number_ - 1);
    const bool is_part = length == full || offset + length == size_;
    const bool is_whole = size_.has_value() && *size_ <= full;
    if (offset != end_ || !filling_.empty() || !is_part || is_whole ||
        length > full) {
      return Status(Code::kUnsupported, "it is no part of its own");
    }
    Part part;
    part.file = UniqueFd(::fcntl(from.fd, F_DUPFD_CLOEXEC, 0));
    if (part.file.get() < 0) {
      return Status(Code::kUnsupported, "it cannot be opened again");
    }
    part.offset = from.offset;
    part.length = length;
    end_ += length;
    Status handed = HandOver(std::move(part));
    return handed.ok() ? Status() : Fail(std::move(handed));
  }

  Status Commit(uint64_t size) override {
    if (size < end_) {
      return Status(Code::kInvalidArgument, "an upload cannot be cut");
    }
    // Bytes that were not written are zero.
    const std::vector<std::byte> zeros(
        std::min<uint64_t>(size - end_, s3::kLeastPart));
    while (end_ < size) {
      const auto some = std::span<const std::byte>(zeros).first(
          std::min<uint64_t>(zeros.size(), size - end_));
      HAULWAY_TRY(WriteAt(end_, std::span(&some, 1)));
    }
    Status done = upload_.empty() ? PutWhole() : Complete(size);
    if (!done.ok()) return Fail(std::move(done));
    is_ended_ = true;
    return Status();
  }

 private:
  Status Exists() const {
    return Status(Code::kInvalidArgument,
                  "the object is there already, and is not to be replaced");
  }

  // Returns whether the existing object is the one sent here: an earlier
  // attempt may have created it and its response been lost.
  bool IsOurs(uint64_t size) {
    const auto head = Head();
    return head.ok() && head->Header(kMark) == mark_ &&
           head->Header("content-length") == std::to_string(size);
  }

  // Marks the object, so that IsOurs() can recognise it.
  Status AddMark(net::HttpRequest* request) {
    HAULWAY_ASSIGN(mark_, RandomMark());
    request->headers.push_back({std::string(kMark), mark_});
    return Status();
  }

  Result<net::HttpResponse> Head() {
    net::HttpRequest request =
        client_->Request("HEAD", object_.bucket, object_.key, {},
                         std::string(s3::kEmptyPayload));
    client_->AddObjectHeaders(&request);
    return client_->Send(request);
  }

  Status CheckAbsent() {
    const auto found = Head();
    if (found.ok()) return Exists();
    if (found.status().code() == Code::kNotFound) return Status();
    return found.status();
  }

  // Sends a request that fails if an object exists, if that was asked for: the
  // store then returns 412 or 409.
  Result<net::HttpResponse> SendOnCondition(net::HttpRequest request) {
    if (existing_ != Existing::kRefuse) return client_->Send(request);
    request.headers.push_back({"If-None-Match", "*"});
    const auto usual = request.judge;
    request.judge = [usual](const net::HttpResponse& response) {
      if (response.status == 412 || response.status == 409) {
        return net::Verdict::kTake;
      }
      return usual(response);
    };
    HAULWAY_ASSIGN(auto response, client_->Send(request));
    if (response.status == 412 || response.status == 409) return Exists();
    return response;
  }

  // Returns the payload digest for the signature.
  std::string PayloadOf(std::span<const std::byte> bytes) const {
    return client_->signs_bodies() ? s3::HexSha256(Text(bytes))
                                   : std::string(s3::kUnsignedPayload);
  }

  Status PutWhole() {
    net::HttpRequest request = client_->Request(
        "PUT", object_.bucket, object_.key, {}, PayloadOf(filling_));
    client_->AddObjectHeaders(&request);
    std::string checksum;
    if (client_->has_checksums()) {
      checksum = s3::Crc32Text(Crc32(0, filling_));
      request.headers.push_back({"x-amz-checksum-crc32", checksum});
    }
    request.body = {filling_};
    // A replacing PUT may be repeated. A refusing one must recognise the result
    // of its first attempt.
    const bool refuses = existing_ == Existing::kRefuse;
    if (refuses) HAULWAY_TRY(AddMark(&request));
    const auto put = SendOnCondition(std::move(request));
    if (put.ok()) {
      return s3::CheckTaken(*put, s3::HasMd5(*put, object_.bucket), checksum,
                            [&](const s3::TakePiece& take) {
                              take(filling_);
                              return Status();
                            });
    }
    if (refuses && IsOurs(filling_.size())) return Status();
    return put.status();
  }

  Status Create() {
    net::HttpRequest request =
        client_->Request("POST", object_.bucket, object_.key, {{"uploads", ""}},
                         std::string(s3::kEmptyPayload));
    client_->AddObjectHeaders(&request);
    HAULWAY_TRY(AddMark(&request));
    if (client_->has_checksums()) {
      request.headers.push_back({"x-amz-checksum-algorithm", "CRC32"});
    }
    HAULWAY_ASSIGN(const auto response, client_->Send(request));
    upload_ = s3::XmlText(response.body, "UploadId");
    has_md5_ = s3::HasMd5(response, object_.bucket);
    if (upload_.empty()) {
      return Status(Code::kCorrupt,
                    "the store begins an upload without an UploadId");
    }
    const uint64_t bytes = s3::PartBytes(size_, 0);
    const int most = static_cast<int>(std::clamp<uint64_t>(
        kMostInFlight / bytes, 1,
        std::min(kMostSenders, client_->http()->options().connections)));
    for (int i = 0; i < most; ++i) {
      senders_.emplace_back([this] { SendParts(); });
    }
    return Status();
  }

  Status SendFilling() {
    Part part;
    part.bytes = std::move(filling_);
    filling_ = {};
    return HandOver(std::move(part));
  }

  // Returns memory for a part, reused if possible: new memory takes as long to
  // populate as to fill.
  std::vector<std::byte> TakeSpare() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) return {};
    std::vector<std::byte> bytes = std::move(spare_.back());
    spare_.pop_back();
    return bytes;
  }

  // Hands a part to a free sender.
  Status HandOver(Part part) {
    if (upload_.empty()) HAULWAY_TRY(Create());
    std::unique_lock lock(mutex_);
    // Wait for a free sender: one more waiting part would only take memory.
    is_full_ = in_flight_ >= senders_.size();
    if (is_full_) changed_.notify_all();
    while (!changed_.wait_for(lock, kTick, [&] {
      return in_flight_ < senders_.size() || !failure_.ok();
    })) {
      if (CancelScope::IsCancelled()) {
        return Status(Code::kCancelled, "writing was cancelled");
      }
    }
    is_full_ = false;
    HAULWAY_TRY(failure_);
    ++in_flight_;
    part.number = next_number_++;
    waiting_.push_back(std::move(part));
    sent_.emplace_back();
    lock.unlock();
    changed_.notify_all();
    return Status();
  }

  // Thread function of a sender. Digests waiting parts two at a time, which
  // takes little longer than one; then any free sender sends them.
  void SendParts() {
    while (true) {
      std::vector<Part> parts;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] {
          return !ready_.empty() || waiting_.size() > 1 || is_last_ ||
                 (!waiting_.empty() && (is_full_ || !client_->signs_bodies()));
        });
        std::deque<Part>& from = ready_.empty() ? waiting_ : ready_;
        if (from.empty()) return;
        const size_t most = &from == &waiting_ ? 2 : 1;
        while (!from.empty() && parts.size() < most) {
          parts.push_back(std::move(from.front()));
          from.pop_front();
        }
        if (!failure_.ok()) {
          in_flight_ -= parts.size();
          continue;
        }
        if (most == 2) {
          lock.unlock();
          Status status = Digest(parts);
          lock.lock();
          if (!status.ok()) {
            NoteFailure(std::move(status), parts.front().number);
            in_flight_ -= parts.size();
            changed_.notify_all();
            continue;
          }
        }
        while (parts.size() > 1) {
          ready_.push_back(std::move(parts.back()));
          parts.pop_back();
        }
      }
      changed_.notify_all();
      SendOne(&parts.front());
    }
  }

  // Requires the mutex.
  void NoteFailure(Status status, uint64_t number) {
    if (!failure_.ok()) return;
    failure_ = std::move(status).In(fmt::format("part {}", number));
    cancel_ = true;
  }

  void SendOne(Part* part) {
    s3::TakenPart sent;
    Status status = SendPart(*part, &sent);
    {
      const std::lock_guard lock(mutex_);
      --in_flight_;
      spare_.push_back(std::move(part->bytes));
      if (status.ok()) {
        sent_[part->number - 1] = std::move(sent);
      } else {
        NoteFailure(std::move(status), part->number);
      }
    }
    changed_.notify_all();
  }

  Status Digest(std::span<Part> parts) const {
    const bool is_signed = client_->signs_bodies();
    const bool has_checksum = client_->has_checksums();
    if (!is_signed && !has_checksum) return Status();
    return OrNoMemory([&]() -> Status {
      std::array<Sha256, 2> digests;
      std::array<uint32_t, 2> crcs{};
      std::array<std::vector<std::byte>, 2> memory;
      for (uint64_t done = 0;; done += kReadBytes) {
        std::vector<Sha256*> whose;
        std::vector<std::span<const std::byte>> pieces;
        for (size_t i = 0; i < parts.size(); ++i) {
          if (done >= parts[i].size()) continue;
          HAULWAY_ASSIGN(const auto piece, parts[i].Piece(done, &memory[i]));
          if (has_checksum) crcs[i] = Crc32(crcs[i], piece);
          whose.push_back(&digests[i]);
          pieces.push_back(piece);
        }
        if (pieces.empty()) break;
        if (is_signed) Sha256::UpdateTogether(whose, pieces);
      }
      for (size_t i = 0; i < parts.size(); ++i) {
        if (is_signed) parts[i].payload = Hex(digests[i].Finish());
        if (has_checksum) {
          parts[i].crc = crcs[i];
          parts[i].checksum = s3::Crc32Text(crcs[i]);
        }
      }
      return Status();
    });
  }

  Status SendPart(const Part& part, s3::TakenPart* taken) {
    return OrNoMemory([&]() -> Status {
      net::HttpRequest request = client_->Request(
          "PUT", object_.bucket, object_.key,
          {{"partNumber", std::to_string(part.number)}, {"uploadId", upload_}},
          part.payload);
      client_->AddObjectHeaders(&request);
      if (!part.checksum.empty()) {
        request.headers.push_back({"x-amz-checksum-crc32", part.checksum});
      }
      if (part.is_file()) {
        request.file = {part.file.get(), part.offset};
        request.file_bytes = part.length;
      } else {
        request.body = {part.bytes};
      }
      HAULWAY_ASSIGN(const auto response, client_->Send(request, &cancel_));
      HAULWAY_TRY(s3::CheckTaken(
          response, has_md5_ && s3::HasMd5(response, object_.bucket),
          part.checksum,
          [&](const s3::TakePiece& take) { return part.ForEachPiece(take); }));
      *taken = {std::string(response.Header("etag")), part.checksum, part.crc,
                part.size()};
      if (!taken->etag.empty()) return Status();
      return Status(Code::kCorrupt, "the store took a part without an ETag");
    });
  }

  // Waits for all parts, or stops them if the call is cancelled. Ends all
  // sender threads.
  Status JoinSenders() {
    {
      std::unique_lock lock(mutex_);
      is_last_ = true;
      changed_.notify_all();
      while (in_flight_ > 0 && !CancelScope::IsCancelled()) {
        changed_.wait_for(lock, kTick);
      }
      if (in_flight_ > 0) cancel_ = true;
    }
    for (std::thread& sender : senders_) sender.join();
    senders_.clear();
    return failure_;
  }

  Status Complete(uint64_t size) {
    if (!filling_.empty()) HAULWAY_TRY(SendFilling());
    HAULWAY_TRY(JoinSenders());
    const bool refuses = existing_ == Existing::kRefuse;
    if (refuses) HAULWAY_TRY(CheckAbsent());
    std::string list = "<CompleteMultipartUpload>";
    for (size_t i = 0; i < sent_.size(); ++i) {
      list += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag>",
                          i + 1, s3::XmlEscape(sent_[i].etag));
      if (!sent_[i].crc32.empty()) {
        list +=
            fmt::format("<ChecksumCRC32>{}</ChecksumCRC32>", sent_[i].crc32);
      }
      list += "</Part>";
    }
    list += "</CompleteMultipartUpload>";
    const auto body = std::as_bytes(std::span(list));
    net::HttpRequest request =
        client_->Request("POST", object_.bucket, object_.key,
                         {{"uploadId", upload_}}, s3::HexSha256(list));
    client_->AddObjectHeaders(&request);
    request.headers.push_back({"Content-Type", "application/xml"});
    request.body = {body};
    const auto response = SendOnCondition(std::move(request));
    Status failed = response.status();
    if (response.ok()) {
      // The store sends status 200 before it knows the result.
      if (s3::XmlElement(response->body, "CompleteMultipartUploadResult")) {
        return s3::CheckJoined(
            *response, has_md5_ && s3::HasMd5(*response, object_.bucket),
            std::vector(sent_.begin(), sent_.end()));
      }
      failed = Status(Code::kIoError,
                      fmt::format("the store answers 200, and then the error "
                                  "{}",
                                  Quote(s3::XmlText(response->body, "Code"))));
    }
    const bool may_be_done = failed.code() == Code::kNotFound ||
                             failed.code() == Code::kUnavailable ||
                             failed.code() == Code::kTimeout || response.ok() ||
                             refuses;
    return may_be_done && IsOurs(size) ? Status() : failed;
  }

  // Aborts the upload and returns the original failure.
  Status Fail(Status why) {
    if (upload_.empty() || is_ended_) return why;
    cancel_ = true;
    const Status ended = Abort();
    if (ended.ok()) return why;
    return std::move(why).In(fmt::format(
        "upload {}, whose parts may be left (haulway put --abort {})",
        Escape(upload_), name_));
  }

  Status Abort() {
    (void)JoinSenders();
    is_ended_ = true;
    Status ended;
    // A part that arrives late makes the upload exist again.
    for (int round = 0; round < kAbortRounds; ++round) {
      net::HttpRequest request = client_->Request(
          "DELETE", object_.bucket, object_.key, {{"uploadId", upload_}},
          std::string(s3::kEmptyPayload));
      // After a cancellation the request is still made, for a limited time.
      request.grace = kGrace;
      ended = client_->Send(request).status();
      if (!ended.ok() || CancelScope::IsCancelled()) break;
      const auto left = client_->Send(
          client_->Request("GET", object_.bucket, object_.key,
                           {{"max-parts", "1"}, {"uploadId", upload_}},
                           std::string(s3::kEmptyPayload)));
      if (!left.ok()) break;
    }
    return ended.code() == Code::kNotFound ? Status() : ended;
  }

  const std::shared_ptr<S3Client> client_;
  const ObjectName object_;
  const std::string name_;
  const Existing existing_;
  std::optional<uint64_t> size_;
  uint64_t end_ = 0;
  std::vector<std::byte> filling_;
  uint64_t next_number_ = 1;
  std::string upload_;
  bool has_md5_ = false;  // Whether the store's ETags are MD5s.
  std::string mark_;
  bool is_ended_ = false;
  std::atomic<bool> cancel_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Part> waiting_ HAULWAY_GUARDED_BY(mutex_);
  std::deque<Part> ready_ HAULWAY_GUARDED_BY(mutex_);  // Digested.
  // Whether the writer waits for a free sender.
  bool is_full_ HAULWAY_GUARDED_BY(mutex_) = false;
  std::deque<s3::TakenPart> sent_ HAULWAY_GUARDED_BY(mutex_);
  std::vector<std::vector<std::byte>> spare_ HAULWAY_GUARDED_BY(mutex_);
  size_t in_flight_ HAULWAY_GUARDED_BY(mutex_) = 0;
  bool is_last_ HAULWAY_GUARDED_BY(mutex_) = false;
  Status failure_ HAULWAY_GUARDED_BY(mutex_);
  std::vector<std::thread> senders_;
};

}  // namespace

Result<std::unique_ptr<ByteSink>> OpenS3Sink(std::string_view uri,
                                             const S3Options& options,
                                             const FileSinkOptions& file,
                                             const RemoteOptions& remote) {
  using Sink = std::unique_ptr<ByteSink>;
  return OrNoMemory([&]() -> Result<Sink> {
    HAULWAY_ASSIGN(ObjectName name, s3::ParseObjectName(uri));
    if (name.key.empty() || name.key.ends_with('/') || !name.version.empty()) {
      return Status(Code::kInvalidArgument,
                    "an object to write has a key, and no version: expected "
                    "s3://BUCKET/KEY");
    }
    HAULWAY_ASSIGN(auto client, S3Client::Make(options, remote));
    return MakeProcessSink(std::make_unique<S3Sink>(
        std::move(client), std::move(name), file.existing));
  });
}

Result<uint64_t> AbortS3Uploads(std::string_view uri, const S3Options& options,
                                const RemoteOptions& remote) {
  return s3::AbortUploads(uri, options, remote, [](auto) { return true; });
}

}  // namespace haulway
