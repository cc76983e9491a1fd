// A driver without a GPU, for tests: the functions of libcuda that Haulway
// uses, over the host's memory. Copies are done as late as CUDA allows: only
// when somebody waits for them. So memory that is used again too early shows.

#pragma once

#include <cstddef>

extern "C" {

// What was made and not given back: contexts retained and pushed, device and
// pinned allocations, streams, events.
struct FakeCudaCounts {
  long contexts;
  long pushed;
  long allocations;
  long pinned;
  long streams;
  long events;
  long copies;  // In all, done ones too.
  long faults;  // What a real driver would have answered by an error or worse.
};

// All to zero; the next calls succeed. `devices` GPUs, of `bytes` each.
void FakeCudaReset(int devices, size_t bytes);
FakeCudaCounts FakeCudaCount();
// Makes the `call`th call from now on fail with `error`: the first is 1. Calls
// that free something do not count.
void FakeCudaFail(long call, int error);
// Until the next reset no pinned memory is given.
void FakeCudaRefusePinned();
}
