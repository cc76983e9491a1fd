// Design: SHA-256 takes nearly all of the time, so files are digested in
// lock-step (base/sha256_lanes.h): a thread reads a piece of each of several
// files, and digests all pieces while they are in the cache. If there are fewer
// files than threads, a second thread reads ahead of the one that digests:
// reading new memory costs half as much as the digest. Left out: mapping files,
// whose pages another program may change between the digest and the caller.

#include "signing/digest_files.h"

#include <openssl/evp.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "delta/blake3.h"
#include "haulway/machine.h"
#include "signing/openssl.h"
#include "tensor/payload_digest.h"

namespace haulway::signing {

namespace {

// Bytes of a file that are read, and then digested, at a time: with those of
// the other files of a thread they stay in the cache.
constexpr uint64_t kPieceBytes = 256 * kKiB;
// The same if another thread reads: one unit of new memory.
constexpr uint64_t kAheadBytes = FreshMemory::kUnitBytes;
constexpr uint64_t kMostAhead = 4;
constexpr uint64_t kLeastAhead = 8 * kMiB;
// The same for sources of which each read is a request.
constexpr uint64_t kRequestBytes = 8 * kMiB;

uint64_t PieceOf(const DigestJob& job) {
  const bool is_server = job.source->Look({}).is_server();
  return std::min(is_server ? kRequestBytes : kPieceBytes, job.length);
}

// One digest of any kind.
class Digester {
 public:
  explicit Digester(ModelHash hash) : hash_(hash) {
    if (hash == ModelHash::kBlake2b) {
      blake2b_.reset(::EVP_MD_CTX_new());
      ::EVP_DigestInit_ex(blake2b_.get(), ::EVP_blake2b512(), nullptr);
    }
  }

  Sha256* sha256() { return hash_ == ModelHash::kSha256 ? &sha256_ : nullptr; }

  void Update(std::span<const std::byte> bytes) {
    switch (hash_) {
      case ModelHash::kSha256:
        return sha256_.Update(bytes);
      case ModelHash::kBlake2b:
        ::EVP_DigestUpdate(blake2b_.get(), bytes.data(), bytes.size());
        return;
      case ModelHash::kBlake3:
        return blake3_.Update(bytes);
    }
  }

  std::string Finish() {
    if (hash_ == ModelHash::kSha256) return Text(sha256_.Finish());
    if (hash_ == ModelHash::kBlake3) return Text(blake3_.Finish());
    std::string digest(EVP_MAX_MD_SIZE, '\0');
    unsigned size = 0;
    ::EVP_DigestFinal_ex(
        blake2b_.get(), reinterpret_cast<unsigned char*>(digest.data()), &size);
    digest.resize(size);
    return digest;
  }

 private:
  static std::string Text(std::span<const std::byte> bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()),
                       bytes.size());
  }

  const ModelHash hash_;
  Sha256 sha256_;
  delta::Blake3 blake3_;
  Owned<EVP_MD_CTX, ::EVP_MD_CTX_free> blake2b_;
};

class Run {
 public:
  Run(std::span<DigestJob> jobs, const DigestOptions& options)
      : jobs_(jobs), options_(options) {
    threads_ = options.threads > 0 ? options.threads : UsableCpus();
  }

  Status All() {
    std::vector<uint32_t> order(jobs_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater(),
                             [&](uint32_t i) { return jobs_[i].length; });
    const auto cut = std::ranges::stable_partition(
        order, [&](uint32_t i) { return jobs_[i].hash == ModelHash::kSha256; });
    const auto lanes = std::span(order.begin(), cut.begin());
    const std::span<const uint32_t> alone(cut.begin(), cut.end());
    if (jobs_.size() == 1 && threads_ > 1 &&
        jobs_.front().length >= kLeastAhead) {
      return Ahead(&jobs_.front());
    }
    const auto bytes_of = [&](uint32_t i) { return jobs_[i].length; };
    auto groups = GroupPayloads(
        lanes, std::max<size_t>(1, PayloadsTogether(lanes.size(), threads_)),
        threads_, bytes_of);
    for (const uint32_t& one : alone) groups.push_back(std::span(&one, 1));
    return ParallelFor(groups.size(), threads_,
                       [&](uint64_t g) { return Together(groups[g]); });
  }

 private:
  Status CheckCancelled() const {
    if (options_.cancel == nullptr || !options_.cancel->load()) return Status();
    return Status(Code::kCancelled, "digesting was cancelled");
  }

  void Advance(uint64_t bytes) {
    if (options_.progress == nullptr) return;
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    options_.progress(done_);
  }

  // Reads the piece of a job that begins at `done`, to its place or to
  // `scratch`.
  static Result<std::span<const std::byte>> Read(const DigestJob& job,
                                                 uint64_t done, uint64_t most,
                                                 std::span<std::byte> scratch) {
    const uint64_t at = job.offset + done;
    const uint64_t length = std::min(most, job.length - done);
    std::span<std::byte> piece =
        scratch.first(job.memory == nullptr ? length : 0);
    if (job.memory != nullptr) {
      piece = job.memory->buffer().mutable_bytes().subspan(at, length);
      job.memory->BringIn(piece);
    }
    HAULWAY_TRY(job.source->ReadAt(at, piece));
    return std::span<const std::byte>(piece);
  }

  // Digests several files in lock-step.
  Status Together(std::span<const uint32_t> members) {
    struct Stream {
      DigestJob* job;
      Digester digester;
      uint64_t done = 0;
      uint64_t piece = 0;
      std::unique_ptr<std::byte[]> scratch;
    };
    std::vector<Stream> streams;
    streams.reserve(members.size());
    for (const uint32_t i : members) {
      streams.push_back(
          {&jobs_[i], Digester(jobs_[i].hash), 0, PieceOf(jobs_[i]), nullptr});
      Stream& stream = streams.back();
      if (stream.job->memory != nullptr) continue;
      stream.scratch =
          std::make_unique_for_overwrite<std::byte[]>(stream.piece);
    }
    std::vector<Sha256*> digests;
    std::vector<std::span<const std::byte>> pieces;
    while (true) {
      HAULWAY_TRY(CheckCancelled());
      digests.clear();
      pieces.clear();
      uint64_t bytes = 0;
      for (Stream& stream : streams) {
        if (!stream.job->status.ok() || stream.done == stream.job->length) {
          continue;
        }
        auto piece = Read(*stream.job, stream.done, stream.piece,
                          {stream.scratch.get(), stream.piece});
        if (!piece.ok()) {
          stream.job->status = piece.status();
          continue;
        }
        stream.done += piece->size();
        bytes += piece->size();
        if (Sha256* const sha256 = stream.digester.sha256()) {
          digests.push_back(sha256);
          pieces.push_back(*piece);
        } else {
          stream.digester.Update(*piece);
        }
      }
      if (bytes == 0) break;
      Sha256::UpdateTogether(digests, pieces);
      Advance(bytes);
    }
    for (Stream& stream : streams) {
      stream.job->digest = stream.digester.Finish();
    }
    return Status();
  }

  // Digests one file while another thread reads ahead.
  Status Ahead(DigestJob* job) {
    const uint64_t pieces = (job->length + kAheadBytes - 1) / kAheadBytes;
    const uint64_t slots = std::min(pieces, kMostAhead);
    std::unique_ptr<std::byte[]> scratch;
    if (job->memory == nullptr) {
      scratch =
          std::make_unique_for_overwrite<std::byte[]>(slots * kAheadBytes);
    }
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t read = 0, digested = 0;
    bool is_over = false;
    std::vector<std::span<const std::byte>> ready(slots);
    Status failure;
    const CancelScope* const scope = CancelScope::Current();
    const auto reading = [&] {
      const CancelScope same(scope);
      for (uint64_t p = 0; p < pieces; ++p) {
        {
          std::unique_lock lock(mutex);
          changed.wait(lock, [&] { return is_over || p < digested + slots; });
          if (is_over) return;
        }
        auto piece = Read(*job, p * kAheadBytes, kAheadBytes,
                          std::span(scratch.get() + (p % slots) * kAheadBytes,
                                    scratch == nullptr ? 0 : kAheadBytes));
        const std::lock_guard lock(mutex);
        if (piece.ok()) {
          ready[p % slots] = *piece;
          read = p + 1;
        } else {
          job->status = piece.status();
          is_over = true;
        }
        changed.notify_all();
        if (is_over) return;
      }
    };
    Digester digester(job->hash);
    Status status;
    {
      std::jthread reader;
      try {
        reader = std::jthread(reading);
      } catch (const std::system_error&) {  // The system has no more threads.
        const uint32_t first = 0;
        return Together(std::span(&first, 1));
      }
      for (uint64_t p = 0; p < pieces; ++p) {
        status = CheckCancelled();
        std::span<const std::byte> piece;
        {
          std::unique_lock lock(mutex);
          if (!status.ok()) is_over = true;
          changed.wait(lock, [&] { return is_over || p < read; });
          if (is_over && p >= read) break;
          if (!status.ok()) break;
          piece = ready[p % slots];
        }
        digester.Update(piece);
        Advance(piece.size());
        const std::lock_guard lock(mutex);
        digested = p + 1;
        changed.notify_all();
      }
      const std::lock_guard lock(mutex);
      is_over = true;
      changed.notify_all();
    }
    HAULWAY_TRY(std::move(status));
    job->digest = digester.Finish();
    return Status();
  }

  const std::span<DigestJob> jobs_;
  const DigestOptions& options_;
  int threads_ = 1;
  std::mutex mutex_;
  uint64_t done_ = 0;
};

}  // namespace

Status DigestAll(std::span<DigestJob> jobs, const DigestOptions& options) {
  return OrNoMemory([&] { return Run(jobs, options).All(); });
}

}  // namespace haulway::signing
