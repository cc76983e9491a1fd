#include "base/sha256_lanes.h"

#include <cstdint>

#include "base/sha256_kernels.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace haulway {

#ifdef __x86_64__

namespace {

constexpr size_t kNever = SIZE_MAX;

// Returns whether the processor has SHA instructions.
bool HasShaInstructions() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (b & (1u << 29)) != 0;
}

bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0;
}

}  // namespace

// The values of `worth` were measured on a Zen 5: SHA instructions reach 1.8
// GB/s, code without them 0.7; 32 lanes reach 6.2, 16 lanes 4.3, 8 lanes 1.5.
// On a Zen 3, which has at most 8 lanes (1.4 GB/s), SHA instructions reach 1.4
// with one message and 2.7 with two in turn. So a processor with both uses 16
// lanes from 13 messages on, since 4.3 * 13 / 16 is about 2 * 1.8; this was not
// measured. An EPYC with both reaches 3.3 with 32 lanes, 3.0 with 16, 1.8 with
// 8, and 3.4 with SHA instructions, which alone would be better there.

const Sha256Lanes* Avx512TwiceSha256Lanes() {
  static const Sha256Lanes lanes = {32, 23, &CompressSha256Avx512Twice};
  return HasAvx512() ? &lanes : nullptr;
}

const Sha256Lanes* Avx512Sha256Lanes() {
  static const Sha256Lanes lanes = {16, HasShaInstructions() ? 13u : 4u,
                                    &CompressSha256Avx512};
  return HasAvx512() ? &lanes : nullptr;
}

const Sha256Lanes* Avx2Sha256Lanes() {
  static const bool can = __builtin_cpu_supports("avx2") != 0;
  static const Sha256Lanes lanes = {8, HasShaInstructions() ? kNever : 4,
                                    &CompressSha256Avx2};
  return can ? &lanes : nullptr;
}

const Sha256Lanes* ShaSha256Lanes() {
  static const bool can =
      HasShaInstructions() && __builtin_cpu_supports("sse4.1") != 0;
  static const Sha256Lanes lanes = {2, 2, &CompressSha256Sha};
  return can ? &lanes : nullptr;
}

#else

const Sha256Lanes* Avx512TwiceSha256Lanes() { return nullptr; }
const Sha256Lanes* Avx512Sha256Lanes() { return nullptr; }
const Sha256Lanes* Avx2Sha256Lanes() { return nullptr; }
const Sha256Lanes* ShaSha256Lanes() { return nullptr; }

#endif

const Sha256Lanes* BestSha256Lanes(size_t messages) {
  static const Sha256Lanes* const widest_first[] = {
      Avx512TwiceSha256Lanes(), Avx512Sha256Lanes(), Avx2Sha256Lanes(),
      ShaSha256Lanes()};
  for (const Sha256Lanes* lanes : widest_first) {
    if (lanes != nullptr && messages >= lanes->worth) return lanes;
  }
  return nullptr;
}

}  // namespace haulway
