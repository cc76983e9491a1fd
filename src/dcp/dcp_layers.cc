#include "dcp/dcp_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "dcp/dcp_metadata.h"

namespace haulway::dcp {

namespace {

constexpr std::string_view kLayers = ".layers.";

// Returns where Y begins in X.layers.Y; npos for another name, or if Y begins
// with a number.
size_t AfterLayers(std::string_view name) {
  const size_t at = name.find(kLayers);
  if (at == name.npos) return at;
  const size_t after = at + kLayers.size();
  const size_t digits = name.find_first_not_of("0123456789", after);
  const bool has_number =
      digits != after && (digits == name.npos || name[digits] == '.');
  return has_number ? name.npos : after;
}

class Splitter {
 public:
  Splitter(const Metadata& whole, TreeArena* arena)
      : whole_(whole), arena_(*arena) {}

  Status Run() {
    for (const StoredEntry& entry : whole_.entries) {
      if (!entry.is_tensor) {
        entries_.push_back(entry);
        continue;
      }
      const StoredTensor& tensor = whole_.tensors[entry.row];
      const size_t after = AfterLayers(tensor.name);
      Status status = after == tensor.name.npos || tensor.shape.empty()
                          ? Keep(tensor, entry)
                          : Split(tensor, after);
      if (!status.ok()) return std::move(status).In(Quote(tensor.name));
    }
    return Status();
  }

  std::vector<bool> MoveTo(Metadata* metadata) {
    metadata->entries = std::move(entries_);
    metadata->tensors = std::move(tensors_);
    metadata->chunks = std::move(chunks_);
    return std::move(is_layer_);
  }

 private:
  void Add(StoredTensor tensor, const StoredEntry& entry, bool is_layer) {
    StoredEntry added = entry;
    added.row = static_cast<uint32_t>(tensors_.size());
    entries_.push_back(added);
    tensors_.push_back(tensor);
    is_layer_.push_back(is_layer);
  }

  Status Keep(StoredTensor tensor, const StoredEntry& entry) {
    const auto chunks = whole_.ChunksOf(tensor);
    tensor.first_chunk = static_cast<uint32_t>(chunks_.size());
    chunks_.insert(chunks_.end(), chunks.begin(), chunks.end());
    Add(tensor, entry, false);
    return Status();
  }

  Status Split(const StoredTensor& tensor, size_t after) {
    // Every layer has a chunk, because the chunks tile the tensor.
    const auto count = static_cast<uint64_t>(tensor.shape[0]);
    if (count > tensor.chunk_count) {
      return Status(Code::kUnsupported,
                    "a chunk holds several layers, or a layer has none: "
                    "expected a chunk or more for each");
    }
    std::vector<std::vector<Chunk>> chunks(count);
    for (const Chunk& chunk : whole_.ChunksOf(tensor)) {
      if (chunk.sizes[0] == 0) continue;
      if (chunk.sizes[0] != 1) {
        return Status(Code::kUnsupported,
                      fmt::format("{} holds several layers: expected one",
                                  PlaceOf(chunk)));
      }
      chunks[static_cast<size_t>(chunk.offsets[0])].push_back(
          {Numbers(chunk.offsets, 0), chunk.sizes, chunk.item});
    }
    const std::string_view name = tensor.name;
    for (uint64_t i = 0; i < count; ++i) {
      StoredTensor layer = tensor;
      layer.name = arena_.Copy(
          fmt::format("{}{}.{}", name.substr(0, after), i, name.substr(after)));
      layer.shape = Numbers(tensor.shape, 1);
      layer.strides.reset();
      layer.nbytes = tensor.nbytes / count;
      layer.first_chunk = static_cast<uint32_t>(chunks_.size());
      layer.chunk_count = static_cast<uint32_t>(chunks[i].size());
      chunks_.insert(chunks_.end(), chunks[i].begin(), chunks[i].end());
      Add(layer, {true, 0, {}}, true);
    }
    return Status();
  }

  // Copies numbers, the first of which becomes `first`.
  std::span<const int64_t> Numbers(std::span<const int64_t> numbers,
                                   int64_t first) {
    auto* const kept = static_cast<int64_t*>(
        arena_.Allocate(numbers.size() * sizeof(int64_t)));
    std::ranges::copy(numbers, kept);
    kept[0] = first;
    return {kept, numbers.size()};
  }

  const Metadata& whole_;
  TreeArena& arena_;
  LongVector<StoredEntry> entries_;
  LongVector<StoredTensor> tensors_;
  LongVector<Chunk> chunks_;
  std::vector<bool> is_layer_;
};

}  // namespace

Result<std::vector<bool>> SplitLayers(Metadata* metadata, TreeArena* arena) {
  Splitter splitter(*metadata, arena);
  HAULWAY_TRY(splitter.Run());
  return splitter.MoveTo(metadata);
}

}  // namespace haulway::dcp
