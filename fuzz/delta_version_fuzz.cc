// Property: any bytes as the index of a version of weights result in a model,
// each of whose tensors can be read or is refused, or in a typed error. The
// version's files are always the same, and so is its base.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/source.h"
#include "haulway/verify.h"

namespace {

using haulway::Result;
using haulway::Status;

using SourcePtr = std::shared_ptr<const haulway::ByteSource>;

// Returns a safetensors file with this header and these bytes.
SourcePtr File(std::string_view header, std::string_view bytes,
               std::string name) {
  const uint64_t length = header.size();
  auto* file = new std::string(sizeof(length), '\0');
  std::memcpy(file->data(), &length, sizeof(length));
  file->append(header).append(bytes);
  const std::shared_ptr<std::string> owner(file);
  const auto memory = std::as_writable_bytes(std::span(*owner));
  return haulway::MakeBufferSource(haulway::Buffer(owner, memory, false),
                                   std::move(name));
}

// Returns a full checkpoint of two tensors of four bytes.
SourcePtr Base() {
  return File(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
              R"("b":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})",
              std::string(8, '\1'), "base.safetensors");
}

// Returns a shard with a change of "b": a frame of four raw bytes.
SourcePtr Shard(std::string_view name) {
  constexpr std::string_view kFrame(
      "\x28\xB5\x2F\xFD\x20\x04\x21\x00\x00\x01\x02\x03\x04", 13);
  return File(R"({"__metadata__":{"b":"0016000b"},)"
              R"("b":{"dtype":"U8","shape":[13],"data_offsets":[0,13]}})",
              kFrame, std::string(name));
}

class Folder : public haulway::ByteSource {
 public:
  explicit Folder(std::span<const std::byte> index)
      : index_(
            haulway::MakeMemorySource(index, "model.safetensors.index.json")) {}
  std::string_view name() const override { return index_->name(); }
  uint64_t size() const override { return index_->size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    return index_->ReadAt(offset, out);
  }
  Result<SourcePtr> OpenNeighbour(std::string_view name) const override {
    return Shard(name);
  }
  Result<SourcePtr> OpenBase(std::string_view,
                             std::string_view) const override {
    return Base();
  }

 private:
  const SourcePtr index_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto folder =
      std::make_shared<const Folder>(std::as_bytes(std::span(data, size)));
  const auto opened = haulway::Checkpoint::Open(folder);
  const auto report = haulway::Verify(folder, {.threads = 1});
  if (!opened.ok()) {
    if (report.ok() && report->ok) abort();
    return 0;
  }
  bool is_whole = true;
  for (const haulway::TensorInfo& tensor : (*opened)->index().tensors) {
    std::vector<std::byte> bytes(tensor.nbytes);
    is_whole &= (*opened)->Read(tensor, bytes).ok();
  }
  if (report.ok() && report->ok != is_whole) abort();
  return 0;
}
