// A CUDA driver without a GPU, for tests: the functions of libcuda that Haulway
// uses, over host memory. Copies are done as late as CUDA permits: only when
// waited for. So memory that is reused too early is detected.

#pragma once

#include <cstddef>

extern "C" {

// Resources that were created and not released: contexts retained and pushed,
// device and pinned allocations, streams, events.
struct FakeCudaCounts {
  long contexts;
  long pushed;
  long allocations;
  long pinned;
  long streams;
  long events;
  long copies;  // All copies, including finished ones.
  // Calls that a real driver would have answered with an error or worse.
  long faults;
};

// Resets all counters and failures. Simulates `devices` GPUs of `bytes` each.
void FakeCudaReset(int devices, size_t bytes);
FakeCudaCounts FakeCudaCount();
// Makes the `call`th call from now (the first is 1) fail with `error`. Calls
// that free something do not count.
void FakeCudaFail(long call, int error);
// Makes pinned allocations fail until the next reset.
void FakeCudaRefusePinned();
}
