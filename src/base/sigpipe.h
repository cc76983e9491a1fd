// Writing to connections without being killed by it.

#pragma once

#include <signal.h>

namespace haulway {

// While a WithoutSigpipe lives, writing to a connection that the other side
// has closed raises no signal in its thread: OpenSSL writes without
// MSG_NOSIGNAL.
//
// Threads: made and destroyed by the same one.
class WithoutSigpipe {
 public:
  WithoutSigpipe();
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;
  ~WithoutSigpipe();

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace haulway
