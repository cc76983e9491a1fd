#include "testing/scripted_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace haulway::test {

std::string ServedRequest::target() const {
  const size_t start = head_.find(' ') + 1;
  return head_.substr(start, head_.find(' ', start) - start);
}

std::string ServedRequest::Header(std::string_view name) const {
  size_t at = head_.find("\r\n");
  while (at != head_.npos && at + 2 < head_.size()) {
    at += 2;
    const size_t end = head_.find("\r\n", at);
    const std::string_view line =
        std::string_view(head_).substr(at, end == head_.npos ? end : end - at);
    if (line.size() > name.size() && line[name.size()] == ':' &&
        ::strncasecmp(line.data(), name.data(), name.size()) == 0) {
      const size_t value = line.find_first_not_of(" \t", name.size() + 1);
      return value == line.npos ? "" : std::string(line.substr(value));
    }
    at = end;
  }
  return {};
}

std::string ServedRequest::ReadBody() {
  const size_t length =
      std::strtoull(Header("content-length").c_str(), nullptr, 10);
  std::string body(length, '\0');
  size_t have = 0;
  while (have < length) {
    const ssize_t got = ::recv(fd_, body.data() + have, length - have, 0);
    if (got <= 0) break;
    have += static_cast<size_t>(got);
  }
  body.resize(have);
  return body;
}

void ServedRequest::Send(std::string_view bytes) {
  while (!bytes.empty() && fd_ >= 0) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return Close();
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

void ServedRequest::SendRange(std::string_view object,
                              std::string_view headers) {
  const std::string range = Header("range");
  unsigned long long first = 0;
  unsigned long long last = 0;
  if (std::sscanf(range.c_str(), "bytes=%llu-%llu", &first, &last) != 2) {
    Send(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{}\r\n{}",
                     object.size(), headers, object));
    return;
  }
  if (first >= object.size()) {
    Send(
        fmt::format("HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: "
                    "bytes */{}\r\nContent-Length: 0\r\n\r\n",
                    object.size()));
    return;
  }
  last = std::min<unsigned long long>(last, object.size() - 1);
  Send(
      fmt::format("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes "
                  "{}-{}/{}\r\nContent-Length: {}\r\n{}\r\n{}",
                  first, last, object.size(), last - first + 1, headers,
                  object.substr(first, last - first + 1)));
}

void ServedRequest::Reset() {
  if (fd_ < 0) return;
  const linger now{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

void ServedRequest::Close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void ServedRequest::Stall() {
  while (fd_ >= 0 && !__atomic_load_n(stop_, __ATOMIC_SEQ_CST)) {
    pollfd one{.fd = fd_, .events = POLLIN, .revents = 0};
    char byte = 0;
    if (::poll(&one, 1, 20) > 0 && ::recv(fd_, &byte, 1, 0) <= 0) Close();
  }
}

ScriptedServer::ScriptedServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_, any, length) != 0 || ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, any, &length) != 0) {
    std::abort();
  }
  port_ = ntohs(address.sin_port);
  accepting_ = std::thread([this] { Accept(); });
}

ScriptedServer::~ScriptedServer() {
  __atomic_store_n(&stop_, true, __ATOMIC_SEQ_CST);
  accepting_.join();
  for (std::thread& thread : threads_) thread.join();
  ::close(listener_);
}

std::string ScriptedServer::Url(std::string_view path) const {
  return fmt::format("http://127.0.0.1:{}{}", port_, path);
}

std::vector<std::string> ScriptedServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void ScriptedServer::Accept() {
  while (!__atomic_load_n(&stop_, __ATOMIC_SEQ_CST)) {
    pollfd one{.fd = listener_, .events = POLLIN, .revents = 0};
    if (::poll(&one, 1, 20) <= 0) continue;
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) threads_.emplace_back([this, fd] { Serve(fd); });
  }
}

void ScriptedServer::Serve(int fd) {
  while (true) {
    std::string head;
    while (head.find("\r\n\r\n") == head.npos) {
      if (__atomic_load_n(&stop_, __ATOMIC_SEQ_CST)) {
        ::close(fd);
        return;
      }
      pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
      if (::poll(&one, 1, 20) <= 0) continue;
      char byte = 0;
      if (::recv(fd, &byte, 1, 0) <= 0) {
        ::close(fd);
        return;
      }
      head += byte;
    }
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(head);
    }
    ServedRequest request(fd, head, count_.fetch_add(1), &stop_);
    handler_(request);
    if (request.closed()) return;
  }
}

}  // namespace haulway::test
