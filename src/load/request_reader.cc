#include "load/request_reader.h"

#include <utility>

#include "haulway/options.h"

namespace haulway {

template <class Attempt>
Status RequestReader::Run(uint64_t requests, uint64_t bytes,
                          const Attempt& attempt) const {
  Status status;
  for (int retries_left = retries_;; --retries_left) {
    HAULWAY_TRY(progress_->CheckCancelled());
    const StageClock clock;
    const CancelScope cancel(options_.cancel);
    const CancelScope stop(progress_->stop());
    status = attempt();
    progress_->AddTime(Stage::kRead, clock);
    const bool may_pass =
        status.code() == Code::kUnavailable || status.code() == Code::kTimeout;
    if (!may_pass || retries_left <= 0) break;
    progress_->CountRetry();
  }
  if (!status.ok()) return status;
  progress_->CountRead(requests, bytes);
  return progress_->Advance(bytes);
}

Status RequestReader::Read(uint64_t offset, std::span<std::byte> out) const {
  HAULWAY_TRY(Run(1, out.size(), [&] { return source_->ReadAt(offset, out); }));
  if (options_.drop_cache) source_->DropCache(offset, out.size());
  return Status();
}

Status RequestReader::ReadMany(std::span<const ReadRequest> requests) const {
  uint64_t bytes = 0;
  for (const ReadRequest& request : requests) bytes += request.out.size();
  HAULWAY_TRY(
      Run(requests.size(), bytes, [&] { return source_->ReadMany(requests); }));
  if (options_.drop_cache) {
    for (const ReadRequest& request : requests) {
      source_->DropCache(request.offset, request.out.size());
    }
  }
  return Status();
}

}  // namespace haulway
