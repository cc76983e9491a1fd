#include "arithmetic/rule_presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <utility>
#include <variant>

#include "arithmetic/json_fields.h"
#include "arithmetic/rule.h"
#include "base/text.h"
#include "haulway/nearest.h"

namespace haulway::arithmetic {

namespace {

// As transformers 5 has the experts of qwen2_moe, qwen3_moe and deepseek_v3 in
// memory, and those of mixtral.
constexpr std::string_view kStackExperts = R"({"rules": [
  {"source": ["mlp.experts.*.gate_proj.weight",
              "mlp.experts.*.up_proj.weight"],
   "target": "mlp.experts.gate_up_proj",
   "ops": [{"stack": {"dim": 0}}, {"concat": {"dim": 1}}]},
  {"source": "mlp.experts.*.down_proj.weight",
   "target": "mlp.experts.down_proj", "ops": [{"stack": {"dim": 0}}]},
  {"source": ["block_sparse_moe.experts.*.w1.weight",
              "block_sparse_moe.experts.*.w3.weight"],
   "target": "mlp.experts.gate_up_proj",
   "ops": [{"stack": {"dim": 0}}, {"concat": {"dim": 1}}]},
  {"source": "block_sparse_moe.experts.*.w2.weight",
   "target": "mlp.experts.down_proj", "ops": [{"stack": {"dim": 0}}]}
]})";

constexpr std::string_view kSplitExperts = R"({"rules": [
  {"source": "mlp.experts.gate_up_proj",
   "target": ["mlp.experts.*.gate_proj.weight",
              "mlp.experts.*.up_proj.weight"],
   "ops": [{"chunk": {"dim": 1}}, {"unstack": {"dim": 0}}]},
  {"source": "mlp.experts.down_proj",
   "target": "mlp.experts.*.down_proj.weight", "ops": [{"unstack": {"dim": 0}}]}
]})";

// The names of llama.cpp that all architectures below share.
constexpr std::string_view kLeaves = R"(
  {"rename": ["^token_embd\\.", "model.embed_tokens."]},
  {"rename": ["^output\\.", "lm_head."]},
  {"rename": ["^output_norm\\.", "model.norm."]},
  {"rename": ["^blk\\.(\\d+)\\.attn_([qkv])\\.",
              "model.layers.\\1.self_attn.\\2_proj."]},
  {"rename": ["^blk\\.(\\d+)\\.attn_output\\.",
              "model.layers.\\1.self_attn.o_proj."]},
  {"rename": ["^blk\\.(\\d+)\\.attn_([qk])_norm\\.",
              "model.layers.\\1.self_attn.\\2_norm."]},
  {"rename": ["^blk\\.(\\d+)\\.attn_norm\\.",
              "model.layers.\\1.input_layernorm."]},
  {"rename": ["^blk\\.(\\d+)\\.ffn_(gate|up|down)\\.",
              "model.layers.\\1.mlp.\\2_proj."]},
  {"rename": ["^blk\\.(\\d+)\\.ffn_norm\\.",
              "model.layers.\\1.post_attention_layernorm."]})";

// llama.cpp has the rows of each head in another order, and a tensor of numbers
// that config.json gives transformers.
constexpr std::string_view kLlama = R"(
  {"source": "rope_freqs.weight", "target": []},
  {"source": "blk.*.attn_q.weight", "target": "blk.*.attn_q.weight",
   "ops": [{"permute_rope": {"heads": "llama.attention.head_count"}}]},
  {"source": "blk.*.attn_q.bias", "target": "blk.*.attn_q.bias",
   "ops": [{"permute_rope": {"heads": "llama.attention.head_count"}}]},
  {"source": "blk.*.attn_k.weight", "target": "blk.*.attn_k.weight",
   "ops": [{"permute_rope": {"heads": "llama.attention.head_count_kv"}}]},
  {"source": "blk.*.attn_k.bias", "target": "blk.*.attn_k.bias",
   "ops": [{"permute_rope": {"heads": "llama.attention.head_count_kv"}}]},)";

// llama.cpp adds 1 to what the layers of gemma add 1 to.
constexpr std::string_view kGemma2 = R"(
  {"source": "output_norm.weight", "target": "output_norm.weight",
   "ops": [{"add": {"value": -1}}]},
  {"source": "blk.*.attn_norm.weight", "target": "blk.*.attn_norm.weight",
   "ops": [{"add": {"value": -1}}]},
  {"source": "blk.*.post_attention_norm.weight",
   "target": "model.layers.*.post_attention_layernorm.weight",
   "ops": [{"add": {"value": -1}}]},
  {"source": "blk.*.ffn_norm.weight",
   "target": "model.layers.*.pre_feedforward_layernorm.weight",
   "ops": [{"add": {"value": -1}}]},
  {"source": "blk.*.post_ffw_norm.weight",
   "target": "model.layers.*.post_feedforward_layernorm.weight",
   "ops": [{"add": {"value": -1}}]},)";

constexpr std::string_view kGgufToHf = "gguf-to-hf";
constexpr std::string_view kSplitName = "split-experts";
constexpr std::pair<std::string_view, std::string_view> kPresets[] = {
    {kGgufToHf, ""},  // Those of its architecture.
    {"stack-experts", kStackExperts},
    {kSplitName, kSplitExperts},
};
// The rules of an architecture before kLeaves.
constexpr std::pair<std::string_view, std::string_view> kArchitectures[] = {
    {"llama", kLlama}, {"qwen2", ""}, {"qwen3", ""}, {"gemma2", kGemma2}};

// Returns the architecture that a GGUF file states.
Result<std::string> ArchitectureOf(const CheckpointIndex& index) {
  if (index.metadata.has_value() && index.format == Format::kGguf) {
    for (const Fact& fact : *index.metadata) {
      if (fact.name != "general.architecture") continue;
      const auto* const text = std::get_if<std::string>(&fact.value);
      if (text != nullptr) return *text;
    }
  }
  return Status(Code::kUnsupported,
                "the rules gguf-to-hf are for GGUF files that state their "
                "general.architecture");
}

Status OtherExperts() {
  return Status(Code::kUnsupported,
                "the rules split-experts do not know this layout of experts, "
                "which is that of gpt_oss and others: expected rows of all "
                "gates, then of all ups, and no biases");
}

// Returns the `model_type` of config.json, or "".
Result<std::string> ModelType(const ByteSource& beside) {
  constexpr std::string_view kConfig = "config.json";
  HAULWAY_ASSIGN(std::string text, ReadBeside(beside, kConfig));
  std::string type;
  if (text.empty()) return type;
  JsonObject json;
  auto config = json.Parse(std::move(text));
  Status status = config.status();
  if (status.ok()) status = ReadText(*config, "model_type", &type);
  if (!status.ok()) return std::move(status).Of(kConfig);
  return type;
}

// Returns whether the shapes are [experts, 2 * inner, hidden] and [experts,
// hidden, inner]. Those of transposed experts never are.
bool AreRows(std::span<const int64_t> gate_up, std::span<const int64_t> down) {
  return gate_up.size() == 3 && down.size() == 3 && gate_up[1] % 2 == 0 &&
         gate_up[1] / 2 == down[2];
}

// Fails for stacked experts of which split-experts would make others.
Status CheckExperts(const CheckpointIndex& index, const ByteSource& beside) {
  const NamePattern gate_up{"mlp.experts.gate_up_proj", ""};
  const NamePattern bias{"mlp.experts.gate_up_proj_bias", ""};
  const NamePattern down{"mlp.experts.down_proj", ""};
  HAULWAY_ASSIGN(const std::string type, ModelType(beside));
  if (type == "gpt_oss") {
    return OtherExperts().In(fmt::format("model_type {}", Quote(type)));
  }
  std::map<std::string_view, uint32_t> downs;  // By group.
  for (const Entry& entry : index.entries) {
    const auto match = down.Find(entry.name, /*is_numbered=*/false);
    if (match.has_value()) downs.emplace(match->group, entry.tensor);
  }
  for (const Entry& entry : index.entries) {
    bool is_other = bias.Find(entry.name, /*is_numbered=*/false).has_value();
    const auto match = gate_up.Find(entry.name, /*is_numbered=*/false);
    if (match.has_value()) {
      const auto found = downs.find(match->group);
      is_other =
          found != downs.end() && !AreRows(index.tensors[entry.tensor].shape,
                                           index.tensors[found->second].shape);
    }
    if (is_other) return OtherExperts().In(Quote(entry.name));
  }
  return Status();
}

}  // namespace

std::vector<std::string_view> RulePresets() {
  std::vector<std::string_view> names;
  for (const auto& [name, json] : kPresets) names.push_back(name);
  return names;
}

bool IsRulePreset(std::string_view name) {
  return std::ranges::any_of(
      kPresets, [&](const auto& one) { return one.first == name; });
}

Result<PresetRules> RulesOfPreset(std::string_view name,
                                  const CheckpointIndex& index,
                                  const ByteSource& beside) {
  if (name == kSplitName) HAULWAY_TRY(CheckExperts(index, beside));
  if (name != kGgufToHf) {
    const auto* const found = std::ranges::find(
        kPresets, name, [](const auto& one) { return one.first; });
    return PresetRules{std::string(found->second), ""};
  }
  HAULWAY_ASSIGN(const std::string architecture, ArchitectureOf(index));
  const auto* const found =
      std::ranges::find(kArchitectures, std::string_view(architecture),
                        [](const auto& one) { return one.first; });
  if (found == std::end(kArchitectures)) {
    return Status(Code::kUnsupported,
                  fmt::format("the rules gguf-to-hf do not know the "
                              "architecture {}: expected llama, qwen2, qwen3 "
                              "or gemma2",
                              Quote(architecture)));
  }
  return PresetRules{
      fmt::format(R"({{"rules": [{}{}]}})", found->second, kLeaves),
      R"(^(model|lm_head)\.)"};
}

}  // namespace haulway::arithmetic
