#include "haulway/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "base/name_index.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/format_registry.h"
#include "checkpoint/sharded_reader.h"
#include "checkpoint/version_chain.h"
#include "checkpoint/whole_model.h"
#include "decode/stored_tensor.h"
#include "haulway/open.h"
#include "tensor/scaled_tensors.h"

namespace haulway {

namespace {
// Returns whether the same call may succeed later.
bool MayPass(const Result<std::shared_ptr<const Checkpoint>>& opened) {
  const Code code = opened.status().code();
  return code == Code::kUnavailable || code == Code::kTimeout;
}

struct NameOf {
  const LongVector<Entry>& entries;
  std::string_view operator()(uint32_t i) const { return entries[i].name; }
};
}  // namespace

// The index of names is built when a name is first looked up, because code that
// lists or loads all tensors does not need it.
struct Checkpoint::State {
  const ScaledTensors& Scaled(const CheckpointIndex& index) {
    std::call_once(scaled_found, [&] { scaled.emplace(index); });
    return *scaled;
  }

  std::once_flag filled;
  bool has_index = false;  // False if there was no memory for it.
  NameIndex names;
  std::once_flag scaled_found;
  std::optional<ScaledTensors> scaled;
  RemoteStats opening;
  std::once_flag opening_taken;
};

Checkpoint::Checkpoint(std::unique_ptr<const FormatReader> reader)
    : reader_(std::move(reader)) {
  state_ = std::make_unique<State>();
}

Checkpoint::~Checkpoint() = default;

Result<std::shared_ptr<const Checkpoint>> Checkpoint::Open(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options,
    int retries, const std::function<bool(std::string_view)>& wanted) {
  if (source == nullptr) {
    return Status(Code::kInvalidArgument, "source is null");
  }
  const std::string name(source->name());
  const auto open = [&]() -> Result<std::shared_ptr<const Checkpoint>> {
    HAULWAY_ASSIGN(Detected found, DetectWhole(source, options));
    auto& reader = found.reader;
    if (reader == nullptr) {
      HAULWAY_ASSIGN(reader, wanted != nullptr && IsOfShards(*found.format)
                                 ? OpenShardsWith(found.source, options, wanted)
                                 : found.format->open(found.source, options));
    }
    // Formats that can be encrypted report themselves why the key does not
    // match, as do checkpoints in several files.
    const FormatEntry& entry = EntryOf(reader->index().format);
    if (!options.key.empty() && !entry.can.encrypt &&
        !IsOfShards(*found.format)) {
      return Status(Code::kAuth,
                    fmt::format("a key was given, but {} files are never "
                                "encrypted",
                                entry.name));
    }
    if (!options.alone) HAULWAY_TRY(RefuseDeltaShard(*reader));
    const auto made = std::make_shared<Checkpoint>(std::move(reader));
    const auto asked = found.source->remote_stats();
    if (asked.has_value()) made->state_->opening = *asked;
    return std::shared_ptr<const Checkpoint>(made);
  };
  auto checkpoint = OrNoMemory(open);
  if (MayPass(checkpoint) && !source->Look({}).is_server()) {
    for (int left = retries; MayPass(checkpoint) && left > 0; --left) {
      checkpoint = OrNoMemory(open);
    }
  }
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
  std::call_once(state_->filled, [&] {
    try {
      state_->names.Reserve(all.size());
    } catch (const std::bad_alloc&) {
      return;
    }
    for (uint32_t i = 0; i < all.size(); ++i) {
      state_->names.Add(all[i].name, i, NameOf{all});
    }
    state_->has_index = true;
  });
  if (!state_->has_index) {
    const auto found = std::ranges::find(all, name, &Entry::name);
    return found == all.end() ? nullptr : &index().tensors[found->tensor];
  }
  const uint32_t row = state_->names.Find(name, NameOf{all});
  if (row == NameIndex::kNone) return nullptr;
  return &index().tensors[all[row].tensor];
}

Status Checkpoint::CheckCast(uint32_t tensor) const {
  return OrNoMemory([&] { return state_->Scaled(index()).CheckCast(tensor); });
}

Status Checkpoint::CheckCastOfStorage(uint32_t storage) const {
  return OrNoMemory(
      [&] { return state_->Scaled(index()).CheckCastOfStorage(storage); });
}

RemoteStats Checkpoint::TakeOpeningStats() const {
  RemoteStats taken;
  std::call_once(state_->opening_taken, [&] { taken = state_->opening; });
  return taken;
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
