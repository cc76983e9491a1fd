#include "net/http_client.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "base/no_memory.h"
#include "base/sigpipe.h"
#include "base/text.h"
#include "haulway/options.h"
#include "net/fork_mutex.h"
#include "net/libcurl.h"
#include "net/transfer.h"

// Design: the calling thread does the work. Each call takes a multi handle of
// libcurl, with its open connections, from a pool, runs its requests on the
// handle, and returns it. So no other thread is involved, TLS is computed on as
// many processors as there are callers, and a cancelled call leaves nothing
// running.
//
// Tried instead: one thread that owns a single multi handle. That saves a few
// connections, but decrypts on one processor, and does not survive a fork.

namespace haulway::net {

namespace {

using std::chrono::milliseconds;
using Clock = Transfer::Clock;

// How often a waiting call checks whether it is cancelled.
constexpr milliseconds kTick{50};
// How often a call checks whether others have left it room for a request.
constexpr milliseconds kTickForRoom{2};

struct FreeMulti {
  void operator()(CURLM* multi) const { Curl().multi_cleanup(multi); }
};
using Multi = std::unique_ptr<CURLM, FreeMulti>;

bool IsSet(const std::atomic<bool>* flag) {
  return flag != nullptr && flag->load();
}

std::string FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// Checks the file: libcurl would send no credentials if it cannot read the
// file.
Status CheckNetrc(const std::string& path) {
  struct stat facts;
  if (path.empty()) return Status();
  if (::access(path.c_str(), R_OK) != 0 || ::stat(path.c_str(), &facts) != 0) {
    return Status::FromErrno(
        errno, fmt::format("cannot read netrc {}", QuotePath(path)));
  }
  if (!S_ISDIR(facts.st_mode)) return Status();
  return Status(Code::kInvalidArgument,
                fmt::format("netrc {} is a folder", QuotePath(path)));
}

}  // namespace

// State shared by calls: idle handles with their connections, and the retry
// budget.
class HttpClient::Pool {
 public:
  explicit Pool(const RemoteOptions& options)
      : most_(std::max(options.connections, 1)),
        budget_(std::max(options.retry_budget, 0)),
        tokens_(budget_),
        random_(std::random_device()()) {}

  ~Pool() {
    if (process_ != ::getpid()) Forget();
  }

  Result<Multi> TakeHandle() {
    {
      const std::lock_guard lock(mutex_);
      if (process_ != ::getpid()) {
        // After a fork, the connections belong to the parent.
        Forget();
        process_ = ::getpid();
        in_flight_ = 0;
      }
      if (!idle_.empty()) {
        Multi multi = std::move(idle_.back());
        idle_.pop_back();
        return multi;
      }
    }
    Multi multi(Curl().multi_init());
    if (multi == nullptr) return Status(Code::kLimit, "out of memory");
    Curl().multi_setopt(multi.get(), CURLMOPT_MAXCONNECTS, long{most_});
    return multi;
  }
  void GiveHandle(Multi multi) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(multi));
  }

  // Reserves one request. Returns false if the limit is reached.
  bool Enter() {
    const std::lock_guard lock(mutex_);
    if (in_flight_ >= most_) return false;
    ++in_flight_;
    return true;
  }
  void Leave() {
    const std::lock_guard lock(mutex_);
    --in_flight_;
  }

  bool SpendRetry() {
    const std::lock_guard lock(mutex_);
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }
  void Earn() {
    const std::lock_guard lock(mutex_);
    tokens_ = std::min(budget_, tokens_ + 0.1);
  }

  // Returns a random time between 0 and `most`.
  milliseconds Jitter(milliseconds most) {
    const std::lock_guard lock(mutex_);
    return milliseconds(std::uniform_int_distribution<int64_t>(
        0, std::max<int64_t>(most.count(), 0))(random_));
  }

  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> retries{0};
  std::atomic<uint64_t> received{0};
  std::atomic<bool> unvalidated{false};

 private:
  // Leaks the handles of another process instead of closing its connections.
  void Forget() {
    for (Multi& multi : idle_) static_cast<void>(multi.release());
    idle_.clear();
  }

  const int most_;
  const double budget_;
  ForkMutex mutex_;
  std::vector<Multi> idle_;
  int in_flight_ = 0;
  double tokens_;
  std::mt19937_64 random_;
  pid_t process_ = ::getpid();
};

// One call: runs some requests to their end.
class HttpClient::Run {
 public:
  Run(const HttpClient& client, std::span<const HttpRequest> requests,
      const std::atomic<bool>* cancel)
      : options_(client.options_), pool_(*client.pool_), cancel_(cancel) {
    for (const HttpRequest& request : requests) {
      jobs_.push_back(std::make_unique<Job>(options_, request));
      grace_ = std::max(grace_, request.grace);
    }
    if (options_.deadline.count() > 0) {
      deadline_ = Clock::now() + options_.deadline;
    }
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  ~Run() {
    for (const auto& job : jobs_) Stop(*job);
    if (multi_ != nullptr) pool_.GiveHandle(std::move(multi_));
  }

  Result<std::vector<HttpResponse>> operator()() {
    const WithoutSigpipe guard;
    HAULWAY_ASSIGN(multi_, pool_.TakeHandle());
    while (done_ < jobs_.size()) {
      HAULWAY_TRY(CheckStop());
      HAULWAY_TRY(StartSome());
      HAULWAY_TRY(Work());
    }
    std::vector<HttpResponse> responses;
    for (const auto& job : jobs_) {
      responses.push_back(std::move(job->transfer.response()));
    }
    return responses;
  }

 private:
  struct Job {
    Job(const RemoteOptions& options, const HttpRequest& request)
        : transfer(options, request) {}
    Transfer transfer;
    CURL* easy = nullptr;  // Null unless running.
    bool done = false;
    int failures = 0;  // Consecutive failures.
    int attempts = 0;
    Clock::time_point not_before;
    uint64_t counted = 0;
  };

  Status CheckStop() {
    const bool is_cancelled =
        IsSet(cancel_) || IsSet(options_.cancel) || CancelScope::IsCancelled();
    if (is_cancelled) {
      const auto now = Clock::now();
      if (!give_up_.has_value()) give_up_ = now + grace_;
      if (now >= *give_up_) {
        return Status(Code::kCancelled, "waiting for the server was cancelled");
      }
    }
    if (deadline_.has_value() && Clock::now() >= *deadline_) {
      return Status(Code::kTimeout,
                    fmt::format("there was no answer within {} ms",
                                options_.deadline.count()));
    }
    return Status();
  }

  Status StartSome() {
    const auto now = Clock::now();
    for (const auto& job : jobs_) {
      if (job->done || job->easy != nullptr || job->not_before > now) continue;
      if (!pool_.Enter()) break;
      auto easy = job->transfer.Begin(now);
      if (!easy.ok()) {
        pool_.Leave();
        return std::move(easy).status();
      }
      if (Curl().multi_add_handle(multi_.get(), *easy) != CURLM_OK) {
        pool_.Leave();
        return Status(Code::kLimit, "out of memory");
      }
      job->easy = *easy;
      ++under_way_;
      ++job->attempts;
      pool_.requests.fetch_add(1);
    }
    return Status();
  }

  Status Work() {
    if (under_way_ == 0) {
      Rest();
      return Status();
    }
    int running = 0;
    if (Curl().multi_perform(multi_.get(), &running) != CURLM_OK) {
      return Status(Code::kInternal, "libcurl refuses to work");
    }
    bool finished = false;
    int left = 0;
    while (CURLMsg* const message =
               Curl().multi_info_read(multi_.get(), &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      Job& job = JobOf(message->easy_handle);
      const auto next = job.transfer.Finish(code);
      HAULWAY_TRY(After(job, next));
      finished = true;
    }
    const auto now = Clock::now();
    for (const auto& job : jobs_) {
      if (job->easy == nullptr || !job->transfer.Stalled(now)) continue;
      const auto next = job->transfer.GiveUp(
          Status(Code::kTimeout,
                 fmt::format("the server stalls: less than 1 kB a second for "
                             "{} ms",
                             options_.stall_timeout.count())));
      HAULWAY_TRY(After(*job, next));
      finished = true;
    }
    if (!finished) {
      int ready = 0;
      Curl().multi_poll(multi_.get(), nullptr, 0,
                        static_cast<int>(kTick.count()), &ready);
    }
    return Status();
  }

  // Waits until a request may be started.
  void Rest() {
    const auto now = Clock::now();
    auto first = now + kTick;
    for (const auto& job : jobs_) {
      if (job->done) continue;
      first = std::min(first, std::max(job->not_before, now + kTickForRoom));
    }
    std::this_thread::sleep_until(first);
  }

  Job& JobOf(CURL* easy) {
    for (const auto& job : jobs_) {
      if (job->easy == easy) return *job;
    }
    return *jobs_.front();
  }

  void Stop(Job& job) {
    if (job.easy == nullptr) return;
    Curl().multi_remove_handle(multi_.get(), job.easy);
    job.easy = nullptr;
    --under_way_;
    pool_.Leave();
    pool_.received.fetch_add(job.transfer.received() - job.counted);
    job.counted = job.transfer.received();
  }

  Status After(Job& job, Transfer::Next next) {
    Stop(job);
    switch (next) {
      case Transfer::Next::kDone:
        job.done = true;
        ++done_;
        pool_.Earn();
        return Status();
      case Transfer::Next::kFailed:
        return job.transfer.status();
      case Transfer::Next::kAgain:
        return Status();
      case Transfer::Next::kRetry:
        break;
    }
    if (job.transfer.advanced()) job.failures = 0;
    if (job.failures >= options_.retries || !pool_.SpendRetry()) {
      const Status& status = job.transfer.status();
      if (job.attempts == 1) return status;
      return Status(status.code(), fmt::format("{}; after {} attempts",
                                               status.message(), job.attempts));
    }
    pool_.retries.fetch_add(1);
    const int doublings = std::min(job.failures++, 20);
    const auto most = std::min<milliseconds>(
        options_.longest_wait, options_.first_wait * (int64_t{1} << doublings));
    const auto least =
        std::min(options_.longest_wait, job.transfer.retry_after());
    const auto wait = std::max(least, pool_.Jitter(most));
    job.not_before = Clock::now() + wait;
    if (deadline_.has_value() && job.not_before >= *deadline_) {
      return job.transfer.status();
    }
    return Status();
  }

  const RemoteOptions& options_;
  Pool& pool_;
  const std::atomic<bool>* const cancel_;
  milliseconds grace_{0};
  std::optional<Clock::time_point> give_up_;  // Set after cancellation.
  std::optional<Clock::time_point> deadline_;
  Multi multi_;
  std::vector<std::unique_ptr<Job>> jobs_;
  size_t done_ = 0;
  int under_way_ = 0;
};

HttpClient::HttpClient(RemoteOptions options)
    : options_(std::move(options)), pool_(std::make_unique<Pool>(options_)) {}

HttpClient::~HttpClient() = default;

Result<std::shared_ptr<HttpClient>> HttpClient::Make(RemoteOptions options) {
  HAULWAY_TRY(LoadLibcurl());
  for (const HttpHeader& header : options.headers) {
    const auto breaks = [](char c) {
      return c == '\r' || c == '\n' || c == '\0';
    };
    if (header.name.empty() || header.name.find(':') != std::string::npos ||
        std::ranges::any_of(header.name, breaks) ||
        std::ranges::any_of(header.value, breaks)) {
      return Status(
          Code::kInvalidArgument,
          "header is invalid: expected a name, and a value of one line");
    }
  }
  HAULWAY_TRY(CheckNetrc(options.netrc));
  return std::shared_ptr<HttpClient>(new HttpClient(std::move(options)));
}

Result<HttpResponse> HttpClient::Send(const HttpRequest& request,
                                      const std::atomic<bool>* cancel) {
  HAULWAY_ASSIGN(auto responses, SendMany({&request, 1}, cancel));
  return std::move(responses.front());
}

Result<std::vector<HttpResponse>> HttpClient::SendMany(
    std::span<const HttpRequest> requests, const std::atomic<bool>* cancel) {
  return OrNoMemory([&]() -> Result<std::vector<HttpResponse>> {
    return Run(*this, requests, cancel)();
  });
}

RemoteStats HttpClient::stats() const {
  return {.requests = pool_->requests.load(),
          .retries = pool_->retries.load(),
          .received_bytes = pool_->received.load(),
          .unvalidated = pool_->unvalidated.load()};
}

void HttpClient::NoteUnvalidated() { pool_->unvalidated.store(true); }

}  // namespace haulway::net

namespace haulway {

RemoteOptions RemoteOptionsFromEnvironment() {
  RemoteOptions options;
  options.ca_file = net::FromEnvironment("SSL_CERT_FILE");
  options.ca_dir = net::FromEnvironment("SSL_CERT_DIR");
  if (options.ca_file.empty() && options.ca_dir.empty()) {
    options.ca_file = net::FromEnvironment("CURL_CA_BUNDLE");
  }
  options.proxy_from_environment = true;
  return options;
}

}  // namespace haulway
