#include "arithmetic/adapter_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/text.h"
#include "haulway/dtype.h"
#include "tensor/dtype_kind.h"
#include "tensor/strided.h"

namespace haulway::arithmetic {

namespace {

constexpr std::string_view kPrefix = "base_model.model.";

constexpr std::pair<std::string_view, AdapterModule::Part> kEndings[] = {
    {".lora_A.weight", AdapterModule::kA},
    {".lora_B.weight", AdapterModule::kB},
    {".lora_B.bias", AdapterModule::kBias},
    {".lora_embedding_A", AdapterModule::kEmbeddingA},
    {".lora_embedding_B", AdapterModule::kEmbeddingB},
    {".lora_magnitude_vector", AdapterModule::kMagnitude},
    {".lora_magnitude_vector.weight", AdapterModule::kMagnitude},
};

bool IsKohya(std::string_view key) {
  return key.starts_with("lora_unet_") || key.starts_with("lora_te") ||
         key.ends_with(".lora_down.weight") || key.ends_with(".lora_up.weight");
}

}  // namespace

void RemoveComponent(std::string_view part, std::string* name) {
  for (size_t at = name->find(part); at != name->npos; at = name->find(part)) {
    name->erase(at, part.size() - 1);
  }
}

bool IsInRows(const TensorInfo& info) {
  return info.kind == TensorKind::kDense && info.storage != kNoStorage &&
         IsContiguous(info.shape, info.strides) && !info.negative;
}

Result<AdapterKeys> AdapterKeys::Sort(
    std::shared_ptr<const FormatReader> reader) {
  AdapterKeys keys(std::move(reader));
  HAULWAY_TRY(keys.SortAll());
  return keys;
}

std::string_view AdapterKeys::KeyOf(uint32_t entry) const {
  std::string_view key = reader_->index().entries[entry].name;
  if (key.starts_with(kPrefix)) key.remove_prefix(kPrefix.size());
  return key;
}

AdapterTensor AdapterKeys::TensorOf(uint32_t entry) const {
  return {reader_, reader_->index().entries[entry].tensor};
}

Status AdapterKeys::Wrong(uint32_t entry, std::string_view what,
                          Code code) const {
  return Status(code, what).In(Quote(KeyOf(entry)));
}

Status AdapterKeys::SortAll() {
  const auto& entries = reader_->index().entries;
  if (entries.empty()) return Status(Code::kMismatch, "it has no tensor");
  for (uint32_t i = 0; i < entries.size(); ++i) {
    std::string_view key = KeyOf(i);
    if (IsKohya(key)) {
      return Wrong(i,
                   "it is a key of kohya's scripts, in which the dots of the "
                   "module's path are lost: convert the adapter to that of "
                   "peft",
                   Code::kUnsupported);
    }
    HAULWAY_TRY(CheckStored(i));
    const auto ending = std::ranges::find_if(
        kEndings, [&](const auto& one) { return key.ends_with(one.first); });
    if (ending != std::end(kEndings)) {
      key.remove_suffix(ending->first.size());
      AdapterModule& module =
          modules_.try_emplace(std::string(key), key).first->second;
      if (module.has(ending->second)) {
        return Wrong(i, "it is there under two names");
      }
      module.parts[ending->second] = i;
      continue;
    }
    if (key.find(".lora_") != key.npos ||
        key.find("trainable_tokens") != key.npos) {
      return Wrong(i, "it is no key of a LoRA adapter that can be merged",
                   Code::kUnsupported);
    }
    std::string name(key);
    RemoveComponent(".modules_to_save.", &name);
    if (!whole_.try_emplace(std::move(name), i).second) {
      return Wrong(i, "it is there under two names");
    }
  }
  return Status();
}

// Fails unless a tensor of the adapter has numbers, in rows.
Status AdapterKeys::CheckStored(uint32_t entry) const {
  const TensorInfo info = TensorOf(entry).info();
  if (IsFloating(info.dtype) && CanCast(info.dtype, DType::kF32) &&
      ItemBytes(info.dtype) > 1 && IsInRows(info)) {
    return Status();
  }
  return Wrong(entry,
               fmt::format("a tensor of dtype {} cannot be merged: expected "
                           "F32, F16 or BF16, stored in rows",
                           Name(info.dtype)),
               Code::kUnsupported);
}

}  // namespace haulway::arithmetic
