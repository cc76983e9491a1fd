// Options that several verbs share, each defined once.
//
// A verb calls the Add functions of the options that it uses, so a shared
// option has the same name, check and help text everywhere. Options for a
// library struct with a table of fields are made from the table by AddFields().
// Checks return CLI11's message, empty if the value is valid, so a wrong value
// ends with the exit code for usage errors.

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "command.h"
#include "field_options.h"
#include "haulway/convert.h"
#include "haulway/dtype.h"
#include "haulway/format.h"
#include "haulway/save.h"
#include "haulway/select.h"
#include "values.h"

namespace haulway::cli {

namespace {

std::string CheckPattern(const std::string& pattern) {
  return std::string(
      NameFilter::Make({.include = {{pattern}}}).status().message());
}

std::string CheckCount(const std::string& text) {
  constexpr int kMost = 65535;  // As in Python.
  int count = -1;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, count);
  if (error == std::errc() && rest == end && count >= 0 && count <= kMost) {
    return "";
  }
  return fmt::format("expected a number from 0 to {}: {}", kMost, text);
}

Result<std::shared_ptr<const ByteSource>> OpenOptionFile(std::string_view uri,
                                                         bool is_rules) {
  if (!is_rules && Sources().signature.wanted()) {
    return Status(Code::kInvalidArgument,
                  "a signature of the model says nothing of adapters: merge "
                  "them without asking for one");
  }
  return OpenSource(uri, {.remote = Remote()});
}

std::string CheckDType(const std::string& name) {
  const std::optional<DType> dtype = ParseDType(name);
  if (dtype.has_value() && TakesCast(*dtype)) return "";
  return "expected a floating-point dtype such as bf16 or F32: " + name;
}

std::string CheckFormatToConvertTo(const std::string& name) {
  return std::string(FormatToConvertTo(name).status().message());
}

// Global, as the command line is.
std::map<const CLI::Option*, std::vector<std::string>>& Offers() {
  static std::map<const CLI::Option*, std::vector<std::string>> offers;
  return offers;
}

std::string CheckGlobal(const std::string& name) {
  const size_t dot = name.rfind('.');
  const bool is_full = dot != name.npos && dot != 0 && dot + 1 < name.size();
  return is_full ? "" : "expected MODULE.NAME: " + name;
}

}  // namespace

std::optional<uint64_t> ParseSize(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit(end);
  if (end == text.c_str() || !(number >= 0)) return std::nullopt;
  if (unit.ends_with('B')) unit.pop_back();
  double factor = 1;
  constexpr std::string_view kUnits = "kMGT";
  const bool is_binary = unit.ends_with('i');
  if (is_binary) unit.pop_back();
  if (unit == "K") unit = "k";
  if (unit.size() > 1 || (is_binary && unit.empty())) return std::nullopt;
  if (!unit.empty()) {
    const size_t power = kUnits.find(unit[0]);
    if (power == kUnits.npos) return std::nullopt;
    for (size_t i = 0; i <= power; ++i) factor *= is_binary ? 1024 : 1000;
  }
  const double bytes = number * factor;
  if (bytes >= 1e18) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

std::string CheckPositive(const std::string& text) {
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && rest == end && number > 0) return "";
  return fmt::format("expected a number of 1 or more: {}", text);
}

std::string CheckPair(const std::string& text) {
  const size_t at = text.find('=');
  if (at != text.npos && at != 0) return "";
  return "expected two parts with a '=' between them: " + text;
}

void AddJson(CLI::App& app, Options& options) {
  app.add_flag("--json", options.json, "Print one JSON object on one line");
}

void AddBytes(CLI::App& app, Options& options) {
  app.add_flag("--bytes", options.bytes,
               "Print sizes in bytes, not in B/KiB/MiB");
}

void AddLenient(CLI::App& app, Options& options) {
  AddFields(app, &options.open);
}

void AddDequantize(CLI::App& app, Options& options) {
  app.add_flag("--dequantize", options.open.dequantize,
               "Compute plain weights of quantized ones, as config.json beside "
               "the file says; see docs/quantized.md");
  AddList(app, "--lora", options.lora,
          "ADAPTER[:WEIGHT]: merge a LoRA adapter of peft into the weights; "
          "repeatable; see docs/quantized.md")
      ->type_name("ADAPTER")
      ->each([&options](const std::string& text) {
        const auto adapter = ParseLoraAdapter(text);
        if (!adapter.ok()) {
          throw CLI::ValidationError(std::string(adapter.status().message()));
        }
        options.open.lora.push_back(*adapter);
      });
  Offer(app.add_option(
               "--rules", options.open.rules.name,
               "Rename, stack, split and compute tensors as the rules in this "
               "JSON file say, or those of stack-experts, split-experts or "
               "gguf-to-hf; see docs/quantized.md")
            ->check([](const std::string& text) {
              return text.empty() ? "expected a file or a preset" : "";
            })
            ->type_name("FILE"),
        {"stack-experts", "split-experts", "gguf-to-hf"});
  options.open.open_input = [&options](std::string_view uri) {
    return OpenOptionFile(uri, uri == options.open.rules.name);
  };
}

void AddRaw(CLI::App& app, Options& options) {
  app.add_flag("--raw", options.open.raw,
               "With casts: cast the stored numbers of quantized weights and "
               "of their scales as they are");
}

SourceOptions& Sources() {
  static SourceOptions sources;
  return sources;
}

void AddNaming(CLI::App& app, Options& options) {
  AddFields(app, &Sources());
  AddList(app, "--join", options.join,
          "Another file of the checkpoint that FILE begins; repeatable")
      ->type_name("FILE");
}

void AddModel(CLI::App& app, Options& options) {
  AddFile(app, options);
  AddNaming(app, options);
}

void AddFile(CLI::App& app, Options& options, const char* about) {
  AddLenient(app, options);
  AddRemote(app);
  app.add_option_function<std::string>(
         "FILE",
         [&options](const std::string& file) { options.files = {file}; }, about)
      ->required();
}

void AddFiles(CLI::App& app, Options& options) {
  AddLenient(app, options);
  AddRemote(app);
  app.add_option("FILE", options.files,
                 "Files, folders, URLs, or - for standard input")
      ->required();
}

void AddOut(CLI::App& app, std::string* out, const char* about) {
  app.add_option("OUT", *out, about)->required();
}

void RefuseJsonBeside(CLI::App& app, const Options& options,
                      const std::string& out) {
  app.parse_complete_callback([&options, &out] {
    if (!options.json || out != "-") return;
    throw CLI::ValidationError("--json",
                               "the output - is standard output, too");
  });
}

std::string CheckFileToWrite(const std::string& path) {
  return path == "-" ? "expected a file, found -" : "";
}

void AddExclude(CLI::App& app, Options& options, const char* about) {
  AddList(app, "--exclude", options.exclude, about)->check(CheckPattern);
}

void AddFilters(CLI::App& app, Options& options) {
  AddList(app, "--include", options.include,
          "Select names that match this glob or /regex/; repeatable")
      ->check(CheckPattern);
  AddExclude(app, options,
             "Leave out names that match; takes precedence over --include; "
             "repeatable");
  app.add_option("--prefix", options.prefix,
                 "Select only names that begin with this prefix; patterns "
                 "match the rest of the name");
}

void AddKey(CLI::App& app, Options& options, bool required) {
  auto* where = app.add_option_group("Key");
  // An empty name is an unset variable of a script, not a wish for no key.
  const auto add = [where](const char* name, std::string& value,
                           const char* about) {
    where->add_option(name, value, about)->check([](const std::string& text) {
      return text.empty() ? std::string("expected a name, found none")
                          : std::string();
    });
  };
  add("--keyfile", options.key.keyfile,
      "File with the key: 32 bytes, or 64 hexadecimal digits");
  add("--passphrase-file", options.key.passphrase_file,
      "File with the passphrase");
  add("--key-env", options.key.key_env,
      "Environment variable with the key: 64 hexadecimal digits");
  where->require_option(required ? 1 : 0, 1);
}

void AddAllow(CLI::App& app, Options& options) {
  app.add_option("--allow", options.open.allowed_globals,
                 "MODULE.NAME that a pickle may contain, as data; repeatable")
      ->type_name("NAME")
      ->expected(1)
      ->take_all()
      ->check(CheckGlobal);
}

CLI::Option* AddList(CLI::App& app, const std::string& name,
                     std::vector<std::string>& list, const std::string& about) {
  // Otherwise CLI11 would parse "[ab]" as a list.
  return app.add_option(name, list, about)
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
}

void AddSize(CLI::App& app, const std::string& name, uint64_t* bytes,
             const std::string& about, uint64_t least) {
  app.add_option_function<std::string>(
         name,
         [name, bytes, least](const std::string& text) {
           const auto size = ParseSize(text);
           if (!size.has_value() || *size < least) {
             throw CLI::ValidationError(
                 name, "expected a size like 5GB or 512MiB, found " + text);
           }
           *bytes = *size;
         },
         about)
      ->type_name("SIZE");
}

CLI::Option* Offer(CLI::Option* option, std::vector<std::string> words) {
  Offers()[option] = std::move(words);
  return option;
}

std::vector<std::string> OfferedFor(const CLI::Option& option) {
  const auto found = Offers().find(&option);
  return found == Offers().end() ? std::vector<std::string>() : found->second;
}

CLI::Option* OneOf(CLI::Option* option, std::vector<std::string> words) {
  option->check(CLI::IsMember(words));
  return Offer(option, std::move(words));
}

void AddDType(CLI::App& app, std::string* dtype) {
  std::vector<std::string> names;
  for (const DTypeInfo& info : AllDTypes()) {
    std::string& name = names.emplace_back(info.name);
    for (char& c : name) c = static_cast<char>(std::tolower(c));
    if (!CheckDType(name).empty()) names.pop_back();
  }
  Offer(app.add_option(
               "--dtype", *dtype,
               "Cast floating-point tensors to this dtype: bf16, F32, ...")
            ->check(CheckDType),
        std::move(names));
}

void AddTo(CLI::App& app, std::string* format, const char* about) {
  std::vector<std::string> names;
  for (const FormatEntry& entry : Formats()) {
    std::string name(entry.name);
    if (CheckFormatToConvertTo(name).empty()) names.push_back(std::move(name));
  }
  Offer(app.add_option("--to", *format, about)->check(CheckFormatToConvertTo),
        std::move(names));
}

std::string CheckFormatToWrite(const std::string& name) {
  return std::string(FormatToWriteByName(name).status().message());
}

void AddThreads(CLI::App& app, Options& options) {
  app.add_option("--threads", options.threads,
                 "Number of threads; 0: as many as this process may use")
      ->check(CheckCount);
}

void AddMemoryBudget(CLI::App& app, Options& options) {
  AddSize(app, "--memory-budget", &options.memory_budget,
          "Limit for working memory; default: 256MiB");
}

void AddProgress(CLI::App& app, Options& options) {
  app.add_flag("--no-progress", options.no_progress, "Print no progress line");
}

}  // namespace haulway::cli
