// Design: model configurations name classes and modules in two ways. Some keys
// belong to one program, which defines what it does with them: tables list
// these keys and the values that are allowed. Other programs use keys like
// "type", "target" or "class", which plain data uses too. For these the value
// decides: whether it reads like a dotted Python name.
//
// Alternative not taken: treat every dotted word as a name. Tensors, files and
// versions have dotted names too.

#include "scan/config_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/ascii.h"
#include "base/text.h"
#include "scan/estimator_names.h"
#include "scan/file_names.h"

namespace haulway::scan {

namespace {

using Names = const std::string_view[];

bool Is(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

struct KeyRow {
  std::string_view key;
  std::string_view why;
};
// Keys whose values programs import, call or evaluate.
constexpr std::array kKeys = {
    KeyRow{"class_name", "Keras imports the class that it names"},
    KeyRow{"registered_name", "Keras imports the class that it names"},
    KeyRow{"auto_map", "transformers imports the code that it names"},
    KeyRow{"custom_pipelines", "transformers imports the code that it names"},
    KeyRow{"_target_", "Hydra calls what it names"},
    KeyRow{"class_path",
           "Lightning's command line calls the class that it names"},
    KeyRow{"nbformat", "Jupyter runs the cells beside it"},
    KeyRow{"()", "logging calls the factory that it names"},
    KeyRow{"@module", "monty imports the module that it names"},
    KeyRow{":serialized:", "Stable Baselines unpickles it"}};
// Prefix of jsonpickle's keys: "py/object" and others.
constexpr std::string_view kJsonPickle = "py/";

// Last words of keys whose value names code (kNamingOne) or is a collection of
// such names (kNamingMany).
constexpr Names kNamingOne = {"activation",  "callable",   "class",   "cls",
                              "constructor", "entrypoint", "factory", "func",
                              "function",    "handler",    "impl",    "import",
                              "module",      "plugin",     "target",  "type"};
constexpr Names kNamingMany = {"callables", "classes", "handlers",
                               "imports",   "plugins", "types"};

bool IsUpper(char c) { return c >= 'A' && c <= 'Z'; }

std::string_view LastName(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

// Returns whether `text` reads like "package.module.Class", "module:function"
// or "repository--file.Class". Anything may follow the first name, because
// Python imports that package before it looks up the rest.
bool ReadsLikeName(std::string_view text) {
  size_t last = text.find('.');
  if (last == text.npos) {
    last = text.rfind(':');
    if (last == text.npos || last + 1 == text.size() ||
        !std::ranges::all_of(text.substr(last + 1), IsWordByte)) {
      return false;
    }
  }
  const std::string_view module = text.substr(0, last);
  if (module.empty() || (module[0] >= '0' && module[0] <= '9')) return false;
  const bool is_remote = text.find("--") != text.npos;
  return std::ranges::all_of(module, [&](char c) {
    return IsWordByte(c) || c == '-' || (is_remote && c == '/');
  });
}

// Returns whether `name` is a class that only holds numbers: torch's modules,
// and the modules that sentence-transformers builds models from.
bool IsKnownClass(std::string_view name) {
  const std::string_view last = LastName(name);
  if (last.empty() || last.size() == name.size() || !IsUpper(last[0])) {
    return false;
  }
  const std::string_view module = name.substr(0, name.size() - last.size() - 1);
  constexpr Names kTorch = {"torch.nn", "torch.nn.modules.activation",
                            "torch.nn.modules.linear"};
  if (Is(kTorch, module)) return true;
  return module.starts_with("sentence_transformers.") &&
         (module.find(".models") != module.npos ||
          module.find(".modules") != module.npos) &&
         std::ranges::none_of(module, IsUpper);
}

bool IsOff(const ConfigValue& value) {
  constexpr Names kOff = {"", "false", "False", "null", "~", "0", "no", "off"};
  return Is(kOff, value.text);
}

bool IsNumberOrSwitch(std::string_view text) {
  constexpr Names kOn = {"true", "True", "yes", "on"};
  return Is(kOn, text) ||
         text.find_first_not_of("+-.0123456789eE_") == std::string_view::npos;
}

// Returns whether `name` is one of `packages` or a module in one.
bool IsOf(std::span<const std::string_view> packages, std::string_view name) {
  return Is(packages, name.substr(0, name.find('.')));
}

bool IsParentLibrary(const ConfigValue& value) {
  // peft/auto.py, get_default_import_allowlist().
  constexpr Names kLibraries = {"diffusers", "lerobot", "transformers"};
  return IsOff(value) || IsOf(kLibraries, value.text);
}

bool IsMegatron(const ConfigValue& value) {
  constexpr Names kLibraries = {"megatron"};
  return IsOff(value) || IsOf(kLibraries, value.text);
}

bool IsNoRepository(const ConfigValue& value) {
  return value.text.find('/') == value.text.npos;
}

bool IsInNoList(const ConfigValue& value) { return !value.index.has_value(); }

bool IsKnownHint(const ConfigValue& value) {
  return value.index != size_t{0} || IsOff(value) ||
         IsLibraryOfParts(value.text);
}

bool IsNoLangChain(const ConfigValue& value) { return value.text != "1"; }

bool IsNoDottedName(const ConfigValue& value) {
  return value.text.find('.') == value.text.npos || !ReadsLikeName(value.text);
}

bool IsNoClass(const ConfigValue& value) {
  const std::string_view last = LastName(value.text);
  return !ReadsLikeName(value.text) || last.empty() || !IsUpper(last[0]);
}

// See check_det_dataset() in ultralytics/data/utils.py: it downloads a URL and
// runs any other text as code.
bool IsDownload(const ConfigValue& value) {
  return IsOff(value) || IsNumberOrSwitch(value.text) ||
         (value.text.starts_with("http") && value.text.ends_with(".zip"));
}

}  // namespace

struct ValueRow {
  std::string_view key;
  std::string_view file;  // File name or suffix; "" for all files.
  std::string_view why;
  bool (*is_known)(const ConfigValue& value);
};

namespace {

constexpr std::string_view kRemoteCode =
    "programs that follow it run code from where the model is";
constexpr std::string_view kObjectOfClass =
    "readers make an object of the class that it names";
constexpr std::string_view kKernel =
    "transformers loads the kernel that it names";
constexpr std::array kValues = {
    ValueRow{"trust_remote_code", "", kRemoteCode, IsOff},
    ValueRow{"allow_remote", "", kRemoteCode, IsOff},
    ValueRow{"remote_code", "", kRemoteCode, IsOff},
    ValueRow{"parent_library", "", "PEFT imports the module that it names",
             IsParentLibrary},
    ValueRow{"megatron_core", "", "PEFT imports the module that it names",
             IsMegatron},
    ValueRow{"attn_implementation", "", kKernel, IsNoRepository},
    ValueRow{"_attn_implementation", "", kKernel, IsNoRepository},
    ValueRow{"_attn_implementation_internal", "", kKernel, IsNoRepository},
    ValueRow{"experts_implementation", "", kKernel, IsNoRepository},
    ValueRow{"_class_name", "", "diffusers imports the pipeline that it names",
             IsInNoList},
    ValueRow{"type_hint", "", "diffusers imports the module that it names",
             IsKnownHint},
    ValueRow{"custom_ops_library", "", "ONNX Runtime loads it as a library",
             IsOff},
    ValueRow{"user_script", "", "Olive runs the script that it names", IsOff},
    ValueRow{"lc", "", "LangChain makes an object of the class beside it",
             IsNoLangChain},
    ValueRow{"$type", "", kObjectOfClass, IsNoDottedName},
    ValueRow{"@type", "", kObjectOfClass, IsNoDottedName},
    ValueRow{"@class", "", kObjectOfClass, IsNoDottedName},
    ValueRow{"pythonClassName", "", "TensorFlow Datasets imports it",
             IsNoDottedName},
    ValueRow{"plugins", "configuration.json",
             "ModelScope imports the modules that it names", IsOff},
    ValueRow{"name", "config.yaml", "pyannote imports the class that it names",
             IsNoClass},
    ValueRow{"download", ".yaml", "Ultralytics runs it as a program",
             IsDownload},
    ValueRow{"download", ".yml", "Ultralytics runs it as a program",
             IsDownload}};

bool IsOfFile(const ValueRow& row, std::string_view file) {
  return row.file.empty() || Lower(file).ends_with(row.file);
}

// skops loaders that call only the classes of data and estimators that the file
// names (skops/io).
constexpr Names kLoaders = {
    "BytearrayNode", "BytesNode",       "DefaultDictNode",  "DictNode",
    "DTypeNode",     "FunctionNode",    "JsonNode",         "ListNode",
    "LossNode",      "MaskedArrayNode", "NdArrayNode",      "ObjectNode",
    "SetNode",       "SliceNode",       "SparseMatrixNode", "TupleNode",
    "TypeNode"};
struct ClassRow {
  std::string_view module;
  std::string_view name;
};
constexpr ClassRow kDataClasses[] = {{"builtins", "bool"},
                                     {"builtins", "bytearray"},
                                     {"builtins", "bytes"},
                                     {"builtins", "dict"},
                                     {"builtins", "float"},
                                     {"builtins", "int"},
                                     {"builtins", "list"},
                                     {"builtins", "set"},
                                     {"builtins", "slice"},
                                     {"builtins", "str"},
                                     {"builtins", "tuple"},
                                     {"collections", "OrderedDict"},
                                     {"collections", "defaultdict"},
                                     {"numpy", "dtype"},
                                     {"numpy", "ndarray"},
                                     {"numpy.ma", "MaskedArray"},
                                     {"numpy.ma.core", "MaskedArray"},
                                     {"scipy.sparse._bsr", "bsr_matrix"},
                                     {"scipy.sparse._coo", "coo_matrix"},
                                     {"scipy.sparse._csc", "csc_matrix"},
                                     {"scipy.sparse._csr", "csr_matrix"},
                                     {"scipy.sparse._dia", "dia_matrix"},
                                     {"scipy.sparse._bsr", "bsr_array"},
                                     {"scipy.sparse._coo", "coo_array"},
                                     {"scipy.sparse._csc", "csc_array"},
                                     {"scipy.sparse._csr", "csr_array"},
                                     {"scipy.sparse._dia", "dia_array"}};
constexpr Names kSkopsNumbers = {
    "bool",      "bool_",      "bytes_",      "clongdouble", "complex128",
    "complex64", "datetime64", "float16",     "float32",     "float64",
    "int16",     "int32",      "int64",       "int8",        "longdouble",
    "longlong",  "str_",       "timedelta64", "uint16",      "uint32",
    "uint64",    "uint8",      "ulonglong"};
// NumPy functions that people use to transform features. skops may call the key
// types of a dict that it loads.
constexpr Names kNumpyFunctions = {
    "abs",    "absolute", "cbrt", "ceil",  "cos", "cosh",  "exp",
    "exp2",   "expm1",    "fabs", "floor", "log", "log10", "log1p",
    "log2",   "negative", "rint", "sign",  "sin", "sinh",  "sqrt",
    "square", "tan",      "tanh", "trunc"};

bool IsKnownClass(std::string_view loader, std::string_view module,
                  std::string_view name) {
  if (loader == "FunctionNode") {
    return module == "numpy" && Is(kNumpyFunctions, name);
  }
  if (module == "numpy" && Is(kSkopsNumbers, name)) return true;
  const bool is_data =
      std::ranges::any_of(kDataClasses, [&](const ClassRow& row) {
        return row.module == module && row.name == name;
      });
  return is_data || IsEstimator(module, name);
}

}  // namespace

std::optional<std::string> DoubtOfKey(std::string_view key) {
  if (key.starts_with(kJsonPickle)) {
    return fmt::format("the key {}: jsonpickle imports what it names",
                       Quote(key));
  }
  const auto* row = std::ranges::find(kKeys, key, &KeyRow::key);
  if (row == kKeys.end()) return std::nullopt;
  return fmt::format("the key {}: {}", Quote(key), row->why);
}

std::optional<std::string> DoubtOfObject(std::string_view value) {
  constexpr std::string_view kObject = "ext://";
  if (!value.starts_with(kObject)) return std::nullopt;
  return fmt::format(
      "a value that begins with {}: logging imports what it "
      "names",
      kObject);
}

KeyFacts FactsOfKey(std::string_view key, const KeyFacts& outer,
                    const ConfigPlace& place) {
  KeyFacts facts{.row = outer.row,
                 .is_template = outer.is_template || IsNameOfTemplate(key)};
  const auto* row = std::ranges::find_if(kValues, [&](const ValueRow& one) {
    return one.key == key && IsOfFile(one, place.file);
  });
  if (row != kValues.end()) facts.row = row;
  const std::string lower = Lower(key.substr(key.find_last_of("_-.") + 1));
  if (Is(kNamingOne, lower) || key.ends_with("_fn") ||
      outer.naming == KeyFacts::Naming::kMany) {
    facts.naming = KeyFacts::Naming::kOne;
  } else if (Is(kNamingMany, lower)) {
    facts.naming = KeyFacts::Naming::kMany;
  }
  return facts;
}

std::optional<std::string> DoubtOfValue(const KeyFacts& key,
                                        const ConfigValue& value,
                                        const ConfigPlace& place) {
  if (key.row != nullptr && !key.row->is_known(value)) {
    return fmt::format("{} under the key {}: {}", Quote(value.text),
                       Quote(key.row->key), key.row->why);
  }
  if (key.naming == KeyFacts::Naming::kNone || !ReadsLikeName(value.text) ||
      IsKnownClass(value.text) ||
      std::ranges::find(place.allowed, value.text) != place.allowed.end()) {
    return std::nullopt;
  }
  return fmt::format(
      "{}, the name of something in a module of Python, under a "
      "key by which programs import what it names",
      Quote(value.text));
}

std::optional<std::string>* ClassRecord::Find(std::string_view key) {
  if (key == "__loader__") return &loader;
  if (key == "__module__") return &module;
  if (key == "__class__") return &name;
  return nullptr;
}

std::optional<std::string> DoubtOfClass(const ClassRecord& record,
                                        const ConfigPlace& place) {
  if (!record.loader && !record.module && !record.name) return std::nullopt;
  const std::string loader = record.loader.value_or("");
  const std::string full = fmt::format("{}.{}", record.module.value_or(""),
                                       record.name.value_or(""));
  if (std::ranges::find(place.allowed, full) != place.allowed.end()) {
    return std::nullopt;
  }
  if (!Is(kLoaders, loader)) {
    return fmt::format("the loader {} of skops, by which {} may run code",
                       Quote(loader), Quote(full));
  }
  if (IsKnownClass(loader, record.module.value_or(""),
                   record.name.value_or(""))) {
    return std::nullopt;
  }
  return fmt::format("{}, which skops imports", Quote(full));
}

bool IsPipeline(std::string_view class_name, const ConfigPlace& place) {
  return class_name.find("Pipeline") != class_name.npos ||
         class_name.ends_with("Blocks") ||
         Lower(place.file).ends_with("model_index.json");
}

bool IsLibraryOfParts(std::string_view library) {
  // From diffusers: LOADABLE_CLASSES in pipeline_loading_utils.py, and the
  // pipelines that define their own parts.
  constexpr Names kLibraries = {"diffusers",
                                "transformers",
                                "onnxruntime.training",
                                "ace_step",
                                "alt_diffusion",
                                "audioldm2",
                                "blip_diffusion",
                                "deepfloyd_if",
                                "flux",
                                "ideogram4",
                                "kandinsky",
                                "kolors",
                                "latent_diffusion",
                                "ltx",
                                "ltx2",
                                "paint_by_example",
                                "shap_e",
                                "spectrogram_diffusion",
                                "stable_audio",
                                "stable_audio_3",
                                "stable_cascade",
                                "stable_diffusion",
                                "stable_diffusion_safe",
                                "unclip",
                                "unidiffuser",
                                "versatile_diffusion",
                                "vq_diffusion",
                                "wuerstchen"};
  return Is(kLibraries, library) || library.starts_with("optimum.");
}

}  // namespace haulway::scan
