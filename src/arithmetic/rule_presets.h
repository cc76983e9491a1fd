// Rules that have a name.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "haulway/index.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

std::vector<std::string_view> RulePresets();
bool IsRulePreset(std::string_view name);

struct PresetRules {
  std::string json;
  // What the names of all results match; empty: any names.
  std::string_view names;
};

// Returns the rules of a preset for a checkpoint. Requires: IsRulePreset().
// Fails with kUnsupported if it has none for this one, or for its architecture.
Result<PresetRules> RulesOfPreset(std::string_view name,
                                  const CheckpointIndex& index);

}  // namespace haulway::arithmetic
