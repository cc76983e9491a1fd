// The whole numbers of a model's config.json, and of a GGUF file's metadata.

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "arithmetic/json_fields.h"
#include "haulway/index.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

// A ConfigNumbers reads config.json when the first number is asked for.
//
// Threads: one at a time.
class ConfigNumbers {
 public:
  // Both must outlive it. `beside`: as for Dequantize().
  ConfigNumbers(const CheckpointIndex& index, const ByteSource& beside)
      : index_(index), beside_(beside) {}

  // Returns the number with this name: a key of the metadata, of config.json,
  // or of its `text_config`; or a path of keys, joined by dots. Fails with
  // kMismatch if there is none, and as JsonObject and reading do.
  Result<int64_t> Find(std::string_view name);

 private:
  std::optional<int64_t> FindInMetadata(std::string_view name) const;

  const CheckpointIndex& index_;
  const ByteSource& beside_;
  JsonObject json_;
  std::optional<simdjson::dom::object> config_;
};

}  // namespace haulway::arithmetic
