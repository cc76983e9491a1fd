#include "arithmetic/adapter_config.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "arithmetic/json_fields.h"
#include "base/text.h"

namespace haulway::arithmetic {

namespace {

namespace dom = simdjson::dom;

constexpr uint64_t kMostRank = UINT32_MAX;

// Options with which the weights of a model, or what is computed from them,
// change in another way than by a product of two factors.
constexpr std::string_view kNotKnown[] = {
    "alora_invocation_tokens", "arrow_config",      "kasa_config",
    "layer_replication",       "monteclora_config", "target_parameters",
    "trainable_token_indices", "use_bdlora",        "use_qalora",
    "velora_config",
};
// Ways to begin a training that leave the weights of the model alone.
constexpr std::string_view kPlainStarts[] = {"", "eva", "gaussian",
                                             "orthogonal"};

// Returns whether a value switches nothing on.
bool IsOff(dom::element value) {
  bool flag = true;
  if (!value.get_bool().get(flag)) return !flag;
  dom::array list;
  if (!value.get_array().get(list)) return list.size() == 0;
  dom::object object;
  if (!value.get_object().get(object)) return object.size() == 0;
  return value.is_null();
}

Status CheckKnown(dom::object from) {
  std::string kind;
  HAULWAY_TRY(ReadText(from, "peft_type", &kind));
  if (kind != "LORA") {
    return Status(Code::kUnsupported,
                  fmt::format("its peft_type is {}: expected LORA",
                              kind.empty() ? "not there" : Quote(kind)));
  }
  for (const std::string_view key : kNotKnown) {
    dom::element value;
    if (from[key].get(value) || IsOff(value)) continue;
    return Status(Code::kUnsupported,
                  fmt::format("an adapter with {} cannot be merged", key));
  }
  dom::element start;
  std::string_view name;
  if (from["init_lora_weights"].get(start) || start.get_string().get(name) ||
      std::ranges::find(kPlainStarts, name) != std::end(kPlainStarts)) {
    return Status();
  }
  return Status(Code::kUnsupported,
                fmt::format("its init_lora_weights is {}, which changes the "
                            "model that it was trained with: convert it to a "
                            "plain adapter with peft",
                            Quote(name)));
}

Status ReadValue(std::string_view key, dom::element value, uint64_t* number) {
  if (value.get_uint64().get(*number) || *number == 0 || *number > kMostRank) {
    return WrongType(key, "a positive number");
  }
  return Status();
}

Status ReadValue(std::string_view key, dom::element value, double* number) {
  if (value.get_double().get(*number)) return WrongType(key, "a number");
  return Status();
}

// Reads a number that holds for all modules.
template <class Number>
Status ReadValueAt(dom::object from, std::string_view key, Number* number) {
  dom::element value;
  if (from[key].get(value) || value.is_null()) return Status();
  return ReadValue(key, value, number);
}

template <class Number>
Status ReadPattern(dom::object from, std::string_view key,
                   AdapterConfig::ByModule<Number>* by_module) {
  HAULWAY_ASSIGN(const auto rules, ObjectAt(from, key));
  if (!rules.has_value()) return Status();
  for (const dom::key_value_pair rule : *rules) {
    Number number{};
    HAULWAY_TRY(ReadValue(key, rule.value, &number));
    // The end of a path, as PEFT's get_pattern_key().
    auto pattern = Regex::Make(fmt::format("^(?:.*\\.)?(?:{})$", rule.key));
    if (!pattern.ok()) {
      return Status(Code::kUnsupported, pattern.status().message())
          .In(Quote(rule.key));
    }
    by_module->emplace_back(*std::move(pattern), number);
  }
  return Status();
}

template <class Number>
Number Of(const AdapterConfig::ByModule<Number>& by_module, Number otherwise,
          std::string_view module) {
  const auto found = std::ranges::find_if(
      by_module, [&](const auto& one) { return one.first.Finds(module); });
  return found == by_module.end() ? otherwise : found->second;
}

}  // namespace

uint64_t AdapterConfig::RankOf(std::string_view module) const {
  return Of(rank_of, rank, module);
}

double AdapterConfig::ScaleOf(std::string_view module) const {
  const auto own = static_cast<double>(RankOf(module));
  return Of(alpha_of, alpha, module) / (scales_by_root ? std::sqrt(own) : own);
}

Result<AdapterConfig> ParseAdapterConfig(std::string_view text) {
  JsonObject json;
  HAULWAY_ASSIGN(const dom::object from, json.Parse(std::string(text)));
  HAULWAY_TRY(CheckKnown(from));
  AdapterConfig made;
  HAULWAY_TRY(ReadValueAt(from, "r", &made.rank));
  HAULWAY_TRY(ReadValueAt(from, "lora_alpha", &made.alpha));
  HAULWAY_TRY(ReadPattern(from, "rank_pattern", &made.rank_of));
  HAULWAY_TRY(ReadPattern(from, "alpha_pattern", &made.alpha_of));
  HAULWAY_TRY(ReadFlag(from, "use_rslora", &made.scales_by_root));
  HAULWAY_TRY(ReadFlag(from, "use_dora", &made.has_magnitudes));
  HAULWAY_TRY(ReadFlag(from, "fan_in_fan_out", &made.is_transposed));
  return made;
}

}  // namespace haulway::arithmetic
