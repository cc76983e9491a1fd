// Design: each job makes one or more requests, which fill a contiguous range of
// memory. The job that reads the last bytes of a storage completes it. If
// several jobs read parts of a storage, each job computes the CRC-32 of its
// part while the part is in cache, and the last job combines them.

#include "load/joined_route.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "base/digest.h"
#include "decode/storage_decoder.h"

namespace haulway {

void JoinedRoute::Cut(const RequestLimits& limits) {
  requests_ = CutRequests(load_.plan.extents, limits);
  FindJobs();
}

// Finds the jobs that read each joined storage. Jobs and storages are sorted by
// memory offset.
void JoinedRoute::FindJobs() {
  for (const Job& job : requests_.jobs) {
    const PlannedRequest& first = requests_.requests[job.first_request];
    const PlannedRequest& last =
        requests_.requests[job.first_request + job.requests - 1];
    const Extent& last_part = requests_.parts[last.first_part + last.parts - 1];
    brought_.push_back({requests_.parts[first.first_part].memory_offset,
                        last_part.memory_offset + last_part.length, 0, 0});
  }
  spans_.resize(storages_.size());
  jobs_left_ = std::make_unique<std::atomic<uint32_t>[]>(storages_.size());
  uint32_t job = 0;
  for (uint32_t p = 0; p < storages_.size(); ++p) {
    const StorageInfo& info = load_.ToRead(storages_[p]);
    const uint64_t begin = load_.plan.placements[storages_[p]].frame;
    const uint64_t end = begin + (info.frame_end - info.frame_offset);
    while (brought_[job].memory_end <= begin) ++job;
    uint32_t last = job;
    while (brought_[last].memory_end < end) ++last;
    spans_[p] = {job, last};
    jobs_left_[p].store(last - job + 1, std::memory_order_relaxed);
  }
  uint32_t begin = 0;
  uint32_t end = 0;
  for (uint32_t j = 0; j < brought_.size(); ++j) {
    while (begin < spans_.size() && spans_[begin].last < j) ++begin;
    while (end < spans_.size() && spans_[end].first <= j) ++end;
    brought_[j].first_storage = begin;
    brought_[j].end_storage = end;
  }
}

Status JoinedRoute::Run(uint64_t job) {
  const Job& made = requests_.jobs[job];
  std::vector<ReadRequest> together;
  for (const PlannedRequest& request :
       std::span(requests_.requests)
           .subspan(made.first_request, made.requests)) {
    if (request.parts > 1) {
      HAULWAY_TRY(Gather(request));
      continue;
    }
    const Extent& part = requests_.parts[request.first_part];
    const auto out = load_.memory.Present(part.memory_offset, part.length);
    if (load_.choice.in_flight > 1) {
      together.push_back({part.source_offset, out});
    } else {
      HAULWAY_TRY(load_.requests.Read(part.source_offset, out));
    }
  }
  if (!together.empty()) HAULWAY_TRY(load_.requests.ReadMany(together));
  const Brought& brought = brought_[job];
  for (uint32_t p = brought.first_storage; p < brought.end_storage; ++p) {
    if (spans_[p].first != spans_[p].last) AddCrc32(job, p);
    if (jobs_left_[p].fetch_sub(1, std::memory_order_acq_rel) == 1) {
      HAULWAY_TRY(Finish(p));
    }
  }
  return Status();
}

// Reads many small extents with one request and copies them to their places.
Status JoinedRoute::Gather(const PlannedRequest& request) {
  HAULWAY_ASSIGN(const Staging::Lease lease,
                 load_.staging.Take(request.length));
  HAULWAY_TRY(load_.requests.Read(request.offset, lease.bytes()));
  for (const Extent& part :
       std::span(requests_.parts).subspan(request.first_part, request.parts)) {
    std::memcpy(load_.memory.Present(part.memory_offset, part.length).data(),
                lease.bytes().data() + (part.source_offset - request.offset),
                part.length);
  }
  return Status();
}

// Computes the CRC-32 of the part of a storage that a job reads, while the part
// is in cache.
void JoinedRoute::AddCrc32(uint64_t job, uint32_t p) {
  if (!load_.decoder.TakesCrc32(load_.RowOf(storages_[p]))) return;
  const StageClock clock;
  Brought& brought = brought_[job];
  const auto [begin, end] = PartOf(brought, p);
  uint32_t& crc32 =
      spans_[p].first < job ? brought.head_crc32 : brought.tail_crc32;
  crc32 = Crc32(0, load_.memory.At(begin, end - begin));
  load_.progress->AddTime(Stage::kVerify, clock);
}

// Returns the memory range of the part of a payload that a job reads.
std::pair<uint64_t, uint64_t> JoinedRoute::PartOf(const Brought& brought,
                                                  uint32_t p) const {
  const uint64_t begin = load_.plan.placements[storages_[p]].payload;
  const uint64_t end = begin + load_.ToRead(storages_[p]).stored_bytes;
  const uint64_t from = std::clamp(brought.memory_begin, begin, end);
  return {from, std::clamp(brought.memory_end, from, end)};
}

Status JoinedRoute::Finish(uint32_t p) {
  const uint32_t r = storages_[p];
  const StorageInfo& info = load_.ToRead(r);
  const uint32_t row = load_.RowOf(r);
  const auto bytes = SplitFrame(info, load_.FrameOf(r));
  std::optional<uint32_t> crc32;
  const JobSpan span = spans_[p];
  if (span.first != span.last && load_.decoder.TakesCrc32(row)) {
    crc32 = brought_[span.first].tail_crc32;
    for (uint32_t j = span.first + 1; j <= span.last; ++j) {
      const auto [begin, end] = PartOf(brought_[j], p);
      crc32 = Crc32Join(*crc32, brought_[j].head_crc32, end - begin);
    }
  }
  const int threads =
      info.stored_bytes > load_.chunk_bytes ? load_.choice.threads : 1;
  HAULWAY_TRY(load_.decoder.Finish(row, bytes, bytes.stored, threads, crc32));
  load_.Give(r);
  return Status();
}

}  // namespace haulway
