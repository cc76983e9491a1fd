// Property: opening any bytes as a zip archive and reading every record results
// in bytes of the stated size or a typed error, and input that strict reading
// accepts is accepted by lenient reading too.

#include <cstdint>
#include <cstdlib>
#include <span>

#include "haulway/checkpoint.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "zip/zip_reader.h"

namespace {

bool Walk(std::span<const std::byte> bytes, haulway::Strictness strictness) {
  haulway::ParseLimits limits;
  limits.max_inflated_bytes = haulway::kMiB;
  auto opened = haulway::zip::ZipReader::Open(haulway::MakeMemorySource(bytes),
                                              strictness, limits);
  if (!opened.ok()) return false;
  haulway::zip::ZipReader& zip = **opened;
  if (!zip.ResolveOffsets().ok()) return false;
  for (const haulway::zip::Entry& entry : zip.entries()) {
    if (entry.end > bytes.size()) abort();
    const auto payload = zip.Read(entry);
    if (payload.ok() && payload->size() != entry.size) abort();
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const bool strict = Walk(bytes, haulway::Strictness::kStrict);
  const bool lenient = Walk(bytes, haulway::Strictness::kLenient);
  if (strict && !lenient) abort();
  return 0;
}
