// An HTTP server on the loopback that answers as a test says, wrongly too.

#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace haulway::test {

// One connection as a handler sees it.
class ServedRequest {
 public:
  ServedRequest(int fd, std::string head, int number, const bool* stop)
      : fd_(fd), head_(std::move(head)), number_(number), stop_(stop) {}

  // The request line and headers, as they came.
  const std::string& head() const { return head_; }
  // "/path?query".
  std::string target() const;
  // The value of a header, by its name in any case; empty if it is not there.
  std::string Header(std::string_view name) const;
  // The body, of which Content-Length says the length.
  std::string ReadBody();
  // Counted from 0 over all connections of the server.
  int number() const { return number_; }

  void Send(std::string_view bytes);
  // The part of `object` that is asked for, as a server answers that.
  void SendRange(std::string_view object, std::string_view headers = "");
  // Ends the connection, with a reset or as is proper.
  void Reset();
  void Close();
  // Sends nothing until the server is stopped or the client gone.
  void Stall();
  bool closed() const { return fd_ < 0; }

 private:
  int fd_;
  std::string head_;
  int number_;
  const bool* stop_;
};

class ScriptedServer {
 public:
  using Handler = std::function<void(ServedRequest& request)>;

  explicit ScriptedServer(Handler handler);
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;
  ~ScriptedServer();

  int port() const { return port_; }
  std::string Url(std::string_view path = "/object") const;
  // What was asked so far, each with its head.
  std::vector<std::string> requests() const;

 private:
  void Accept();
  void Serve(int fd);

  const Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  bool stop_ = false;
  std::atomic<int> count_{0};
  mutable std::mutex mutex_;
  std::vector<std::string> requests_;
  std::vector<int> open_;
  std::vector<std::thread> threads_;
  std::thread accepting_;
};

}  // namespace haulway::test
