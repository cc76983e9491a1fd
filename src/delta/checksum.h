// The checksums of tensors in versions of weights.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "delta/version_facts.h"
#include "haulway/status.h"

namespace haulway::delta {

// A Checksum is computed over bytes in order. Threads: one at a time.
class Checksum {
 public:
  explicit Checksum(ChecksumKind kind);
  Checksum(Checksum&&) noexcept;
  ~Checksum();

  void Update(std::span<const std::byte> bytes);
  // Returns lower-case hexadecimal digits, as versions store them.
  std::string Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns whether `text` can be a checksum of this kind.
bool IsChecksum(ChecksumKind kind, std::string_view text);

// Fails with kMismatch unless `found` is `expected`.
Status CompareChecksums(ChecksumKind kind, std::string_view expected,
                        std::string_view found);

}  // namespace haulway::delta
