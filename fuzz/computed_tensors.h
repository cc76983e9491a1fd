// A file with config.json beside it, and the reads of tensors that are
// computed.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::fuzzing {

inline constexpr uint64_t kMostRead = 1 << 20;

class Beside : public ByteSource {
 public:
  Beside(std::span<const std::byte> file, std::span<const std::byte> config)
      : file_(MakeMemorySource(file)), config_(config) {}

  std::string_view name() const override { return file_->name(); }
  uint64_t size() const override { return file_->size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    return file_->ReadAt(offset, out);
  }
  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override {
    if (name == "config.json") return MakeMemorySource(config_);
    return Status(Code::kNotFound, "no such file");
  }

 private:
  const std::shared_ptr<const ByteSource> file_;
  const std::span<const std::byte> config_;
};

// Reads the storages, and aborts if a part is not that of the whole.
inline void ReadAll(const FormatReader& reader) {
  for (const StorageInfo& storage : reader.index().storages) {
    if (storage.nbytes > kMostRead) continue;
    std::vector<std::byte> whole(storage.nbytes);
    const ByteSource& source = *reader.source();
    if (!source.ReadAt(storage.offset, whole).ok()) continue;
    const uint64_t middle = whole.size() / 2;
    std::vector<std::byte> part(whole.size() - middle);
    if (!source.ReadAt(storage.offset + middle, part).ok()) abort();
    if (!std::equal(part.begin(), part.end(),
                    whole.begin() + static_cast<ptrdiff_t>(middle))) {
      abort();
    }
  }
}

}  // namespace haulway::fuzzing
