// Design: the other files of a model are few and small, so they are read whole
// before the first byte of the output is written: a file that cannot be read
// leaves nothing half-written. A file belongs to the model by the end of its
// name, since a list of names is never complete, and everything in a folder of
// downloads would be too much. config.json is changed as text, field by field:
// a writer of JSON would spell numbers anew, and programs compare these files.

#include "convert/model_beside.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "base/json_text.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "haulway/folder.h"
#include "haulway/open.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "io/model_names.h"

namespace haulway::convert {

namespace {

namespace ondemand = simdjson::ondemand;

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kModelOptConfig = "hf_quant_config.json";
constexpr uint64_t kMostBytes = 256 * kMiB;

// The names that files of models usually have, for folders without a listing.
constexpr std::string_view kUsual[] = {"generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
                                       "tokenizer.model",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "vocab.txt",
                                       "merges.txt",
                                       "spiece.model",
                                       "chat_template.jinja",
                                       "chat_template.json",
                                       "preprocessor_config.json",
                                       "processor_config.json",
                                       "hf_quant_config.json",
                                       "README.md",
                                       "LICENSE"};

// The keys of config.json that tell of a quantization, and of the dtype.
constexpr std::string_view kOfQuantization[] = {"quantization_config",
                                                "compression_config"};
constexpr std::string_view kOfDType[] = {"dtype", "torch_dtype"};
constexpr std::string_view kTie = "tie_word_embeddings";

// The ends of names of settings, vocabularies, templates, code and texts; and
// names without an end. Whatever else lies beside a checkpoint is not its
// model's, or is large, or is a signature of the old weights.
constexpr std::string_view kEndings[] = {
    ".json", ".jsonl", ".txt", ".model", ".jinja", ".py",      ".md",
    ".yaml", ".yml",   ".bpe", ".spm",   ".vocab", ".tiktoken"};
constexpr std::string_view kTexts[] = {"LICENSE", "LICENCE", "NOTICE",
                                       "README"};

template <size_t kCount>
bool IsOneOf(const std::string_view (&names)[kCount], std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

bool IsOfModel(std::string_view name) {
  return IsPlainFile(name) && name != kConfig &&
         (IsOneOf(kTexts, name) ||
          std::ranges::any_of(kEndings, [&](std::string_view ending) {
            return name.ends_with(ending);
          }));
}

Status NoObject() {
  return Status(Code::kCorrupt, "it is no JSON object").Of(kConfig);
}

// A field of an object, as it is spelled.
struct RawField {
  std::string_view key;  // Without quotes, escaped.
  std::string_view value;
};

// Returns a key without its quotes, from its first character on.
std::string_view KeyAt(const char* key) {
  const char* end = key;
  while (*end != '"') end += *end == '\\' ? 2 : 1;
  return {key, static_cast<size_t>(end - key)};
}

simdjson::simdjson_result<std::string_view> RawValue(ondemand::value value) {
  ondemand::json_type type{};
  if (const auto error = value.type().get(type)) return error;
  if (type == ondemand::json_type::object) {
    ondemand::object object;
    if (const auto error = value.get_object().get(object)) return error;
    return object.raw_json();
  }
  if (type == ondemand::json_type::array) {
    ondemand::array array;
    if (const auto error = value.get_array().get(array)) return error;
    return array.raw_json();
  }
  return value.raw_json_token();
}

Result<std::vector<RawField>> FieldsOf(ondemand::parser* parser,
                                       const simdjson::padded_string& text) {
  std::vector<RawField> fields;
  ondemand::document document;
  ondemand::object object;
  if (parser->iterate(text).get(document) ||
      document.get_object().get(object)) {
    return NoObject();
  }
  for (auto one : object) {
    RawField& field = fields.emplace_back();
    ondemand::field found;
    if (std::move(one).get(found)) return NoObject();
    field.key = KeyAt(found.key().raw());
    if (RawValue(found.value()).get(field.value)) return NoObject();
    while (!field.value.empty() &&
           (field.value.back() == ' ' || field.value.back() == '\n' ||
            field.value.back() == '\r' || field.value.back() == '\t')) {
      field.value.remove_suffix(1);
    }
  }
  return fields;
}

// Changes an object at this depth of nesting. The outermost one gets fields
// that it does not have.
Result<std::string> Change(std::string_view text, const ConfigChanges& changes,
                           int depth) {
  std::string json(text);
  ReplaceNumbers(&json);
  const simdjson::padded_string padded(json);
  ondemand::parser parser;
  HAULWAY_ASSIGN(const std::vector<RawField> fields, FieldsOf(&parser, padded));
  std::string named;
  if (changes.dtype.has_value()) {
    named = JsonText(Describe(*changes.dtype).torch_name);
  }
  std::vector<std::pair<std::string, std::string>> kept;
  bool has_dtype = false;
  bool has_tie = false;
  for (const RawField& field : fields) {
    if (changes.is_plain && IsOneOf(kOfQuantization, field.key)) continue;
    // Numbers stay as they are spelled.
    std::string value(
        text.substr(static_cast<size_t>(field.value.data() - padded.data()),
                    field.value.size()));
    if (!named.empty() && IsOneOf(kOfDType, field.key)) {
      value = named;
      has_dtype = true;
    } else if (changes.is_untied && field.key == kTie) {
      value = "false";
      has_tie = true;
    } else if (field.key == "text_config" && value.starts_with('{') &&
               depth == 0) {
      HAULWAY_ASSIGN(value, Change(value, changes, depth + 1));
    }
    kept.emplace_back(field.key, std::move(value));
  }
  if (depth == 0 && !has_dtype && !named.empty()) {
    kept.emplace_back("dtype", named);
  }
  if (depth == 0 && !has_tie && changes.is_untied) {
    kept.emplace_back(kTie, "false");
  }
  const std::string indent(static_cast<size_t>(2 * (depth + 1)), ' ');
  std::string made = "{";
  for (size_t i = 0; i < kept.size(); ++i) {
    made += fmt::format("{}\n{}\"{}\": {}", i == 0 ? "" : ",", indent,
                        kept[i].first, kept[i].second);
  }
  made += fmt::format("\n{}}}", indent.substr(2));
  return made;
}

Result<std::string> ReadText(const ByteSource& file) {
  std::string text(file.size(), '\0');
  HAULWAY_TRY(file.ReadAt(0, std::as_writable_bytes(std::span(text))));
  return text;
}

// Returns the folder of the file that was opened, or of the files in a list
// that is named as its folder.
std::string FolderOf(const ByteSource& opened) {
  const std::string name(opened.name());
  if (IsFolder(name)) return name.ends_with('/') ? name : name + "/";
  return name.substr(0, name.rfind('/') + 1);
}

// Returns the names beside the checkpoint that may be files of its model.
Result<std::vector<std::string>> NamesBeside(const ByteSource& opened) {
  const std::string folder = FolderOf(opened);
  std::vector<std::string> names;
  const bool is_listed =
      LocalPath(folder).has_value() || folder.starts_with("s3://");
  if (!is_listed)
    return std::vector<std::string>(std::begin(kUsual), std::end(kUsual));
  HAULWAY_ASSIGN(const auto listed,
                 ListFolder(folder.empty() ? "." : folder, Depth::kFolder, {}));
  for (const std::string& path : listed) {
    const std::string_view name = LastPart(path);
    if (IsOfModel(name)) names.emplace_back(name);
  }
  std::ranges::sort(names);
  return names;
}

bool IsMissing(const Status& status) {
  return status.code() == Code::kNotFound ||
         status.code() == Code::kUnsupported ||
         status.code() == Code::kInvalidArgument ||
         status.code() == Code::kPermissionDenied;
}

}  // namespace

Result<std::string> ChangeConfig(std::string_view config,
                                 const ConfigChanges& changes) {
  HAULWAY_ASSIGN(std::string made, Change(config, changes, 0));
  return made + "\n";
}

Result<std::vector<OtherFile>> ReadOthers(const Checkpoint& from,
                                          std::optional<DType> dtype,
                                          std::vector<LeftOut>* left_out) {
  std::vector<OtherFile> files;
  if (from.opened() == nullptr) return files;
  const ByteSource& opened = *from.opened();
  const auto config = opened.OpenNeighbour(kConfig);
  if (!config.ok()) {
    if (IsMissing(config.status())) return files;
    return config.status();
  }
  const ConfigChanges changes{.dtype = dtype,
                              .is_plain = from.dequantized().has_value(),
                              .is_untied = from.merged().is_untied};
  HAULWAY_ASSIGN(std::vector<std::string> names, NamesBeside(opened));
  for (std::string& name : names) {
    if (changes.is_plain && name == kModelOptConfig) continue;
    const auto file = opened.OpenNeighbour(name);
    if (!file.ok()) {
      if (IsMissing(file.status())) continue;
      return file.status();
    }
    if ((*file)->size() > kMostBytes) {
      left_out->push_back(
          {std::move(name), fmt::format("a file of {} bytes beside the model",
                                        (*file)->size())});
      continue;
    }
    HAULWAY_ASSIGN(std::string text, ReadText(**file));
    files.push_back({std::move(name), std::move(text)});
  }
  if ((*config)->size() > kMostBytes) {
    return Status(Code::kLimit, fmt::format("it has {} bytes: expected at most "
                                            "{}",
                                            (*config)->size(), kMostBytes))
        .Of(kConfig);
  }
  HAULWAY_ASSIGN(std::string text, ReadText(**config));
  if (changes.any()) {
    HAULWAY_ASSIGN(text, ChangeConfig(text, changes));
  }
  files.push_back({std::string(kConfig), std::move(text)});
  return files;
}

}  // namespace haulway::convert
