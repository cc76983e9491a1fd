// Rules that have a name.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "haulway/index.h"
#include "haulway/source.h"
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
// `beside`: as for Dequantize(). Fails with kUnsupported if it has none for
// this one, for its architecture, or for the layout of its experts; and as
// reading config.json does.
Result<PresetRules> RulesOfPreset(std::string_view name,
                                  const CheckpointIndex& index,
                                  const ByteSource& beside);

}  // namespace haulway::arithmetic
