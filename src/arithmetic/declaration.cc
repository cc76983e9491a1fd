// Design: the two files are parsed into one struct of what the operations need.
// Lists of modules that are not quantized are not read: companions show which
// weights are, and a list may be wrong. Values of the wrong type are errors,
// because the default in their place would give other weights. A file that is
// not there declares nothing; one that cannot be reached at the moment is an
// error, as the weights would be taken for plain ones.

#include "arithmetic/declaration.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>

#include "arithmetic/json_fields.h"
#include "base/text.h"

namespace haulway::arithmetic {

namespace {

namespace dom = simdjson::dom;

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kModelOpt = "hf_quant_config.json";

Status ReadBlock(dom::object from, std::string_view key,
                 std::optional<std::pair<uint64_t, uint64_t>>* block) {
  dom::element found;
  if (from[key].get(found) || found.is_null()) return Status();
  dom::array sizes;
  std::vector<uint64_t> numbers;
  if (!found.get_array().get(sizes)) {
    for (const dom::element size : sizes) {
      int64_t number = 0;
      if (size.get_int64().get(number) || number < 1) break;
      numbers.push_back(static_cast<uint64_t>(number));
    }
  }
  if (numbers.size() != 2 || sizes.size() != 2) {
    return WrongType(key, "two positive numbers");
  }
  *block = {numbers[0], numbers[1]};
  return Status();
}

void ReadDType(dom::object from, Declaration* made) {
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    dom::element found;
    std::string_view name;
    if (from[key].get(found) || found.get_string().get(name)) continue;
    constexpr std::string_view kPrefix = "torch.";
    if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
    if (name == "auto") continue;  // It says nothing.
    const auto named = DTypeFromTorchName(name);
    if (named.has_value() && CanCast(DType::kF32, *named)) {
      made->dtype = named;
    } else {
      made->wrong_dtype = name;
    }
    return;
  }
}

Status ReadBits(dom::object from, std::string_view key, int* bits) {
  uint64_t number = 0;
  HAULWAY_TRY(ReadNumber(from, key, 64, &number));
  if (number != 0) *bits = static_cast<int>(number);
  return Status();
}

Status ReadGroup(dom::object from, WeightGroup* group) {
  HAULWAY_TRY(ReadText(from, "format", &group->format));
  dom::array targets;
  if (!from["targets"].get_array().get(targets)) {
    for (const dom::element target : targets) {
      std::string_view text;
      if (target.get_string().get(text)) {
        return WrongType("targets", "strings");
      }
      group->targets.emplace_back(text);
    }
  }
  HAULWAY_ASSIGN(const auto weights, ObjectAt(from, "weights"));
  if (!weights.has_value()) return Status();
  HAULWAY_TRY(ReadBits(*weights, "num_bits", &group->bits));
  HAULWAY_TRY(
      ReadNumber(*weights, "group_size", UINT32_MAX, &group->group_size));
  bool is_symmetric = true;
  HAULWAY_TRY(ReadFlag(*weights, "symmetric", &is_symmetric));
  group->has_zeros = !is_symmetric;
  return ReadBlock(*weights, "block_structure", &group->block);
}

// Reads the object that declares the quantization.
Status ReadMethod(dom::object from, Declaration* made) {
  HAULWAY_TRY(ReadText(from, "quant_method", &made->method));
  bool by_bits = false;
  for (const std::string_view key : {"load_in_4bit", "load_in_8bit"}) {
    bool is_set = false;
    by_bits = by_bits || (!from[key].get_bool().get(is_set) && is_set);
  }
  // Older files of bitsandbytes do not name the method.
  if (made->method.empty() && by_bits) made->method = "bitsandbytes";
  const bool is_modelopt = made->method == "modelopt";
  HAULWAY_TRY(ReadText(from,
                       is_modelopt              ? "quant_algo"
                       : made->method == "gptq" ? "checkpoint_format"
                       : made->method == "awq"  ? "version"
                                                : "format",
                       &made->format));
  HAULWAY_TRY(ReadBlock(from, "weight_block_size", &made->block));
  HAULWAY_TRY(ReadBits(from, "bits", &made->bits));
  HAULWAY_TRY(ReadNumber(from, "group_size", UINT32_MAX, &made->group_size));
  HAULWAY_TRY(ReadFlag(from, "desc_act", &made->is_reordered));
  if (made->method != "compressed-tensors") return Status();
  HAULWAY_ASSIGN(const auto groups, ObjectAt(from, "config_groups"));
  if (!groups.has_value()) return Status();
  for (const dom::key_value_pair field : *groups) {
    dom::object group;
    // A list of targets is the short form of a group.
    if (field.value.get_object().get(group)) continue;
    HAULWAY_TRY(ReadGroup(group, &made->groups.emplace_back()));
  }
  return Status();
}

Status ReadConfig(std::string text, Declaration* made) {
  JsonObject json;
  HAULWAY_ASSIGN(const dom::object config, json.Parse(std::move(text)));
  ReadDType(config, made);
  HAULWAY_ASSIGN(const auto nested, ObjectAt(config, "text_config"));
  if (!made->dtype.has_value() && made->wrong_dtype.empty() &&
      nested.has_value()) {
    ReadDType(*nested, made);
  }
  HAULWAY_ASSIGN(auto method, ObjectAt(config, "quantization_config"));
  if (!method.has_value() && nested.has_value()) {
    HAULWAY_ASSIGN(method, ObjectAt(*nested, "quantization_config"));
  }
  if (!method.has_value()) {
    HAULWAY_ASSIGN(method, ObjectAt(config, "compression_config"));
    if (method.has_value()) made->method = "compressed-tensors";
  }
  if (!method.has_value()) return Status();
  HAULWAY_TRY(ReadMethod(*method, made));
  if (!made->method.empty()) return Status();
  return Status(Code::kUnsupported,
                "quantization_config names no quant_method");
}

Status ReadModelOpt(std::string text, Declaration* made) {
  JsonObject json;
  HAULWAY_ASSIGN(const dom::object config, json.Parse(std::move(text)));
  HAULWAY_ASSIGN(const auto method, ObjectAt(config, "quantization"));
  if (!method.has_value()) return Status();
  made->method = "modelopt";
  return ReadText(*method, "quant_algo", &made->format);
}

}  // namespace

Result<Declaration> ParseDeclaration(std::string_view config,
                                     std::string_view modelopt) {
  Declaration made;
  if (!config.empty()) {
    Status status = ReadConfig(std::string(config), &made);
    if (!status.ok()) return std::move(status).Of(kConfig);
  }
  if (made.method.empty() && !modelopt.empty()) {
    Status status = ReadModelOpt(std::string(modelopt), &made);
    if (!status.ok()) return std::move(status).Of(kModelOpt);
  }
  return made;
}

Result<Declaration> ReadDeclaration(const ByteSource& source) {
  HAULWAY_ASSIGN(const std::string config, ReadBeside(source, kConfig));
  HAULWAY_ASSIGN(Declaration made, ParseDeclaration(config, {}));
  if (!made.method.empty()) return made;
  HAULWAY_ASSIGN(const std::string modelopt, ReadBeside(source, kModelOpt));
  if (modelopt.empty()) return made;
  return ParseDeclaration(config, modelopt);
}

Result<std::string> ReadDeclarationText(const ByteSource& source) {
  HAULWAY_ASSIGN(std::string text, ReadBeside(source, kConfig));
  HAULWAY_ASSIGN(const std::string modelopt, ReadBeside(source, kModelOpt));
  return text + modelopt;
}

Result<GroupFinder> GroupFinder::Make(const Declaration& declaration) {
  constexpr std::string_view kPattern = "re:";
  GroupFinder finder;
  for (const WeightGroup& group : declaration.groups) {
    for (const std::string& target : group.targets) {
      if (target == "Linear") {
        if (finder.linear_ == nullptr) finder.linear_ = &group;
      } else if (!target.starts_with(kPattern)) {
        finder.by_name_.emplace(target, &group);
      } else {
        // As Python's re.match(): from the start on, not to the end.
        auto pattern =
            Regex::Make(fmt::format("^(?:{})", target.substr(kPattern.size())));
        if (!pattern.ok()) {
          return Status(Code::kUnsupported, pattern.status().message())
              .In(Quote(target))
              .Of(kConfig);
        }
        finder.patterns_.push_back({&group, *std::move(pattern)});
      }
    }
  }
  return finder;
}

const WeightGroup* GroupFinder::Find(std::string_view module) const {
  const auto named = by_name_.find(module);
  if (named != by_name_.end()) return named->second;
  const auto matching = std::ranges::find_if(
      patterns_, [&](const Pattern& one) { return one.pattern.Finds(module); });
  return matching == patterns_.end() ? linear_ : matching->group;
}

}  // namespace haulway::arithmetic
