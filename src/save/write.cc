#include <chrono>
#include <string>
#include <utility>

#include "base/no_memory.h"
#include "haulway/layout.h"
#include "save/write_measure.h"
#include "save/writers.h"

namespace haulway {

Result<WriteStats> Write(const Layout& layout, ByteSink& sink,
                         const WriteOptions& options) {
  const std::string name(sink.name());
  MeasuredSink measured(&sink);
  const WriteOptions with = WithThreads(options);
  const auto start = std::chrono::steady_clock::now();
  const auto run = [&]() -> Result<WriteStats> {
    HAULWAY_ASSIGN(const SinkTraits traits, measured.Begin(layout.size()));
    auto* const write = layout.digesting() == Digesting::kInOrder
                            ? &WriteByPayloads
                            : &WriteByChunks;
    HAULWAY_ASSIGN(WriteStats stats, write(layout, measured, traits, with));
    if (with.cancel != nullptr && with.cancel->load()) {
      return Status(Code::kCancelled, "writing was cancelled");
    }
    HAULWAY_TRY(measured.Commit(layout.size()));
    return stats;
  };
  auto stats = OrNoMemory(run);
  if (!stats.ok()) {
    Status status = std::move(stats).status();
    // If what failed is a source, the message names that.
    if (status.message().find("; of ") != std::string_view::npos) return status;
    return std::move(status).Of(name);
  }
  measured.Record(&*stats);
  stats->bytes = layout.size();
  stats->seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  for (const Payload& payload : layout.payloads()) {
    if (!payload.is_hole()) stats->tensor_bytes += payload.length;
  }
  return stats;
}

}  // namespace haulway
