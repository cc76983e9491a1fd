// An HTTP server on the loopback that answers as a test specifies, also
// wrongly.

#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace haulway::test {

// A request, as a handler sees it.
class ServedRequest {
 public:
  ServedRequest(int fd, std::string head, int number, const bool* stop)
      : fd_(fd), head_(std::move(head)), number_(number), stop_(stop) {}

  // Returns the request line and headers, unchanged.
  const std::string& head() const { return head_; }
  // Returns "/path?query".
  std::string target() const;
  // Returns the value of a header, ignoring case in its name; empty if it is
  // missing.
  std::string Header(std::string_view name) const;
  // Reads the body, whose length is Content-Length.
  std::string ReadBody();
  // Returns the number of the request, counted from 0 over all connections of
  // the server.
  int number() const { return number_; }

  void Send(std::string_view bytes);
  // Sends the requested part of `object`, as a server would.
  void SendRange(std::string_view object, std::string_view headers = "");
  // End the connection: with a TCP reset, or properly.
  void Reset();
  void Close();
  // Sends nothing until the server is stopped or the client disconnects.
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
  // Returns the heads of all requests so far.
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
