#include "write_stats.h"

#include <fmt/format.h>

#include <string>

namespace haulway::cli {

void AddStats(const WriteStats& stats, Json* json) {
  const auto seconds = [&](const char* key, double value) {
    json->Key(key).Raw(fmt::format("{:.6f}", value));
  };
  json->Key("bytes").Number(stats.bytes);
  json->Key("tensor_bytes").Number(stats.tensor_bytes);
  json->Key("written_bytes").Number(stats.written_bytes);
  json->Key("requests").Number(stats.requests);
  json->Key("threads").Raw(std::to_string(stats.threads));
  seconds("seconds", stats.seconds);
  seconds("allocate_seconds", stats.allocate_seconds);
  seconds("digest_seconds", stats.digest_seconds);
  seconds("encode_seconds", stats.encode_seconds);
  seconds("write_seconds", stats.write_seconds);
  seconds("commit_seconds", stats.commit_seconds);
  json->Key("direct").Raw(stats.direct ? "true" : "false");
}

}  // namespace haulway::cli
