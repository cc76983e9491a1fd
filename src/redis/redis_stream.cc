// Design: sockets are non-blocking. Every call that would block is preceded by
// poll(2) with a timeout, with TLS too, so that a server that stops at any
// point is detected. Waits are divided into ticks of 50 ms, and each tick
// checks the CancelScope. Only the system's resolver cannot be cancelled: it
// runs on its own thread, which is abandoned when the call ends. Writes do not
// raise SIGPIPE: a write to a closed socket is an error, and with TLS, where
// OpenSSL writes, the signal is blocked.
//
// OpenSSL reads the sockets itself, rather than memory buffers: one copy less
// and no code of ours in between. hiredis is not used, because it stores a
// whole reply before returning it, so a value of 256 MiB takes twice the
// memory.

#include "redis/redis_stream.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "base/sigpipe.h"
#include "base/text.h"
#include "haulway/options.h"
#include "net/certificates.h"
#include "net/unsent.h"

namespace haulway::redis {

namespace {

using std::chrono::milliseconds;
using Clock = net::StallClock::Clock;

// How often a wait checks whether it is cancelled.
constexpr milliseconds kTick{50};
// Bytes of a file sent by one call.
constexpr uint64_t kMostOfFile = kMiB;

// Waits until the socket is readable or writable, but no longer than `clock`
// permits after `moved` bytes.
Status AwaitSocket(int fd, short events, net::StallClock& clock, uint64_t moved,
                   const Deadline& deadline, std::string_view doing) {
  while (true) {
    pollfd one{fd, events, 0};
    const int ready = ::poll(&one, 1, static_cast<int>(kTick.count()));
    if (ready > 0) return Status();
    if (ready < 0 && errno != EINTR) return Status::FromErrno(errno, "poll");
    if (deadline.IsCancelled()) {
      return Status(Code::kCancelled,
                    fmt::format("it was cancelled while {}", doing));
    }
    if (deadline.IsOver()) return deadline.Failure();
    if (clock.IsStalled(Clock::now(), moved)) {
      return Status(
          Code::kTimeout,
          fmt::format("no answer in {:g} s while {}",
                      std::chrono::duration<double>(clock.window()).count(),
                      doing));
    }
  }
}

Status Lost(int error) {
  return Status(Code::kUnavailable, fmt::format("the connection was lost: {}",
                                                std::strerror(error)));
}

Status Ended() {
  return Status(Code::kTruncated, "the file became shorter while it was read");
}

Status Closed() {
  return Status(Code::kUnavailable, "the server closed the connection");
}

}  // namespace

Status Stream::Await(int fd, short events, std::string_view doing) {
  return AwaitSocket(fd, events, clock_, moved_, deadline_, doing);
}

namespace {

class Socket : public Stream {
 public:
  explicit Socket(UniqueFd fd) : fd_(std::move(fd)) {}

  Result<size_t> Read(std::span<std::byte> out) override {
    while (true) {
      if (deadline_.IsOver()) return deadline_.Failure();
      const ssize_t got = ::recv(fd_.get(), out.data(), out.size(), 0);
      if (got > 0) {
        moved_ += static_cast<uint64_t>(got);
        return static_cast<size_t>(got);
      }
      if (got == 0) return Closed();
      if (errno == EAGAIN) {
        HAULWAY_TRY(Await(fd_.get(), POLLIN, "reading"));
      } else if (errno != EINTR) {
        return Lost(errno);
      }
    }
  }

  Status Write(std::span<const std::byte> first,
               std::span<const std::byte> second) override {
    StartClock();
    std::array<iovec, 2> parts{Part(first), Part(second)};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    while (parts[0].iov_len + parts[1].iov_len != 0) {
      const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
      if (sent < 0) {
        HAULWAY_TRY(AwaitRoom());
        continue;
      }
      auto left = static_cast<size_t>(sent);
      moved_ += left;
      for (iovec& part : parts) {
        const size_t bytes = std::min(left, part.iov_len);
        part.iov_base = static_cast<std::byte*>(part.iov_base) + bytes;
        part.iov_len -= bytes;
        left -= bytes;
      }
    }
    return Status();
  }

  Status WriteFile(const FileBytes& from, uint64_t length) override {
    const WithoutSigpipe guard;
    StartClock();
    auto at = static_cast<off_t>(from.offset);
    while (length != 0) {
      const ssize_t sent =
          ::sendfile(fd_.get(), from.fd, &at,
                     static_cast<size_t>(std::min(length, kMostOfFile)));
      if (sent == 0) return Ended();
      if (sent < 0) {
        HAULWAY_TRY(AwaitRoom());
        continue;
      }
      length -= static_cast<uint64_t>(sent);
      moved_ += static_cast<uint64_t>(sent);
    }
    return Status();
  }

 private:
  static iovec Part(std::span<const std::byte> bytes) {
    return {const_cast<std::byte*>(bytes.data()), bytes.size()};
  }

  // Waits after a call that sent nothing.
  Status AwaitRoom() {
    if (errno == EINTR) return Status();
    if (errno != EAGAIN) return Lost(errno);
    return Await(fd_.get(), POLLOUT, "writing");
  }

  UniqueFd fd_;
};

struct FreeSsl {
  void operator()(SSL* ssl) const { ::SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
};

// Sets the certificates to trust.
Status Trust(SSL_CTX* context, const ConnectOptions& options) {
  if (options.insecure) {
    ::SSL_CTX_set_verify(context, SSL_VERIFY_NONE, nullptr);
    return Status();
  }
  ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  HAULWAY_ASSIGN(const net::Authorities trusted,
                 net::FindAuthorities(options.ca_file, options.ca_dir));
  const auto& [file, folder] = trusted;
  if (::SSL_CTX_load_verify_locations(
          context, file.empty() ? nullptr : file.c_str(),
          folder.empty() ? nullptr : folder.c_str()) != 1) {
    return Status(Code::kInvalidArgument,
                  fmt::format("cannot read certificates of {}",
                              Quote(file.empty() ? folder : file)));
  }
  return Status();
}

// Sets the client's certificate, if there is one.
Status Identify(SSL_CTX* context, const ConnectOptions& options) {
  const std::string& certificate = options.client_certificate;
  if (certificate.empty()) return Status();
  const std::string& key =
      options.client_key.empty() ? certificate : options.client_key;
  if (::SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) != 1 ||
      ::SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) !=
          1) {
    return Status(Code::kInvalidArgument,
                  fmt::format("cannot read the certificate {} and its key",
                              Quote(certificate)));
  }
  return Status();
}

// Returns whether the server's alert says that the client's certificate is
// missing or not trusted.
bool RefusesClient(int reason) {
  return reason == SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED ||
         reason == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE ||
         reason == SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED ||
         reason == SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED ||
         reason == SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN ||
         reason == SSL_R_TLSV1_ALERT_UNKNOWN_CA ||
         reason == SSL_R_TLSV1_ALERT_ACCESS_DENIED;
}

class TlsSocket : public Stream {
 public:
  static Result<std::unique_ptr<Stream>> Open(UniqueFd fd, const Target& target,
                                              const Deadline& deadline) {
    const std::string& host = target.host;
    auto tls = std::make_unique<TlsSocket>();
    tls->fd_ = std::move(fd);
    tls->SetDeadline(deadline);
    tls->context_.reset(::SSL_CTX_new(::TLS_client_method()));
    if (tls->context_ == nullptr) return Status(Code::kLimit, "out of memory");
    ::SSL_CTX_set_min_proto_version(tls->context_.get(), TLS1_2_VERSION);
    HAULWAY_TRY(Trust(tls->context_.get(), target.options));
    HAULWAY_TRY(Identify(tls->context_.get(), target.options));
    tls->ssl_.reset(::SSL_new(tls->context_.get()));
    if (tls->ssl_ == nullptr) return Status(Code::kLimit, "out of memory");
    X509_VERIFY_PARAM* const verify = ::SSL_get0_param(tls->ssl_.get());
    if (::X509_VERIFY_PARAM_set1_ip_asc(verify, host.c_str()) != 1) {
      if (::SSL_set1_host(tls->ssl_.get(), host.c_str()) != 1) {
        return Status(Code::kInvalidArgument,
                      fmt::format("a certificate cannot be checked for the "
                                  "host {}",
                                  Quote(host)));
      }
      ::SSL_set_tlsext_host_name(tls->ssl_.get(), host.c_str());
    }
    ::SSL_set_mode(tls->ssl_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                        SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    ::SSL_set_fd(tls->ssl_.get(), tls->fd_.get());
    tls->SetStallTimeout(target.options.connect_timeout);
    HAULWAY_TRY(tls->Shake());
    tls->SetStallTimeout(target.options.stall_timeout);
    return std::unique_ptr<Stream>(std::move(tls));
  }

  Result<size_t> Read(std::span<std::byte> out) override {
    const WithoutSigpipe guard;  // Reading may also write.
    while (true) {
      if (deadline_.IsOver()) return deadline_.Failure();
      ::ERR_clear_error();
      size_t got = 0;
      const int ok = ::SSL_read_ex(ssl_.get(), out.data(), out.size(), &got);
      if (ok == 1) return got;
      HAULWAY_TRY(AwaitAfter(ok, "reading"));
    }
  }

  Status Write(std::span<const std::byte> first,
               std::span<const std::byte> second) override {
    HAULWAY_TRY(WriteAll(first));
    return WriteAll(second);
  }

  Status WriteFile(const FileBytes& from, uint64_t length) override {
    std::vector<std::byte> copy(std::min(length, kMostOfFile));
    for (uint64_t done = 0; done < length;) {
      const auto part =
          std::span(copy).first(std::min<uint64_t>(copy.size(), length - done));
      HAULWAY_TRY(ReadFully(from.fd, from.offset + done, part));
      HAULWAY_TRY(WriteAll(part));
      done += part.size();
    }
    return Status();
  }

 private:
  Status WriteAll(std::span<const std::byte> bytes) {
    const WithoutSigpipe guard;
    StartClock();
    while (!bytes.empty()) {
      ::ERR_clear_error();
      size_t sent = 0;
      const int ok =
          ::SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &sent);
      if (ok == 1) {
        bytes = bytes.subspan(sent);
      } else {
        HAULWAY_TRY(AwaitAfter(ok, "writing"));
      }
    }
    return Status();
  }

  Status Shake() {
    const WithoutSigpipe guard;
    while (true) {
      ::ERR_clear_error();
      const int ok = ::SSL_connect(ssl_.get());
      if (ok == 1) return Status();
      const long wrong = ::SSL_get_verify_result(ssl_.get());
      if (wrong != X509_V_OK) {
        return Status::FromErrno(
            EKEYREJECTED,
            fmt::format("the server's certificate does not verify: {}",
                        ::X509_verify_cert_error_string(wrong)));
      }
      HAULWAY_TRY(AwaitAfter(ok, "agreeing on TLS"));
    }
  }

  // Waits for what a call needs to proceed, or returns its failure.
  Status AwaitAfter(int result, std::string_view doing) {
    const int error = errno;
    // Counts the bytes of a record that is not whole yet, too.
    BIO* const bytes = ::SSL_get_rbio(ssl_.get());
    moved_ = ::BIO_number_read(bytes) + ::BIO_number_written(bytes);
    switch (::SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        return Await(fd_.get(), POLLIN, doing);
      case SSL_ERROR_WANT_WRITE:
        return Await(fd_.get(), POLLOUT, doing);
      case SSL_ERROR_ZERO_RETURN:
        return Closed();
      case SSL_ERROR_SYSCALL:
        return error == 0 ? Closed() : Lost(error);
      default: {
        const unsigned long failed = ::ERR_peek_last_error();
        const char* const reason = ::ERR_reason_error_string(failed);
        return Status(RefusesClient(ERR_GET_REASON(failed))
                          ? Code::kPermissionDenied
                          : Code::kUnavailable,
                      fmt::format("TLS failed while {}: {}", doing,
                                  reason == nullptr ? "no reason" : reason));
      }
    }
  }

  UniqueFd fd_;
  std::unique_ptr<SSL_CTX, FreeSsl> context_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
};

Result<UniqueFd> Connect(int family, const sockaddr* address, socklen_t length,
                         milliseconds timeout, const Deadline& deadline) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return Status::FromErrno(errno, "cannot make a socket");
  const auto failed = [](int error) {
    return Status(Code::kUnavailable,
                  fmt::format("cannot connect: {}", std::strerror(error)));
  };
  if (::connect(fd.get(), address, length) != 0) {
    if (errno != EINPROGRESS) return failed(errno);
    net::StallClock clock(timeout);
    clock.Begin(Clock::now());
    HAULWAY_TRY(
        AwaitSocket(fd.get(), POLLOUT, clock, 0, deadline, "connecting"));
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return failed(error);
  }
  return fd;
}

Result<UniqueFd> ConnectUnix(const Target& target, const Deadline& deadline) {
  const std::string& path = target.socket_path;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Status(Code::kInvalidArgument, "the path of the socket is too long");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return Connect(AF_UNIX, reinterpret_cast<const sockaddr*>(&address),
                 sizeof(address), target.options.connect_timeout, deadline);
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// A request to the system's resolver, which cannot be cancelled. If nothing
// waits for it any more, its thread ends by itself.
struct Lookup {
  std::string host, port;
  std::mutex mutex;
  std::condition_variable answered;
  bool is_done = false;
  int error = 0;
  Addresses found;

  void Run() {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    const int wrong = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
    const std::lock_guard lock(mutex);
    error = wrong;
    found.reset(list);
    is_done = true;
    answered.notify_one();
  }
};

Result<Addresses> AddressesOf(const Target& target, const Deadline& deadline) {
  const auto lookup = std::make_shared<Lookup>();
  lookup->host = target.host;
  lookup->port = std::to_string(target.port);
  try {
    std::thread([lookup] { lookup->Run(); }).detach();
  } catch (const std::system_error&) {
    // Without another thread, cancellation waits for the resolver.
    lookup->Run();
  }
  std::unique_lock lock(lookup->mutex);
  const auto late =
      std::chrono::steady_clock::now() + target.options.connect_timeout;
  while (!lookup->answered.wait_for(lock, kTick,
                                    [&] { return lookup->is_done; })) {
    if (deadline.IsCancelled()) {
      return Status(Code::kCancelled,
                    "it was cancelled while looking for the host");
    }
    if (deadline.IsOver()) return deadline.Failure();
    if (std::chrono::steady_clock::now() >= late) {
      return Status(Code::kTimeout,
                    fmt::format("no answer while looking for the host {}",
                                Quote(target.host)));
    }
  }
  if (lookup->error != 0) {
    return Status(Code::kUnavailable,
                  fmt::format("cannot find the host {}: {}", Quote(target.host),
                              ::gai_strerror(lookup->error)));
  }
  return std::move(lookup->found);
}

Result<UniqueFd> ConnectTcp(const Target& target, const Deadline& deadline) {
  HAULWAY_ASSIGN(const Addresses found, AddressesOf(target, deadline));
  Status last(Code::kUnavailable, "the host has no address");
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    auto fd = Connect(one->ai_family, one->ai_addr, one->ai_addrlen,
                      target.options.connect_timeout, deadline);
    if (!fd.ok()) {
      last = std::move(fd).status();
      if (last.code() == Code::kCancelled) break;
      continue;
    }
    const int on = 1;
    ::setsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    net::LimitUnsent(fd->get());
    return fd;
  }
  return last;
}

}  // namespace

Result<std::unique_ptr<Stream>> Stream::Open(const Target& target,
                                             const Deadline& deadline) {
  HAULWAY_ASSIGN(UniqueFd fd, target.socket_path.empty()
                                  ? ConnectTcp(target, deadline)
                                  : ConnectUnix(target, deadline));
  if (target.is_tls) return TlsSocket::Open(std::move(fd), target, deadline);
  auto stream = std::make_unique<Socket>(std::move(fd));
  stream->SetStallTimeout(target.options.stall_timeout);
  stream->SetDeadline(deadline);
  return std::unique_ptr<Stream>(std::move(stream));
}

}  // namespace haulway::redis
