// Makes the tensors of a checkpoint into those that rules describe.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "arithmetic/find_weights.h"
#include "arithmetic/rule.h"
#include "haulway/format.h"
#include "haulway/rules.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

struct RulesToApply {
  std::vector<Rule> rules;
  std::vector<RuleFunction> functions;
  // One rule of several must match a tensor; else each must.
  bool is_preset = false;
  std::string_view names;        // As PresetRules::names.
  bool takes_quantized = false;  // Rules may change quantized weights.
};

struct RuledTensors {
  FoundWeights found;
  uint64_t ruled = 0;  // Results of rules.
};

// Returns the tensors that are there after all rules, each of which sees the
// results of those before. `beside`: as for Dequantize().
//
// Fails with kNotFound, naming the rule, for one that matches no tensor; with
// kMismatch, naming it and the group, for a source that is missing, members
// that are not numbered from 0 on, tensors that do not fit, and two results of
// one name; with kUnsupported for tensors that rules cannot change; and as
// Apply() and RuleFunction do.
Result<RuledTensors> ApplyRules(const FormatReader& reader,
                                const ByteSource& beside,
                                const RulesToApply& rules);

}  // namespace haulway::arithmetic
