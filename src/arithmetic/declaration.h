// What the files beside a checkpoint say about how its weights are quantized.
//
// Read in this order: `quantization_config` of config.json, or of its
// `text_config`; `compression_config`, as compressed-tensors wrote until 0.4;
// and `quantization` of hf_quant_config.json, which ModelOpt writes.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/regex.h"
#include "haulway/dtype.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

// Modules whose weights are quantized in one way, for compressed-tensors.
struct WeightGroup {
  std::vector<std::string> targets;
  std::string format;  // Empty: that of the declaration.
  int bits = 0;        // 0: not stated.
  uint64_t group_size = 0;
  // Rows and columns of a block.
  std::optional<std::pair<uint64_t, uint64_t>> block;
  bool has_zeros = false;  // "symmetric" is false: groups have zero points.
};

struct Declaration {
  std::string method;  // `quant_method`; empty: none is declared.
  // The variant of the method: a format of compressed-tensors, the
  // `quant_algo` of ModelOpt, the `version` of AWQ. Empty: none is stated.
  std::string format;
  std::optional<DType> dtype;  // The one that plain weights have.
  // What config.json says in its place, if weights cannot have that.
  std::string wrong_dtype;
  std::optional<std::pair<uint64_t, uint64_t>> block;
  int bits = 0;               // 0: not stated.
  uint64_t group_size = 0;    // 0: not stated, or one group.
  bool is_reordered = false;  // `desc_act` of GPTQ: g_idx tells the groups.
  std::vector<WeightGroup> groups;
};

// Parses config.json and hf_quant_config.json; either may be empty. Fails with
// kCorrupt for what is no JSON object or has values of other types.
Result<Declaration> ParseDeclaration(std::string_view config,
                                     std::string_view modelopt);

// Reads the files beside `source`. A file that is not there, or cannot be
// reached from such a source, declares nothing. Fails as ParseDeclaration() and
// as reading do, and with kLimit for a file of more than 64 MiB.
Result<Declaration> ReadDeclaration(const ByteSource& source);

// Returns what ReadDeclaration() parses. Fails as reading does.
Result<std::string> ReadDeclarationText(const ByteSource& source);

// A GroupFinder finds the groups of modules.
class GroupFinder {
 public:
  // `declaration` must outlive it. Fails with kUnsupported for a regular
  // expression that RE2 does not take.
  static Result<GroupFinder> Make(const Declaration& declaration);

  // Returns the group for the weight of a module: the first whose targets name
  // it exactly or by a regular expression, else the first for all linear
  // layers; null if there is none.
  const WeightGroup* Find(std::string_view module) const;

 private:
  struct Pattern {
    const WeightGroup* group = nullptr;
    Regex pattern;
  };

  std::map<std::string_view, const WeightGroup*> by_name_;
  std::vector<Pattern> patterns_;
  const WeightGroup* linear_ = nullptr;
};

}  // namespace haulway::arithmetic
