// Property: salvaging any bytes as a truncated file results in a checkpoint or
// in a typed error. Storages that are reported as complete lie within the
// bytes, and reading them results in their bytes or in a typed error.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "convert/salvage.h"
#include "haulway/checkpoint.h"
#include "haulway/options.h"
#include "haulway/source.h"

namespace {

// Limit on the bytes read, because a compressed storage may claim any size.
constexpr uint64_t kMostRead = 1 << 20;

void ReadWhole(const haulway::convert::Salvaged& salvaged, uint64_t size) {
  if (salvaged.bytes > size) abort();
  const haulway::Checkpoint& checkpoint = *salvaged.checkpoint;
  const auto& storages = checkpoint.index().storages;
  for (uint32_t row = 0; row < storages.size(); ++row) {
    const haulway::StorageInfo& storage = storages[row];
    if (salvaged.IsLost(row) || storage.nbytes > kMostRead) continue;
    if (storage.stored_bytes > size ||
        storage.offset > size - storage.stored_bytes) {
      abort();
    }
    std::vector<std::byte> out(storage.nbytes);
    (void)checkpoint.ReadStorageRange(row, 0, out);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto source =
      haulway::MakeMemorySource(std::as_bytes(std::span(data, size)));
  for (const auto strictness :
       {haulway::Strictness::kStrict, haulway::Strictness::kLenient}) {
    haulway::OpenOptions options;
    options.strictness = strictness;
    options.limits.max_inflated_bytes = kMostRead;
    const auto salvaged = haulway::convert::Salvage(source, options);
    if (salvaged.ok()) ReadWhole(*salvaged, size);
  }
  return 0;
}
