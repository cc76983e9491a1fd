// Protects writes to connections from SIGPIPE.

#pragma once

#include <signal.h>

namespace haulway {

// During the lifetime of a WithoutSigpipe, a write of its thread to a
// connection that the other side has closed raises no signal. Needed because
// OpenSSL writes without MSG_NOSIGNAL.
//
// Threads: one thread makes and destroys it.
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
