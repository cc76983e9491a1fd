// What adapter_config.json of PEFT says of a LoRA adapter.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/regex.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

struct AdapterConfig {
  // The first expression that matches the path of a module gives its number.
  template <class Number>
  using ByModule = std::vector<std::pair<Regex, Number>>;

  uint64_t rank = 8;
  double alpha = 8;
  ByModule<uint64_t> rank_of;
  ByModule<double> alpha_of;
  bool scales_by_root = false;  // `use_rslora`.
  bool has_magnitudes = false;  // `use_dora`.
  // Weights of linear layers are stored transposed.
  bool is_transposed = false;

  uint64_t RankOf(std::string_view module) const;
  // Returns what the product of the factors is multiplied by.
  double ScaleOf(std::string_view module) const;
};

// Fails with kCorrupt for what is no JSON object or has values of other types,
// and with kUnsupported, naming it, for another kind of adapter, and for an
// option of LoRA that changes weights in another way.
Result<AdapterConfig> ParseAdapterConfig(std::string_view text);

}  // namespace haulway::arithmetic
