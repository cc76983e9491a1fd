// Property: opening any bytes as a checkpoint, then loading, verifying and
// scanning it, results in a value or a typed error. Loaded storages have the
// sizes in the index.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/load.h"
#include "haulway/source.h"
#include "haulway/verify.h"

namespace {

void LoadAll(std::span<const std::byte> bytes, haulway::Strictness strictness) {
  // A sparse or deflated storage may be much larger than its file.
  constexpr uint64_t kLargest = 16 * haulway::kMiB;
  haulway::OpenOptions options;
  options.strictness = strictness;
  options.limits.max_inflated_bytes = haulway::kMiB;
  const auto opened =
      haulway::Checkpoint::Open(haulway::MakeMemorySource(bytes), options);
  if (!opened.ok()) {
    if (opened.status().message().empty()) abort();
    return;
  }
  const haulway::Checkpoint& checkpoint = **opened;
  const auto& storages = checkpoint.index().storages;
  uint64_t total = 0;
  for (const haulway::StorageInfo& storage : storages) {
    if (storage.nbytes > kLargest - total) return;
    total += storage.nbytes;
  }
  std::vector<uint32_t> rows(storages.size());
  std::iota(rows.begin(), rows.end(), 0);
  haulway::LoadOptions load;
  load.threads = 1;
  load.verify = true;
  for (const auto mode : {haulway::IoMode::kMmap, haulway::IoMode::kPread}) {
    load.io = mode;
    const auto loaded = haulway::LoadStorages(checkpoint, rows, load);
    if (!loaded.ok()) continue;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (loaded->buffers[i].size() != storages[i].nbytes) abort();
    }
  }
}

void Inspect(const std::shared_ptr<const haulway::ByteSource>& source,
             haulway::Strictness strictness) {
  haulway::VerifyOptions verify;
  verify.open.strictness = strictness;
  verify.open.limits.max_inflated_bytes = haulway::kMiB;
  verify.threads = 1;
  const auto report = haulway::Verify(source, verify);
  if (report.ok() && report->ok != report->findings.empty()) abort();
  const auto scan = haulway::Scan(source, verify.open);
  if (scan.ok() && scan->safe() && !scan->findings.empty()) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  for (const auto strictness :
       {haulway::Strictness::kStrict, haulway::Strictness::kLenient}) {
    LoadAll(bytes, strictness);
    Inspect(haulway::MakeMemorySource(bytes), strictness);
  }
  return 0;
}
