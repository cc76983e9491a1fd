#include "delta/blake3_lanes.h"

#if defined(__x86_64__)

namespace haulway::delta::blake3 {

void HashLanesAvx2(const std::byte* chunks, uint64_t counter,
                   std::array<uint32_t, 8>* out) {
  HashLanes<kMostLanes>(chunks, counter, out);
}

}  // namespace haulway::delta::blake3

#endif
