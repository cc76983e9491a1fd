// The tensors of a LoRA adapter, sorted by the module of the model that they
// belong to.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "arithmetic/weight.h"
#include "haulway/format.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

inline constexpr uint32_t kNoEntry = 0xFFFFFFFF;

// The tensors of one module. Each is an entry of the adapter, or kNoEntry.
struct AdapterModule {
  // What a tensor is to the module.
  enum Part : uint8_t { kA, kB, kBias, kEmbeddingA, kEmbeddingB, kMagnitude };
  static constexpr size_t kParts = kMagnitude + 1;

  std::string name;
  std::array<uint32_t, kParts> parts;

  explicit AdapterModule(std::string_view name) : name(name) {
    parts.fill(kNoEntry);
  }
  bool has(Part part) const { return parts[part] != kNoEntry; }
  bool is_embedding() const { return has(kEmbeddingA) || has(kEmbeddingB); }
};

// The keys of an adapter.
class AdapterKeys {
 public:
  // Fails with kUnsupported, naming the key, for one that is not of LoRA in
  // peft, and for a tensor that has no numbers in rows; with kMismatch for an
  // adapter without tensors, and for a tensor that is there twice.
  static Result<AdapterKeys> Sort(std::shared_ptr<const FormatReader> reader);

  // By name.
  const std::map<std::string, AdapterModule>& modules() const {
    return modules_;
  }
  // The entries of tensors that take the place of one of the model, by its
  // name.
  const std::map<std::string, uint32_t>& whole() const { return whole_; }

  // Returns the name without the prefix that all names have.
  std::string_view KeyOf(uint32_t entry) const;
  AdapterTensor TensorOf(uint32_t entry) const;
  // Returns a failure that names the key.
  Status Wrong(uint32_t entry, std::string_view what,
               Code code = Code::kMismatch) const;

 private:
  explicit AdapterKeys(std::shared_ptr<const FormatReader> reader)
      : reader_(std::move(reader)) {}

  Status SortAll();
  Status CheckStored(uint32_t entry) const;

  std::shared_ptr<const FormatReader> reader_;
  std::map<std::string, AdapterModule> modules_;
  std::map<std::string, uint32_t> whole_;
};

// Removes a component of a path wherever it is: ".base_layer.".
void RemoveComponent(std::string_view part, std::string* name);

// Returns whether a tensor lies in the file in rows, without gaps.
bool IsInRows(const TensorInfo& info);

}  // namespace haulway::arithmetic
