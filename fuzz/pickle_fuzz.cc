// Property: parsing any bytes results in a tree or a typed error, and a scan
// has findings exactly if loading refuses the bytes.

#include <cstdint>
#include <cstdlib>
#include <span>

#include "pickle/pickle_depth.h"
#include "pickle/pickle_vm.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  haulway::TreeArena arena;
  const auto loaded = haulway::ParsePickle(bytes, arena);

  haulway::PickleOptions options;
  options.scan = true;
  haulway::TreeArena scan_arena;
  const auto scanned = haulway::ParsePickle(bytes, scan_arena, options);
  if (!scanned.ok()) abort();
  const haulway::PickleResult& scan = scanned.value();
  if (loaded.ok() != scan.findings.empty()) abort();
  if (!loaded.ok()) {
    if (!loaded.status().byte().has_value()) abort();
    if (loaded.status().message() != scan.findings[0].message) abort();
    return 0;
  }
  const haulway::Value& root = loaded.value().root;
  if (haulway::pickle::MeasureDepth(root) > options.limits.max_depth) abort();
  return 0;
}
