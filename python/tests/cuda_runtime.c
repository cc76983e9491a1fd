// A stand-in for CUDA's runtime, whose device memory is the process's own.
//
// The safetensors package looks for a loaded libcudart.so and calls what it finds
// there. With this library it loads to a device on a machine without one. Copies
// are done when they are enqueued, so every event has always happened.

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static size_t held;

int cudaHostAlloc(void **memory, size_t size, unsigned flags) {
  *memory = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  return *memory ? 0 : 2;
}
int cudaFreeHost(void *memory) {
  free(memory);
  return 0;
}
// The size stands before the memory.
int cudaMallocAsync(void **memory, size_t size, void *stream) {
  char *all = aligned_alloc(512, (size + 1023) / 512 * 512);
  if (!all) return 2;
  *(size_t *)all = size;
  held += size;
  *memory = all + 512;
  return 0;
}
int cudaFreeAsync(void *memory, void *stream) {
  if (memory) {
    held -= *(size_t *)((char *)memory - 512);
    free((char *)memory - 512);
  }
  return 0;
}
size_t device_bytes_held(void) { return held; }

int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  memcpy(to, from, size);
  return 0;
}
int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
  *stream = malloc(1);
  return 0;
}
int cudaStreamDestroy(void *stream) {
  free(stream);
  return 0;
}
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) { return 0; }
int cudaEventCreateWithFlags(void **event, unsigned flags) {
  *event = malloc(1);
  return 0;
}
int cudaEventRecord(void *event, void *stream) { return 0; }
int cudaEventQuery(void *event) { return 0; }
int cudaEventSynchronize(void *event) { return 0; }
int cudaEventDestroy(void *event) {
  free(event);
  return 0;
}
static int current;
int cudaSetDevice(int device) {
  if (device) return 101;
  current = device;
  return 0;
}
int cudaGetDevice(int *device) {
  *device = current;
  return 0;
}
int cudaDeviceGetDefaultMemPool(void **pool, int device) {
  *pool = &current;
  return device ? 101 : 0;
}
int cudaMemPoolSetAttribute(void *pool, int attribute, void *value) { return 0; }
int cudaMemPoolTrimTo(void *pool, size_t bytes) { return 0; }
int cudaMemGetInfo(size_t *available, size_t *whole) {
  *available = *whole = (size_t)1 << 34;
  return 0;
}
const char *cudaGetErrorString(int error) {
  return error == 101 ? "invalid device ordinal" : error == 2 ? "out of memory" : "error";
}
static int primary_context(int device, unsigned *flags, int *active) {
  *flags = 0;
  *active = 1;
  return 0;
}
int cudaGetDriverEntryPointByVersion(
    const char *symbol, void **function, unsigned version, unsigned long long flags,
    int *result) {
  *function = (void *)primary_context;
  if (result) *result = 0;
  return 0;
}
