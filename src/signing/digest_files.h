// Digests many ranges of files at once, in the pass that reads them.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/fresh_memory.h"
#include "haulway/signing.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::signing {

// A range of a file to read and digest.
struct DigestJob {
  const ByteSource* source = nullptr;
  uint64_t offset = 0;
  uint64_t length = 0;
  ModelHash hash = ModelHash::kSha256;
  // If set, the bytes are read to their offset here, and stay. If null, they
  // are digested and forgotten.
  FreshMemory* memory = nullptr;
  // Results: the digest, or why there is none.
  std::string digest{};
  Status status{};
};

struct DigestOptions {
  int threads = 0;  // 0: as many as this process may use.
  const std::atomic<bool>* cancel = nullptr;
  // Called with the bytes of all jobs that are done, from any thread, one at a
  // time.
  std::function<void(uint64_t done)> progress = nullptr;
};

// Fills in the results of each job. Every byte is read once: what is digested
// is what stays in memory. Fails with kCancelled and kLimit; failures of
// sources are results.
Status DigestAll(std::span<DigestJob> jobs, const DigestOptions& options);

}  // namespace haulway::signing
