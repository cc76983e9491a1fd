// Property: any text parsed as a manifest results in tensors or in a typed
// error. A parsed manifest, written and parsed again, is the same, and has no
// differences from itself.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "haulway/compare.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto manifest = haulway::ManifestFromJson(text);
  if (!manifest.ok()) return 0;
  const auto again =
      haulway::ManifestFromJson(haulway::ManifestToJson(*manifest));
  if (!again.ok() || *again != *manifest) abort();
  if (!haulway::CompareManifests(*manifest, *again).empty()) abort();
  return 0;
}
