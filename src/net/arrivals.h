// Hearing of the bytes of a read before the read is whole.

#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace haulway::net {

// While an ArrivalScope lives, its function is called with the bytes that a
// server sends into memory that this thread reads into, in the order in which
// they come. They are the object's, whatever becomes of the read. Bytes that
// need no server, or come by way of other memory, are not told of.
class ArrivalScope {
 public:
  using Function = std::function<void(std::span<const std::byte> bytes)>;
  explicit ArrivalScope(Function function);
  ArrivalScope(const ArrivalScope&) = delete;
  ArrivalScope& operator=(const ArrivalScope&) = delete;
  ~ArrivalScope();

  // Calls the function of this thread's innermost scope, if there is one.
  static void Tell(std::span<const std::byte> bytes);

 private:
  const Function function_;
  const ArrivalScope* const outer_;
};

}  // namespace haulway::net
