// Reads a source during a load. Reads can be cancelled, and are retried, timed
// and counted.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "haulway/load.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "load/choose_io.h"
#include "load/load_progress.h"

namespace haulway {

// Threads: any number at once.
class RequestReader {
 public:
  // Requires: `options` and `progress` outlive the reader.
  RequestReader(const OpenedSource& opened, const LoadOptions& options,
                LoadProgress* progress)
      : source_(opened.source),
        options_(options),
        progress_(progress),
        // A server source retries by itself, within a budget for all requests.
        retries_(opened.traits.is_server() ? 0 : options.retries) {}

  const ByteSource& source() const { return *source_; }

  // Calls ByteSource::ReadAt() and retries as the options say. Fails with
  // kCancelled if the load is cancelled. Counts the bytes as done.
  Status Read(uint64_t offset, std::span<std::byte> out) const;
  // Does the same for several ranges at once.
  Status ReadMany(std::span<const ReadRequest> requests) const;

 private:
  template <class Attempt>
  Status Run(uint64_t requests, uint64_t bytes, const Attempt& attempt) const;

  const std::shared_ptr<const ByteSource> source_;
  const LoadOptions& options_;
  LoadProgress* const progress_;
  const int retries_;
};

}  // namespace haulway
