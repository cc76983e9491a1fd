// Finds the weights of a checkpoint that adapters change.

#pragma once

#include <memory>
#include <span>
#include <string>

#include "arithmetic/find_weights.h"
#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

// A LoRA adapter, as peft writes it.
struct Adapter {
  std::string name;  // For messages.
  std::shared_ptr<const FormatReader> reader;
  // The text of adapter_config.json, or why it cannot be read.
  Result<std::string> config = std::string();
  double weight = 1;  // Multiplies its scale.
};

// Returns the weights with what each adapter does to them, in the order of the
// adapters. `beside`: as for Dequantize().
//
// Fails as Adapter::config and ParseAdapterConfig() do; with kUnsupported for
// keys that are not those of LoRA in peft, and for weights that are not plain;
// with kMismatch, naming the key, for one whose weight the checkpoint lacks,
// for half of a pair, and for shapes and ranks that do not fit.
Result<FoundWeights> FindMerges(const FormatReader& reader,
                                const ByteSource& beside,
                                std::span<const Adapter> adapters);

}  // namespace haulway::arithmetic
