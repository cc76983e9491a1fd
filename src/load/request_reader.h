// Reads of a source during a load: cancelled, retried, timed and counted.

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
  // Requires: `options` and `progress` outlive it.
  RequestReader(const OpenedSource& opened, const LoadOptions& options,
                LoadProgress* progress)
      : source_(opened.source),
        options_(options),
        progress_(progress),
        // A server was asked again already, within a budget of all requests.
        retries_(opened.traits.is_server() ? 0 : options.retries) {}

  const ByteSource& source() const { return *source_; }

  // As ByteSource::ReadAt(), but tried again as the options say, and kCancelled
  // once the load is to stop. Counts the bytes as done.
  Status Read(uint64_t offset, std::span<std::byte> out) const;
  // The same for several at once.
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
