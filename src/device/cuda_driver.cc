#include "device/cuda_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace haulway::cuda {

namespace {

// A LibraryLoader looks up functions in a library and remembers the first
// missing one.
class LibraryLoader {
 public:
  explicit LibraryLoader(void* library) : library_(library) {}

  template <class Function>
  void Take(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(::dlsym(library_, name));
    if (*function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

std::string NameOf(const Functions& call, CuResult error) {
  const char* name = nullptr;
  if (call.GetErrorName(error, &name) == kSuccess && name != nullptr) {
    return name;
  }
  return fmt::format("error {}", error);
}

}  // namespace

Result<std::shared_ptr<const Driver>> Driver::Load(const std::string& library) {
  // Never closed: the driver has its own threads.
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Status(Code::kUnsupported,
                  fmt::format("no CUDA driver: cannot load {}", library));
  }
  Functions call = {};
  LibraryLoader loader(handle);
  loader.Take("cuInit", &call.Init);
  loader.Take("cuGetErrorName", &call.GetErrorName);
  loader.Take("cuDeviceGetCount", &call.DeviceGetCount);
  loader.Take("cuDeviceGet", &call.DeviceGet);
  loader.Take("cuDevicePrimaryCtxRetain", &call.DevicePrimaryCtxRetain);
  loader.Take("cuDevicePrimaryCtxRelease_v2", &call.DevicePrimaryCtxRelease);
  loader.Take("cuCtxPushCurrent_v2", &call.CtxPushCurrent);
  loader.Take("cuCtxPopCurrent_v2", &call.CtxPopCurrent);
  loader.Take("cuMemAlloc_v2", &call.MemAlloc);
  loader.Take("cuMemFree_v2", &call.MemFree);
  loader.Take("cuMemHostRegister_v2", &call.MemHostRegister);
  loader.Take("cuMemHostUnregister", &call.MemHostUnregister);
  loader.Take("cuMemcpyHtoDAsync_v2", &call.MemcpyHtoDAsync);
  loader.Take("cuStreamCreate", &call.StreamCreate);
  loader.Take("cuStreamSynchronize", &call.StreamSynchronize);
  loader.Take("cuStreamDestroy_v2", &call.StreamDestroy);
  loader.Take("cuEventCreate", &call.EventCreate);
  loader.Take("cuEventRecord", &call.EventRecord);
  loader.Take("cuEventSynchronize", &call.EventSynchronize);
  loader.Take("cuEventDestroy_v2", &call.EventDestroy);
  if (!loader.missing().empty()) {
    return Status(Code::kUnsupported,
                  fmt::format("CUDA driver is too old: {} lacks {}", library,
                              loader.missing()));
  }
  if (const CuResult result = call.Init(0); result != kSuccess) {
    return Status(Code::kUnsupported,
                  fmt::format("no GPU: cuInit: {}", NameOf(call, result)));
  }
  return std::shared_ptr<const Driver>(new Driver(call));
}

Status Driver::Check(CuResult result, std::string_view function) const {
  if (result == kSuccess) return Status();
  return Status(result == kOutOfMemory ? Code::kLimit : Code::kIoError,
                fmt::format("{}: {}", function, NameOf(functions_, result)));
}

}  // namespace haulway::cuda
