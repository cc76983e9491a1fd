#include "net/http_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "base/ascii.h"
#include "base/checked.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "haulway/machine.h"
#include "haulway/options.h"
#include "io/join_ranges.h"
#include "io/model_names.h"
#include "io/web_page.h"
#include "net/answer.h"
#include "net/fork_mutex.h"
#include "net/url.h"

// Design: a checkpoint's reader first reads the beginning, the end, and then
// data next to one of them. So the first request reads the first 512 KiB. A
// small read near the end fetches the whole end, and a read that continues
// where the beginning stopped fetches more than it needs. These bytes are kept.
// So every format opens in two or three requests, however it reads. Other small
// reads are merged over gaps that cost less than a round trip. Large reads go
// directly to their memory, several at a time.
//
// Tried instead: a cache of equal blocks, which takes many requests for a large
// index; HEAD first, which presigned URLs refuse and which is one more request.

namespace haulway::net {

namespace {

constexpr uint64_t kHeadBytes = 512 * kKiB;
// Bytes of the end that are read together, depending on the file size: room for
// a directory of 15,000 records or, for records of 60 KiB, of up to 60,000.
// Reading more would only take time.
constexpr uint64_t kLeastTail = 1 * kMiB;
constexpr uint64_t kMostTail = 4 * kMiB;
constexpr uint64_t kShareOfTail = 1024;
// Bytes that are read ahead after the beginning.
constexpr uint64_t kLeastAhead = 1 * kMiB;
constexpr uint64_t kMostAhead = 16 * kMiB;
constexpr uint64_t kShareAhead = 16;
constexpr int kMostExtensions = 3;
// Reads up to this size are assumed to be parts of an index.
constexpr uint64_t kSmallRead = 1 * kMiB;
constexpr uint64_t kLargestJoined = 4 * kMiB;
// Size of one request; several run at once.
constexpr uint64_t kLargestRequest = 8 * kMiB;

// Returns half of the available memory: a larger object that is sent whole
// would not fit while its buffer grows.
uint64_t MostWholeBytes() { return LookAtMachine().available_memory / 2; }

struct Block {
  uint64_t offset;
  Buffer bytes;
  uint64_t end() const { return offset + bytes.size(); }
};

// A part of the caller's memory to fill.
struct Missing {
  uint64_t offset;
  std::span<std::byte> out;
  uint64_t end() const { return offset + out.size(); }
};

// Checks that the name is a relative path downwards.
Status CheckNeighbour(std::string_view name) {
  const auto wrong = [&](std::string_view why) {
    return Status(Code::kInvalidArgument,
                  fmt::format("file name {} {}: expected a path down from the "
                              "index",
                              Quote(name), why));
  };
  if (name.empty()) return wrong("is empty");
  if (name.front() == '/') return wrong("is absolute");
  if (name.find('\0') != name.npos) return wrong("holds a zero byte");
  if (name.find("://") != name.npos) return wrong("is a URL");
  while (true) {
    const size_t slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    if (part == "..") return wrong("leads up");
    if (slash == name.npos) return Status();
    name.remove_prefix(slash + 1);
  }
}

// Returns the target of a file beside `url`. Keeps the query, which may hold
// the credentials.
Result<HttpTarget> Beside(const HttpTarget& target, std::string_view name) {
  HAULWAY_TRY(CheckNeighbour(name));
  HAULWAY_ASSIGN(Url url, ParseUrl(target.url));
  url.path.resize(url.path.rfind('/') + 1);
  url.path += UriEncode(name, /*keep_slashes=*/true);
  HttpTarget beside = target;
  beside.name.clear();
  // Text() has no user; insert it again.
  beside.url = url.Text();
  if (!url.user.empty()) {
    const size_t scheme = target.url.find("://") + 3;
    const size_t at = target.url.find('@', scheme);
    beside.url.insert(url.scheme.size() + 3,
                      target.url.substr(scheme, at + 1 - scheme));
  }
  return beside;
}

class HttpSource : public ByteSource {
 public:
  HttpSource(std::shared_ptr<HttpClient> client, HttpTarget target,
             std::string name)
      : client_(std::move(client)),
        target_(std::move(target)),
        name_(std::move(name)) {}

  // Makes the first request.
  Status Open();

  std::string_view name() const override { return name_; }
  uint64_t size() const override { return size_; }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const ReadRequest request{offset, out};
    return ReadMany({&request, 1});
  }

  Status ReadMany(std::span<const ReadRequest> requests) const override;

  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    const auto blocks = Blocks();
    for (const Block& block : *blocks) {
      if (block.offset == 0 && block.bytes.size() == size_) {
        return block.bytes.Slice(offset, length);
      }
    }
    return std::nullopt;
  }

  SourceTraits Look(std::span<const ByteRange>) const override {
    SourceTraits traits;
    traits.remote = true;
    traits.parallel = client_->options().connections;
    traits.views = View(0, 0).has_value();
    traits.resident = traits.views ? 1 : 0;
    return traits;
  }

  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override {
    if (!target_.neighbour) {
      HAULWAY_ASSIGN(HttpTarget beside, Beside(target_, name));
      return OpenHttpSource(client_, std::move(beside));
    }
    HAULWAY_TRY(CheckNeighbour(name));
    HAULWAY_ASSIGN(HttpTarget beside, target_.neighbour(name));
    return OpenHttpSource(client_, std::move(beside));
  }

  std::optional<RemoteStats> remote_stats() const override {
    RemoteStats stats = client_->stats();
    stats.version =
        validator_.etag.empty() ? validator_.last_modified : validator_.etag;
    return stats;
  }

 private:
  using BlockList = std::vector<Block>;

  HttpRequest Request(uint64_t offset, std::span<std::byte> out) const;
  void CopyKept(Missing missing, std::vector<Missing>* left) const;
  uint64_t HeadEnd(const BlockList& blocks) const;
  Result<Buffer> Fetch(uint64_t offset, uint64_t length) const;
  Status FetchAll(std::vector<Missing> missing) const;
  // Fetches more than requested if that saves requests. Returns false if it
  // does not.
  Result<bool> Extend(const Missing& missing) const;

  std::shared_ptr<const BlockList> Blocks() const {
    const std::lock_guard lock(mutex_);
    return blocks_;
  }
  void Keep(Block block) const {
    const std::lock_guard lock(mutex_);
    auto longer = std::make_shared<BlockList>(*blocks_);
    longer->push_back(std::move(block));
    blocks_ = std::move(longer);
  }
  void Note(const HttpResponse& response) const {
    const std::lock_guard lock(mutex_);
    resolved_url_ = response.resolved_url;
  }

  const std::shared_ptr<HttpClient> client_;
  const HttpTarget target_;
  const std::string name_;
  uint64_t size_ = 0;
  Validator validator_;

  mutable ForkMutex mutex_;
  mutable std::string resolved_url_;
  mutable std::shared_ptr<const BlockList> blocks_ =
      std::make_shared<BlockList>();
  mutable int extensions_ = 0;
};

HttpRequest HttpSource::Request(uint64_t offset,
                                std::span<std::byte> out) const {
  HttpRequest request;
  request.url = target_.url;
  request.headers = target_.headers;
  request.prepare = target_.prepare;
  request.judge = target_.judge;
  request.range = {offset, out.size()};
  request.into = out;
  request.expect = validator_;
  const std::lock_guard lock(mutex_);
  request.resolved_url = resolved_url_;
  return request;
}

Status HttpSource::Open() {
  HAULWAY_ASSIGN(const Buffer head, AllocateBuffer(kHeadBytes));
  HttpRequest request = Request(0, head.mutable_bytes());
  const auto whole = std::make_shared<std::vector<std::byte>>();
  request.whole = whole.get();
  request.max_whole = target_.most_whole_bytes.value_or(MostWholeBytes());
  // radosgw sends such a response if the object is empty.
  const auto says_nothing = [](const HttpResponse& response) {
    return response.status == 416 && response.Header("content-range").empty();
  };
  request.judge = [&](const HttpResponse& response) {
    if (says_nothing(response)) return Verdict::kTake;
    return target_.judge ? target_.judge(response) : Verdict::kUsual;
  };
  HAULWAY_ASSIGN(HttpResponse response, client_->Send(request));
  // A part that has the status of a whole object looks like an object of this
  // very size.
  const bool may_be_part =
      response.status == 200 && whole->size() == kHeadBytes;
  if (may_be_part || says_nothing(response)) {
    request.judge = target_.judge;
    request.range.reset();
    request.into = {};
    if (may_be_part) request.expect = ValidatorOf(response);
    HAULWAY_ASSIGN(response, client_->Send(request));
  }
  Note(response);
  validator_ = ValidatorOf(response);
  if (response.status == 206) {
    if (!response.total.has_value()) {
      return Status(Code::kUnsupported,
                    "the server does not say how long the object is")
          .Of(name_);
    }
    size_ = *response.total;
    Keep({0, head.Slice(0, response.bytes)});
  } else if (response.status == 416) {
    // An empty object has no first byte.
    size_ = 0;
    Keep({0, Buffer()});
  } else {
    size_ = whole->size();
    Keep({0, Buffer(whole, *whole, /*writable=*/false)});
  }
  validator_.total = size_;
  if (validator_.etag.empty() && validator_.last_modified.empty()) {
    client_->NoteUnvalidated();
  }
  HAULWAY_ASSIGN(const Url url, ParseUrl(target_.url));
  HAULWAY_TRY(RefuseWebPage(*this, url.path));
  const auto all = View(0, size_);
  if (!target_.check || !all.has_value()) return Status();
  return target_.check(response, all->bytes()).Of(name_);
}

// Copies the kept bytes at the beginning and end of a range. Appends the middle
// to `left`.
void HttpSource::CopyKept(Missing missing, std::vector<Missing>* left) const {
  const auto blocks = Blocks();
  bool copied = true;
  while (copied && !missing.out.empty()) {
    copied = false;
    for (const Block& block : *blocks) {
      if (missing.out.empty()) break;
      if (block.offset <= missing.offset && missing.offset < block.end()) {
        const uint64_t from = missing.offset - block.offset;
        const size_t bytes =
            std::min<size_t>(missing.out.size(), block.bytes.size() - from);
        std::memcpy(missing.out.data(), block.bytes.data() + from, bytes);
        missing = {missing.offset + bytes, missing.out.subspan(bytes)};
        copied = true;
      } else if (block.offset < missing.end() && missing.end() <= block.end()) {
        const uint64_t from = std::max(block.offset, missing.offset);
        const size_t before = from - missing.offset;
        std::memcpy(missing.out.data() + before,
                    block.bytes.data() + (from - block.offset),
                    missing.out.size() - before);
        missing.out = missing.out.first(before);
        copied = true;
      }
    }
  }
  if (!missing.out.empty()) left->push_back(missing);
}

uint64_t HttpSource::HeadEnd(const BlockList& blocks) const {
  uint64_t end = 0;
  for (const Block& block : blocks) {
    if (block.offset <= end) end = std::max(end, block.end());
  }
  return end;
}

Result<Buffer> HttpSource::Fetch(uint64_t offset, uint64_t length) const {
  HAULWAY_ASSIGN(Buffer bytes, AllocateBuffer(length));
  HAULWAY_TRY(FetchAll({{offset, bytes.mutable_bytes()}}));
  return bytes;
}

Status HttpSource::FetchAll(std::vector<Missing> missing) const {
  std::vector<HttpRequest> requests;
  for (Missing& one : missing) {
    while (!one.out.empty()) {
      // Avoids a tiny last piece.
      const size_t bytes = one.out.size() <= 2 * kLargestRequest
                               ? one.out.size()
                               : kLargestRequest;
      requests.push_back(Request(one.offset, one.out.first(bytes)));
      one = {one.offset + bytes, one.out.subspan(bytes)};
    }
  }
  HAULWAY_ASSIGN(const auto responses, client_->SendMany(requests));
  for (size_t i = 0; i < responses.size(); ++i) {
    if (responses[i].bytes != requests[i].into.size()) {
      return Status(
          Code::kCorrupt,
          fmt::format("the object changed while it was read: it ends "
                      "before byte {}",
                      requests[i].range->offset + requests[i].range->length));
    }
  }
  Note(responses.back());
  return Status();
}

Result<bool> HttpSource::Extend(const Missing& missing) const {
  if (missing.out.size() > kSmallRead) return false;
  const auto blocks = Blocks();
  const uint64_t head_end = HeadEnd(*blocks);
  const uint64_t tail_bytes =
      std::clamp(size_ / kShareOfTail, kLeastTail, kMostTail);
  const uint64_t tail = size_ - std::min(size_, tail_bytes);
  uint64_t begin = 0;
  uint64_t end = 0;
  if (missing.offset >= tail) {
    begin = std::max(tail, head_end);
    end = size_;
  } else if (missing.offset == head_end) {
    const uint64_t ahead =
        std::clamp(size_ / kShareAhead, kLeastAhead, kMostAhead);
    begin = head_end;
    end = std::min(size_, head_end + ahead);
  } else {
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    if (extensions_ >= kMostExtensions) return false;
    ++extensions_;
  }
  HAULWAY_ASSIGN(Buffer bytes, Fetch(begin, end - begin));
  std::memcpy(missing.out.data(), bytes.data() + (missing.offset - begin),
              missing.out.size());
  Keep({begin, std::move(bytes)});
  return true;
}

Status HttpSource::ReadMany(std::span<const ReadRequest> requests) const {
  std::vector<Missing> missing;
  for (const ReadRequest& request : requests) {
    if (!RangeFits(request.offset, request.out.size(), size_)) {
      return Status(Code::kTruncated,
                    fmt::format("read needs {} bytes, {} remain",
                                request.out.size(),
                                size_ - std::min(request.offset, size_)))
          .At(request.offset);
    }
    if (!request.out.empty()) {
      CopyKept({request.offset, request.out}, &missing);
    }
  }
  if (missing.empty()) return Status();
  std::ranges::stable_sort(missing, {}, &Missing::offset);

  // Merge small neighbouring reads.
  struct Joined {
    ByteRange range;
    size_t first;
    size_t count;
  };
  std::vector<Joined> runs;
  for (size_t i = 0; i < missing.size(); ++i) {
    const Missing& one = missing[i];
    const ByteRange range = {one.offset, one.out.size()};
    const bool may_join = !runs.empty() && range.length <= kSmallRead &&
                          missing[runs.back().first].out.size() <= kSmallRead;
    if (may_join && JoinRanges(&runs.back().range, range,
                               {.largest_hole = kServerHole,
                                .largest_read = kLargestJoined})) {
      ++runs.back().count;
      continue;
    }
    runs.push_back({range, i, 1});
  }
  if (runs.size() == 1 && missing.size() == 1) {
    HAULWAY_ASSIGN(const bool done, Extend(missing.front()));
    if (done) return Status();
  }
  std::vector<Missing> direct;
  std::vector<Buffer> memory(runs.size());
  for (size_t r = 0; r < runs.size(); ++r) {
    const Joined& run = runs[r];
    if (run.count == 1) {
      direct.push_back(missing[run.first]);
      continue;
    }
    HAULWAY_ASSIGN(memory[r], AllocateBuffer(run.range.length));
    direct.push_back({run.range.offset, memory[r].mutable_bytes()});
  }
  HAULWAY_TRY(FetchAll(std::move(direct)));
  for (size_t r = 0; r < runs.size(); ++r) {
    const Joined& run = runs[r];
    if (run.count == 1) continue;
    for (size_t i = run.first; i < run.first + run.count; ++i) {
      std::memcpy(missing[i].out.data(),
                  memory[r].data() + (missing[i].offset - run.range.offset),
                  missing[i].out.size());
    }
  }
  return Status();
}

}  // namespace

Result<std::shared_ptr<const ByteSource>> OpenHttpSource(
    std::shared_ptr<HttpClient> client, HttpTarget target) {
  return OrNoMemory([&]() -> Result<std::shared_ptr<const ByteSource>> {
    std::string name = target.name;
    if (name.empty()) {
      HAULWAY_ASSIGN(const Url url, ParseUrl(target.url));
      name = url.Shown();
    }
    const auto source = std::make_shared<HttpSource>(
        std::move(client), std::move(target), std::move(name));
    HAULWAY_TRY(source->Open());
    return std::shared_ptr<const ByteSource>(source);
  });
}

namespace {

// The index of a directory of torch.distributed.checkpoint.
constexpr std::string_view kDirectoryName = ".metadata";

// A server that does not permit listing may refuse (403) a file that does not
// exist.
bool MayBeMissing(const Status& status) {
  return status.code() == Code::kNotFound ||
         status.code() == Code::kPermissionDenied;
}

Result<std::shared_ptr<const ByteSource>> OpenFolder(
    const std::shared_ptr<HttpClient>& client, const HttpTarget& folder,
    std::string_view variant) {
  UsualNames all = AllUsualNames(variant);
  if (variant.empty()) all.emplace_back(kDirectoryName);
  std::string names;
  for (const std::string& name : all) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
    HAULWAY_ASSIGN(HttpTarget file, Beside(folder, name));
    auto source = OpenHttpSource(client, std::move(file));
    if (source.ok() || !MayBeMissing(source.status())) return source;
  }
  auto source = OpenHttpSource(client, folder);
  if (source.ok() || !MayBeMissing(source.status())) return source;
  const Status status = source.status();
  HAULWAY_ASSIGN(const Url url, ParseUrl(folder.url));
  if (status.code() == Code::kNotFound) {
    return Status(Code::kNotFound,
                  fmt::format("the folder has none of {}", names))
        .Of(url.Shown());
  }
  const std::string of = fmt::format("; of {}", url.Shown());
  std::string_view why = status.message();
  if (why.ends_with(of)) why.remove_suffix(of.size());
  return Status(status.code(),
                fmt::format("{}: expected a file, or a folder with one of {}",
                            why, names))
      .Of(url.Shown());
}

}  // namespace

Result<std::shared_ptr<const ByteSource>> OpenUrl(std::string_view url,
                                                  const RemoteOptions& options,
                                                  std::string_view variant) {
  HAULWAY_ASSIGN(const Url parsed, ParseUrl(url));
  HAULWAY_ASSIGN(auto client, HttpClient::Make(options));
  HttpTarget target{.url = std::string(url),
                    .name = {},
                    .headers = {},
                    .prepare = nullptr,
                    .judge = nullptr,
                    .check = nullptr,
                    .neighbour = nullptr};
  if (parsed.path.ends_with('/')) return OpenFolder(client, target, variant);
  return OpenHttpSource(std::move(client), std::move(target));
}

}  // namespace haulway::net
