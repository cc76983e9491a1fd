// What a redis:// name means: a server, a database, and what to find there.
//
//   redis://[USER:PASSWORD@]HOST[:PORT]/[DB/]PREFIX    over TCP
//   rediss://...                                       the same over TLS
//   redis+unix:///PATH?db=N&prefix=PREFIX              over a Unix socket
//   ...?key=NAME instead of a prefix                   one plain value
//
// Without a host, server and credentials are those of the variable REDIS_URL.

#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "haulway/status.h"

namespace haulway::redis {

// What RemoteOptions say of connections; the names are theirs.
struct ConnectOptions {
  // For each step of connecting, and for a server that says nothing.
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::milliseconds stall_timeout{30'000};
  // For opening, and for all of one read, retries included; 0: none.
  std::chrono::milliseconds deadline{0};
  // Options of TLS.
  std::string ca_file, ca_dir;
  std::string client_certificate, client_key;
  bool insecure = false;
};

struct Target {
  std::string host;  // Empty: a Unix socket.
  uint16_t port = 6379;
  std::string socket_path;
  bool is_tls = false;
  std::string user, password;  // Never for messages.
  uint32_t database = 0;
  std::string prefix;  // For a Tensorizer file.
  std::string key;     // For one value, if there is no prefix.
  // For messages: without credentials.
  std::string name;
  ConnectOptions options;
};

// `environment` is the value of REDIS_URL, or empty. Fails with
// kInvalidArgument; the message holds no credential.
Result<Target> ParseTarget(std::string_view uri, std::string_view environment);

}  // namespace haulway::redis
