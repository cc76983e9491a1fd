#include "haulway/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "base/name_index.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/format_registry.h"
#include "decode/stored_tensor.h"
#include "haulway/open.h"

namespace haulway {

namespace {
struct NameOf {
  const LongVector<Entry>& entries;
  std::string_view operator()(uint32_t i) const { return entries[i].name; }
};
}  // namespace

// Filled when a name is first looked up: whoever lists or loads all tensors
// needs no names.
struct Checkpoint::Names {
  std::once_flag filled;
  bool has_index = false;  // No, if there was no memory for it.
  NameIndex index;
};

Checkpoint::Checkpoint(std::unique_ptr<const FormatReader> reader)
    : reader_(std::move(reader)) {
  names_ = std::make_unique<Names>();
}

Checkpoint::~Checkpoint() = default;

Result<std::shared_ptr<const Checkpoint>> Checkpoint::Open(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  if (source == nullptr) {
    return Status(Code::kInvalidArgument, "source is null");
  }
  const std::string name(source->name());
  const auto open = [&]() -> Result<std::shared_ptr<const Checkpoint>> {
    HAULWAY_ASSIGN(const FormatEntry* format,
                   DetectFormat(*source, options.strictness));
    HAULWAY_ASSIGN(auto reader, format->open(std::move(source), options));
    // Formats that can be encrypted say themselves why a key is not theirs, as
    // several files do.
    const FormatEntry& entry = EntryOf(reader->index().format);
    if (!options.key.empty() && !entry.can.encrypt && !IsOfShards(*format)) {
      return Status(Code::kAuth,
                    fmt::format("a key was given, but {} files are never "
                                "encrypted",
                                entry.name));
    }
    return std::make_shared<const Checkpoint>(std::move(reader));
  };
  auto checkpoint = OrNoMemory(open);
  if (!checkpoint.ok()) return std::move(checkpoint).status().Of(name);
  return checkpoint;
}

Result<std::shared_ptr<const Checkpoint>> Checkpoint::Open(
    std::string_view uri, const OpenOptions& options) {
  HAULWAY_ASSIGN(auto source, OpenSource(uri));
  return Open(std::move(source), options);
}

const TensorInfo* Checkpoint::Find(std::string_view name) const {
  const LongVector<Entry>& all = entries();
  std::call_once(names_->filled, [&] {
    try {
      names_->index.Reserve(all.size());
    } catch (const std::bad_alloc&) {
      return;
    }
    for (uint32_t i = 0; i < all.size(); ++i) {
      names_->index.Add(all[i].name, i, NameOf{all});
    }
    names_->has_index = true;
  });
  if (!names_->has_index) {
    const auto found = std::ranges::find(all, name, &Entry::name);
    return found == all.end() ? nullptr : &index().tensors[found->tensor];
  }
  const uint32_t row = names_->index.Find(name, NameOf{all});
  if (row == NameIndex::kNone) return nullptr;
  return &index().tensors[all[row].tensor];
}

Result<Buffer> Checkpoint::ReadStorage(uint32_t row) const {
  return haulway::ReadStorage(*reader_, row);
}

Status Checkpoint::Read(const TensorInfo& tensor,
                        std::span<std::byte> out) const {
  return ReadTensor(*reader_, tensor, out);
}

Status Checkpoint::ReadStorageRange(uint32_t row, uint64_t offset,
                                    std::span<std::byte> out) const {
  return haulway::ReadStorageRange(*reader_, row, offset, out);
}

}  // namespace haulway
