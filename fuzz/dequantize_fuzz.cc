// Property: dequantizing any safetensors file, with any config.json beside it,
// results in weights that can be read, each range as part of the whole, or in a
// typed error. The input is the length of config.json as two bytes,
// config.json, and the file.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arithmetic/dequantize.h"
#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "safetensors/safetensors_reader.h"

namespace {

using haulway::ByteSource;
using haulway::StorageInfo;

constexpr uint64_t kMostRead = 1 << 20;

// A file with config.json beside it.
class Beside : public ByteSource {
 public:
  Beside(std::span<const std::byte> file, std::span<const std::byte> config)
      : file_(haulway::MakeMemorySource(file)), config_(config) {}

  std::string_view name() const override { return file_->name(); }
  uint64_t size() const override { return file_->size(); }
  haulway::Status ReadAt(uint64_t offset,
                         std::span<std::byte> out) const override {
    return file_->ReadAt(offset, out);
  }
  haulway::Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override {
    if (name == "config.json") return haulway::MakeMemorySource(config_);
    return haulway::Status(haulway::Code::kNotFound, "no such file");
  }

 private:
  const std::shared_ptr<const ByteSource> file_;
  const std::span<const std::byte> config_;
};

// Returns whether the storage could be read.
bool ReadParts(const ByteSource& source, const StorageInfo& storage) {
  std::vector<std::byte> whole(storage.nbytes);
  if (!source.ReadAt(storage.offset, whole).ok()) return false;
  const uint64_t middle = whole.size() / 2;
  std::vector<std::byte> part(whole.size() - middle);
  if (!source.ReadAt(storage.offset + middle, part).ok()) abort();
  if (!std::equal(part.begin(), part.end(),
                  whole.begin() + static_cast<ptrdiff_t>(middle))) {
    abort();
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (size < 2) return 0;
  const size_t length = std::min<size_t>(data[0] | data[1] << 8, size - 2);
  const auto source = std::make_shared<const Beside>(bytes.subspan(2 + length),
                                                     bytes.subspan(2, length));
  auto reader = haulway::safetensors::OpenSafetensors(source, {});
  if (!reader.ok()) return 0;
  const auto plain = haulway::arithmetic::Dequantize(*std::move(reader),
                                                     *source, std::nullopt);
  if (!plain.ok()) return 0;
  const auto& index = plain->reader->index();
  for (const StorageInfo& storage : index.storages) {
    if (storage.nbytes > kMostRead) continue;
    (void)ReadParts(*plain->reader->source(), storage);
  }
  return 0;
}
