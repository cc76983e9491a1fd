// Parses redis:// names: a server, a database, and a key or prefix.
//
//   redis://[USER:PASSWORD@]HOST[:PORT]/[DB/]PREFIX    over TCP
//   rediss://...                                       the same over TLS
//   redis+unix:///PATH?db=N&prefix=PREFIX              over a Unix socket
//   ...?key=NAME instead of a prefix                   one plain value
//
// Without a host, server and credentials are taken from the variable REDIS_URL.

#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "haulway/status.h"

namespace haulway::redis {

// The connection settings of RemoteOptions, under the same names.
struct ConnectOptions {
  // Timeouts for each step of connecting, and for a server that sends nothing.
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::milliseconds stall_timeout{30'000};
  // Time for opening and for each read, including retries; 0: no limit.
  std::chrono::milliseconds deadline{0};
  // TLS options.
  std::string ca_file, ca_dir;
  std::string client_certificate, client_key;
  bool insecure = false;
};

struct Target {
  std::string host;  // Empty for a Unix socket.
  uint16_t port = 6379;
  std::string socket_path;
  bool is_tls = false;
  std::string user, password;  // Never shown in messages.
  uint32_t database = 0;
  std::string prefix;  // For a Tensorizer file.
  std::string key;     // For a plain value; then there is no prefix.
  // For messages; without credentials.
  std::string name;
  ConnectOptions options;
};

// Parses `uri`. `environment`: the value of REDIS_URL, or empty. Fails with
// kInvalidArgument; the message contains no credential.
Result<Target> ParseTarget(std::string_view uri, std::string_view environment);

}  // namespace haulway::redis
