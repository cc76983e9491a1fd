// Property: any bytes parsed as the index of a sharded model result in a map of
// names to files or in a typed error. Input that strict reading accepts is
// accepted by lenient reading with the same result. If the model is opened,
// with a small safetensors file for every shard, each tensor lies within the
// existing bytes.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/sharded_index.h"
#include "checkpoint/sharded_reader.h"
#include "haulway/checkpoint.h"
#include "haulway/source.h"

namespace {

using haulway::MappedTensor;
using haulway::ParseShardedIndex;
using haulway::Result;
using haulway::ShardedIndex;
using haulway::Status;
using haulway::Strictness;

using SourcePtr = std::shared_ptr<const haulway::ByteSource>;

// Returns a file with two tensors, "a" and "b", of four bytes each.
SourcePtr Shard(std::string_view name) {
  static const std::string* const file = [] {
    const std::string_view header =
        R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
        R"("b":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})";
    const uint64_t length = header.size();
    auto* made = new std::string(sizeof(length), '\0');
    std::memcpy(made->data(), &length, sizeof(length));
    made->append(header).append(8, '\1');
    return made;
  }();
  return haulway::MakeMemorySource(std::as_bytes(std::span(*file)),
                                   std::string(name));
}

class Folder : public haulway::ByteSource {
 public:
  explicit Folder(std::span<const std::byte> index)
      : index_(haulway::MakeMemorySource(index, "index")) {}
  std::string_view name() const override { return index_->name(); }
  uint64_t size() const override { return index_->size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    return index_->ReadAt(offset, out);
  }
  Result<SourcePtr> OpenNeighbour(std::string_view name) const override {
    return Shard(name);
  }

 private:
  const SourcePtr index_;
};

std::span<const MappedTensor> MapOf(const ShardedIndex& index) {
  if (!index.weight_map.has_value()) return {};
  return *index.weight_map;
}

bool Same(const ShardedIndex& a, const ShardedIndex& b) {
  return a.files == b.files && a.total_size == b.total_size &&
         a.weight_map.has_value() == b.weight_map.has_value() &&
         std::ranges::equal(MapOf(a), MapOf(b),
                            [](const MappedTensor& x, const MappedTensor& y) {
                              return x.name == y.name && x.file == y.file;
                            });
}

void OpenModel(std::span<const std::byte> bytes, Strictness strictness) {
  haulway::OpenOptions options;
  options.strictness = strictness;
  const auto source = std::make_shared<const Folder>(bytes);
  const auto opened = haulway::OpenSharded(source, options);
  if (!opened.ok()) return;
  const uint64_t size = (*opened)->source()->size();
  for (const haulway::StorageInfo& storage : (*opened)->index().storages) {
    if (storage.frame_end > size || storage.offset > storage.frame_end ||
        storage.stored_bytes > storage.frame_end - storage.offset) {
      abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const haulway::ParseLimits limits;
  const auto strict = ParseShardedIndex(bytes, Strictness::kStrict, limits);
  const auto lenient = ParseShardedIndex(bytes, Strictness::kLenient, limits);
  if (strict.ok() && (!lenient.ok() || !Same(*strict, *lenient))) abort();
  for (const auto* index : {&strict, &lenient}) {
    if (!index->ok()) continue;
    for (const auto& tensor : MapOf(**index)) {
      if (tensor.file >= (*index)->files.size()) abort();
    }
  }
  if (!lenient.ok()) return 0;
  OpenModel(bytes, Strictness::kStrict);
  OpenModel(bytes, Strictness::kLenient);
  return 0;
}
