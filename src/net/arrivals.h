// Reports the bytes of a read before the read is complete.

#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace haulway::net {

// During the lifetime of an ArrivalScope, its function is called with the bytes
// that servers send directly into memory that this thread reads into, in order
// of arrival. The bytes are the object's, even if the read fails later. Bytes
// that need no request, or that are copied from other memory, are not reported.
class ArrivalScope {
 public:
  using Function = std::function<void(std::span<const std::byte> bytes)>;
  explicit ArrivalScope(Function function);
  ArrivalScope(const ArrivalScope&) = delete;
  ArrivalScope& operator=(const ArrivalScope&) = delete;
  ~ArrivalScope();

  // Calls the function of this thread's innermost scope, if any.
  static void Tell(std::span<const std::byte> bytes);

 private:
  const Function function_;
  const ArrivalScope* const outer_;
};

}  // namespace haulway::net
