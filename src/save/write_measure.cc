#include "save/write_measure.h"

#include <algorithm>

#include "haulway/machine.h"
#include "haulway/options.h"

namespace haulway {

namespace {

// Maximum memory that a thread copies into, in the writer and the sink
// together, apart from small amounts.
constexpr uint64_t kThreadBytes = 8 * kMiB;

}  // namespace

Result<SinkTraits> MeasuredSink::Begin(std::optional<uint64_t> size) {
  auto traits = allocating_.Measure([&] { return sink_.Begin(size); });
  if (!traits.ok()) return std::move(traits).status().Of(name());
  return traits;
}

Status MeasuredSink::WriteAt(
    uint64_t offset, std::span<const std::span<const std::byte>> parts) {
  uint64_t bytes = 0;
  for (const auto part : parts) bytes += part.size();
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return writing_.Measure([&] { return sink_.WriteAt(offset, parts); })
      .Of(name());
}

Status MeasuredSink::CopyAt(uint64_t offset, const FileBytes& from,
                            uint64_t length) {
  HAULWAY_TRY(
      writing_.Measure([&] { return sink_.CopyAt(offset, from, length); })
          .Of(name()));
  bytes_.fetch_add(length, std::memory_order_relaxed);
  copied_.fetch_add(length, std::memory_order_relaxed);
  return Status();
}

Status MeasuredSink::Commit(uint64_t size) {
  return committing_.Measure([&] { return sink_.Commit(size); }).Of(name());
}

void MeasuredSink::Record(WriteStats* stats) const {
  stats->written_bytes = bytes_.load();
  stats->copied_bytes = copied_.load();
  stats->direct_bytes = sink_.direct_bytes();
  stats->direct = stats->direct_bytes != 0;
  stats->allocate_seconds = allocating_.seconds();
  stats->write_seconds = writing_.seconds();
  stats->commit_seconds = committing_.seconds();
}

WriteOptions WithThreads(const WriteOptions& options) {
  WriteOptions with = options;
  const int wanted = options.threads > 0 ? options.threads : UsableCpus();
  const uint64_t most =
      std::max<uint64_t>(1, options.memory_budget / kThreadBytes);
  with.threads =
      static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(wanted), most));
  return with;
}

}  // namespace haulway
