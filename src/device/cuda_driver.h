// The CUDA driver, loaded on demand: building the library and running it
// without a GPU need no part of CUDA.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "haulway/status.h"

namespace haulway::cuda {

// As in cuda.h.
using CuResult = int;
using CuDevice = int;
using CuAddress = unsigned long long;  // An address in device memory.
using CuContext = struct CUctx_st*;
using CuStream = struct CUstream_st*;
using CuEvent = struct CUevent_st*;

inline constexpr CuResult kSuccess = 0;
inline constexpr CuResult kOutOfMemory = 2;
inline constexpr CuResult kNotReady = 600;
inline constexpr unsigned kHostRegisterPortable = 1;  // In all contexts.
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;

// The functions in use, named as in cuda.h without the prefix.
struct Functions {
  CuResult (*Init)(unsigned flags);
  CuResult (*GetErrorName)(CuResult error, const char** name);
  CuResult (*DeviceGetCount)(int* count);
  CuResult (*DeviceGet)(CuDevice* device, int ordinal);
  CuResult (*DevicePrimaryCtxRetain)(CuContext* context, CuDevice device);
  CuResult (*DevicePrimaryCtxRelease)(CuDevice device);
  CuResult (*CtxPushCurrent)(CuContext context);
  CuResult (*CtxPopCurrent)(CuContext* context);
  CuResult (*MemAlloc)(CuAddress* address, size_t bytes);
  CuResult (*MemFree)(CuAddress address);
  CuResult (*MemHostRegister)(void* address, size_t bytes, unsigned flags);
  CuResult (*MemHostUnregister)(void* address);
  CuResult (*MemcpyHtoDAsync)(CuAddress to, const void* from, size_t bytes,
                              CuStream stream);
  CuResult (*StreamCreate)(CuStream* stream, unsigned flags);
  CuResult (*StreamSynchronize)(CuStream stream);
  CuResult (*StreamDestroy)(CuStream stream);
  CuResult (*EventCreate)(CuEvent* event, unsigned flags);
  CuResult (*EventRecord)(CuEvent event, CuStream stream);
  CuResult (*EventSynchronize)(CuEvent event);
  CuResult (*EventDestroy)(CuEvent event);
};

// A Driver is the loaded library, which stays loaded until the process ends.
//
// Threads: any number at once.
class Driver {
 public:
  // Fails with kUnsupported if the library does not exist, lacks a function, or
  // finds no GPU.
  static Result<std::shared_ptr<const Driver>> Load(const std::string& library);

  const Functions& call() const { return functions_; }
  // Returns ok for kSuccess. Otherwise fails with a message such as
  // "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY": kLimit for that error, kIoError for
  // others.
  Status Check(CuResult result, std::string_view function) const;

 private:
  explicit Driver(const Functions& functions) : functions_(functions) {}
  const Functions functions_;
};

}  // namespace haulway::cuda
