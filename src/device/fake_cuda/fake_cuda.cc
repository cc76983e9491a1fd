// A CUDA driver without a GPU: the entry points of libcuda.so.1 that the
// library looks up, over host memory. A copy runs only when it is waited for,
// so a test fails if the source memory was released too early, which on a real
// device would be a race. Calls, contexts and faults are counted for tests.
//
// Design: a shared library that tests open instead of the driver, so that the
// tested code is the production code, including dlopen(). Interfaces over CUDA
// with a test double would have tested the interfaces.

#include "device/fake_cuda/fake_cuda.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidContext = 201;

struct PendingCopy {
  void* to;
  const void* from;
  size_t bytes;
};
struct Stream {
  std::deque<PendingCopy> pending;
  unsigned long long queued = 0;
  unsigned long long done = 0;
};
struct Event {
  Stream* stream = nullptr;
  unsigned long long after = 0;
};

struct State {
  std::mutex mutex;
  int devices = 1;
  size_t free_bytes = size_t{1} << 40;
  FakeCudaCounts counts = {};
  long fail_in = 0;
  int fail_with = 0;
  bool refuse_pinned = false;
  std::map<const char*, size_t> device_memory;
  std::map<const char*, size_t> pinned_memory;
  std::set<Stream*> streams;
  std::set<Event*> events;
};

State& Get() {
  // Never destroyed: outlives every static destructor.
  static State* const state = new State;
  return *state;
}

thread_local int pushed_here = 0;

bool Within(const std::map<const char*, size_t>& memory, const void* begin,
            size_t bytes) {
  const char* first = static_cast<const char*>(begin);
  auto after = memory.upper_bound(first);
  if (after == memory.begin()) return false;
  --after;
  const size_t offset = static_cast<size_t>(first - after->first);
  return offset <= after->second && bytes <= after->second - offset;
}

// Executes the queued copies up to number `until`.
void Advance(Stream* stream, unsigned long long until) {
  while (stream->done < until && !stream->pending.empty()) {
    const PendingCopy copy = stream->pending.front();
    stream->pending.pop_front();
    std::memcpy(copy.to, copy.from, copy.bytes);
    ++stream->done;
  }
}

void AdvanceAll(State& state) {
  for (Stream* stream : state.streams) Advance(stream, stream->queued);
}

// Returns the error if this call is the one to fail or is not permitted.
int Enter(State& state, bool needs_context) {
  if (state.fail_in > 0 && --state.fail_in == 0) return state.fail_with;
  if (needs_context && pushed_here == 0) {
    ++state.counts.faults;
    return kInvalidContext;
  }
  return kSuccess;
}

}  // namespace

extern "C" {

void FakeCudaReset(int devices, size_t bytes) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  state.devices = devices;
  state.free_bytes = bytes;
  state.counts = {};
  state.fail_in = 0;
  state.refuse_pinned = false;
}

void FakeCudaRefusePinned() {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  state.refuse_pinned = true;
}

FakeCudaCounts FakeCudaCount() {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  return state.counts;
}

void FakeCudaFail(long call, int error) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  state.fail_in = call;
  state.fail_with = error;
}

int cuInit(unsigned) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  const int error = Enter(state, false);
  if (error != kSuccess) return error;
  return state.devices > 0 ? kSuccess : 100;
}

int cuGetErrorName(int error, const char** name) {
  switch (error) {
    case kOutOfMemory:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return kSuccess;
    case 100:
      *name = "CUDA_ERROR_NO_DEVICE";
      return kSuccess;
    case 700:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      return kSuccess;
    default:
      *name = nullptr;
      return kInvalidValue;
  }
}

int cuDeviceGetCount(int* count) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  *count = state.devices;
  return Enter(state, false);
}

int cuDeviceGet(int* device, int ordinal) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  *device = ordinal;
  return Enter(state, false);
}

int cuDevicePrimaryCtxRetain(void** context, int) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  const int error = Enter(state, false);
  if (error != kSuccess) return error;
  *context = &state;
  ++state.counts.contexts;
  return kSuccess;
}

int cuDevicePrimaryCtxRelease_v2(int) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  --state.counts.contexts;
  return kSuccess;
}

int cuCtxPushCurrent_v2(void*) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  const int error = Enter(state, false);
  if (error != kSuccess) return error;
  ++pushed_here;
  ++state.counts.pushed;
  return kSuccess;
}

int cuCtxPopCurrent_v2(void** context) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  *context = &state;
  --pushed_here;
  --state.counts.pushed;
  return kSuccess;
}

int cuMemAlloc_v2(unsigned long long* address, size_t bytes) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  const int error = Enter(state, true);
  if (error != kSuccess) return error;
  if (bytes > state.free_bytes) return kOutOfMemory;
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(memory, 0xA5, bytes);
  state.device_memory[static_cast<char*>(memory)] = bytes;
  *address = reinterpret_cast<unsigned long long>(memory);
  ++state.counts.allocations;
  state.free_bytes -= bytes;
  return kSuccess;
}

int cuMemFree_v2(unsigned long long address) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  AdvanceAll(state);  // The real driver also waits for all copies.
  auto* memory = reinterpret_cast<char*>(address);
  const auto found = state.device_memory.find(memory);
  if (found == state.device_memory.end()) {
    ++state.counts.faults;
    return kInvalidValue;
  }
  state.free_bytes += found->second;
  state.device_memory.erase(found);
  std::free(memory);
  --state.counts.allocations;
  return kSuccess;
}

int cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  const int error = Enter(state, true);
  if (error != kSuccess) return error;
  if (state.refuse_pinned) return kOutOfMemory;
  state.pinned_memory[static_cast<char*>(address)] = bytes;
  ++state.counts.pinned;
  return kSuccess;
}

int cuMemHostUnregister(void* address) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  // The real driver waits too, but code that relies on this has lost track of a
  // copy.
  for (const Stream* stream : state.streams) {
    if (!stream->pending.empty()) ++state.counts.faults;
  }
  AdvanceAll(state);
  if (state.pinned_memory.erase(static_cast<char*>(address)) == 0) {
    ++state.counts.faults;
    return kInvalidValue;
  }
  --state.counts.pinned;
  return kSuccess;
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes,
                         void* handle) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  const int error = Enter(state, true);
  if (error != kSuccess) return error;
  auto* target = reinterpret_cast<char*>(to);
  auto* stream = static_cast<Stream*>(handle);
  if (!Within(state.device_memory, target, bytes) ||
      !state.streams.contains(stream)) {
    ++state.counts.faults;
    return kInvalidValue;
  }
  ++state.counts.copies;
  stream->pending.push_back({target, from, bytes});
  ++stream->queued;
  // Copies from memory that is not pinned are done before the call returns.
  if (!Within(state.pinned_memory, from, bytes)) {
    Advance(stream, stream->queued);
  }
  return kSuccess;
}

int cuStreamCreate(void** handle, unsigned) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  const int error = Enter(state, true);
  if (error != kSuccess) return error;
  auto* stream = new Stream;
  state.streams.insert(stream);
  *handle = stream;
  ++state.counts.streams;
  return kSuccess;
}

int cuStreamSynchronize(void* handle) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  auto* stream = static_cast<Stream*>(handle);
  if (!state.streams.contains(stream)) {
    ++state.counts.faults;
    return kInvalidValue;
  }
  Advance(stream, stream->queued);
  return Enter(state, false);
}

int cuStreamDestroy_v2(void* handle) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  auto* stream = static_cast<Stream*>(handle);
  if (state.streams.erase(stream) == 0) {
    ++state.counts.faults;
    return kInvalidValue;
  }
  Advance(stream, stream->queued);
  delete stream;
  --state.counts.streams;
  return kSuccess;
}

int cuEventCreate(void** handle, unsigned) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  const int error = Enter(state, true);
  if (error != kSuccess) return error;
  auto* event = new Event;
  state.events.insert(event);
  *handle = event;
  ++state.counts.events;
  return kSuccess;
}

int cuEventRecord(void* handle, void* stream) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  const int error = Enter(state, true);
  if (error != kSuccess) return error;
  auto* event = static_cast<Event*>(handle);
  event->stream = static_cast<Stream*>(stream);
  event->after = event->stream->queued;
  return kSuccess;
}

int cuEventSynchronize(void* handle) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  const int error = Enter(state, true);
  if (error != kSuccess) return error;
  auto* event = static_cast<Event*>(handle);
  if (!state.events.contains(event)) {
    ++state.counts.faults;
    return kInvalidValue;
  }
  if (event->stream != nullptr && state.streams.contains(event->stream)) {
    Advance(event->stream, event->after);
  }
  return kSuccess;
}

int cuEventDestroy_v2(void* handle) {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  auto* event = static_cast<Event*>(handle);
  if (state.events.erase(event) == 0) {
    ++state.counts.faults;
    return kInvalidValue;
  }
  delete event;
  --state.counts.events;
  return kSuccess;
}

}  // extern "C"
