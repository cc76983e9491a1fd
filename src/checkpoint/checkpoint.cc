// Design: a checkpoint is a FormatReader and what is derived from its index
// when it is first asked for: names, scales beside tensors, and what
// config.json declares. Each is made once, by whichever thread asks first.
// Plain weights of quantized ones are no special case here: opening replaces
// the reader by one that shows them. Indexing names while opening was left out:
// loading a whole checkpoint does not need it.

#include "haulway/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic/declaration.h"
#include "arithmetic/dequantize.h"
#include "arithmetic/find_merges.h"
#include "arithmetic/json_fields.h"
#include "arithmetic/rule.h"
#include "arithmetic/rule_presets.h"
#include "base/name_index.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/format_registry.h"
#include "checkpoint/sharded_reader.h"
#include "checkpoint/version_chain.h"
#include "checkpoint/whole_model.h"
#include "decode/stored_tensor.h"
#include "haulway/nearest.h"
#include "haulway/open.h"
#include "tensor/scaled_tensors.h"

namespace haulway {

namespace {
// Returns whether the same call may succeed later.
bool MayPass(const Result<std::shared_ptr<const Checkpoint>>& opened) {
  const Code code = opened.status().code();
  return code == Code::kUnavailable || code == Code::kTimeout;
}

// Weights that are computed otherwise than by rules.
bool HasArithmetic(const OpenOptions& options) {
  return options.dequantize || !options.lora.empty();
}

Status CheckArithmetic(const OpenOptions& options) {
  if (options.raw) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} and raw contradict each other: expected one",
                              options.dequantize ? "dequantize" : "lora"));
  }
  const auto dtype = options.dequantized_dtype;
  if (!dtype.has_value() || CanCast(DType::kF32, *dtype)) return Status();
  return Status(Code::kInvalidArgument,
                fmt::format("weights cannot be dequantized to dtype {}: "
                            "expected a floating-point one",
                            Name(*dtype)));
}

Result<std::shared_ptr<const ByteSource>> OpenInput(
    std::string_view uri, const OpenOptions& options) {
  return options.open_input == nullptr ? OpenSource(uri)
                                       : options.open_input(uri);
}

Result<std::shared_ptr<const ByteSource>> OpenAdapter(
    const std::string& path, const OpenOptions& options) {
  if (!IsFolder(path)) return OpenInput(path, options);
  // A folder may hold other checkpoints: the state of an optimizer.
  const std::string folder = path.ends_with('/') ? path : path + "/";
  auto source = OpenInput(folder + "adapter_model.safetensors", options);
  if (source.ok() || source.status().code() != Code::kNotFound) return source;
  auto older = OpenInput(folder + "adapter_model.bin", options);
  return older.ok() ? std::move(older) : std::move(source);
}

// An adapter, and the checkpoint that it is.
struct OpenedAdapter {
  arithmetic::Adapter adapter;
  std::shared_ptr<const Checkpoint> checkpoint;
};

Result<OpenedAdapter> ReadAdapter(const LoraAdapter& from,
                                  const OpenOptions& options) {
  constexpr std::string_view kConfig = "adapter_config.json";
  HAULWAY_ASSIGN(auto source, OpenAdapter(from.path, options));
  const std::string name(source->name());
  OpenOptions opening;
  opening.strictness = options.strictness;
  opening.limits = options.limits;
  HAULWAY_ASSIGN(auto opened, Checkpoint::Open(source, opening));
  arithmetic::Adapter made;
  made.name = name;
  made.reader = std::shared_ptr<const FormatReader>(opened, &opened->reader());
  made.weight = from.weight;
  const auto read = [&]() -> Result<std::string> {
    HAULWAY_ASSIGN(const auto config, source->OpenNeighbour(kConfig));
    return arithmetic::ReadFileText(*config);
  };
  made.config = read();
  return OpenedAdapter{std::move(made), std::move(opened)};
}

// What opening computes, as far as options say it; empty: nothing.
std::string ComputedBy(const OpenOptions& options) {
  if (!HasArithmetic(options)) return "";
  std::string text = fmt::format("dequantize {} {}\n", options.dequantize,
                                 options.dequantized_dtype.has_value()
                                     ? Name(*options.dequantized_dtype)
                                     : "");
  for (const LoraAdapter& one : options.lora) {
    text += fmt::format("lora {}\n", one.weight);
  }
  return text;
}

// Returns the text of the file with the rules.
Result<std::string> ReadRulesFile(const OpenOptions& options) {
  const std::string& name = options.rules.name;
  const auto presets = arithmetic::RulePresets();
  if (IsFolder(name)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} is a folder: expected a file or one of {}",
                              QuotePath(name), fmt::join(presets, ", ")));
  }
  const auto file = OpenInput(name, options);
  if (file.ok()) return arithmetic::ReadFileText(**file);
  if (file.status().code() != Code::kNotFound ||
      name.find_first_of("./") != name.npos) {
    return file.status();
  }
  return Status(Code::kInvalidArgument,
                fmt::format("there are no rules {}{}: expected a file or one "
                            "of {}",
                            Quote(name),
                            HintOf(name, presets, [](auto one) { return one; }),
                            fmt::join(presets, ", ")));
}

// Names the rules in a message that does not yet.
Status WithRules(Status status, const std::string& name) {
  if (name.empty()) return std::move(status).In("rules");
  const std::string quoted = QuotePath(name);
  if (status.message().find(quoted) != std::string_view::npos) return status;
  return std::move(status).In(fmt::format("rules {}", quoted));
}

// Adds the rules to `*computed_by`.
Result<uint64_t> ApplyRules(const OpenOptions& options,
                            const ByteSource& beside, std::string* computed_by,
                            std::unique_ptr<const FormatReader>* reader) {
  const Rules& given = options.rules;
  arithmetic::RulesToApply rules;
  rules.functions = given.functions;
  rules.takes_quantized = options.raw;
  std::string json = given.json;
  if (arithmetic::IsRulePreset(given.name)) {
    HAULWAY_ASSIGN(auto preset, arithmetic::RulesOfPreset(
                                    given.name, (*reader)->index(), beside));
    json = std::move(preset.json);
    rules.names = preset.names;
    rules.is_preset = true;
  } else if (json.empty()) {
    HAULWAY_ASSIGN(json, ReadRulesFile(options));
  }
  *computed_by += json;
  HAULWAY_ASSIGN(rules.rules,
                 arithmetic::ParseRules(json, given.functions.size()));
  return arithmetic::RuleTensors(beside, rules, reader);
}

struct NameOf {
  const LongVector<Entry>& entries;
  std::string_view operator()(uint32_t i) const { return entries[i].name; }
};
}  // namespace

// The index of names is built when a name is first looked up, because code that
// lists or loads all tensors does not need it.
struct Checkpoint::State {
  const ScaledTensors& Scaled(const CheckpointIndex& index) {
    std::call_once(scaled_found, [&] { scaled.emplace(index); });
    return *scaled;
  }
  // What the files beside the checkpoint declare.
  const Result<arithmetic::Declaration>& Declared() {
    std::call_once(declared_read, [&] {
      if (opened == nullptr) {
        declared.emplace(arithmetic::Declaration());
      } else {
        declared.emplace(arithmetic::ReadDeclaration(*opened));
      }
    });
    return *declared;
  }

  std::once_flag filled;
  bool has_index = false;  // False if there was no memory for it.
  NameIndex names;
  std::once_flag scaled_found;
  std::optional<ScaledTensors> scaled;
  std::once_flag declared_read;
  std::optional<Result<arithmetic::Declaration>> declared;
  bool allows_casts = false;
  std::shared_ptr<const ByteSource> opened;  // The file that was opened.
  std::optional<Dequantized> dequantized;
  Merged merged;
  std::string computed_by;  // The options that change tensors.
  std::vector<std::shared_ptr<const Checkpoint>> adapters;
  Rules rules;         // Those that it was opened with,
  uint64_t ruled = 0;  // and how many tensors they made or renamed.
  uint64_t computed_from = UINT64_MAX;
  RemoteStats opening;
  std::once_flag opening_taken;
};

Checkpoint::Checkpoint(std::unique_ptr<const FormatReader> reader)
    : reader_(std::move(reader)) {
  state_ = std::make_unique<State>();
}

Checkpoint::~Checkpoint() = default;

Result<std::shared_ptr<const Checkpoint>> Checkpoint::Open(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options,
    int retries, const std::function<bool(std::string_view)>& wanted) {
  if (source == nullptr) {
    return Status(Code::kInvalidArgument, "source is null");
  }
  const std::string name(source->name());
  const auto open = [&]() -> Result<std::shared_ptr<const Checkpoint>> {
    const auto parsing = source->BeginParsing();
    HAULWAY_ASSIGN(Detected found, DetectWhole(source, options));
    auto& reader = found.reader;
    if (reader == nullptr) {
      // Scales, and sources of rules, may lie in any shard.
      const bool has_choice =
          wanted != nullptr && !HasArithmetic(options) && options.rules.empty();
      HAULWAY_ASSIGN(reader, has_choice && IsOfShards(*found.format)
                                 ? OpenShardsWith(found.source, options, wanted)
                                 : found.format->open(found.source, options));
    }
    // Formats that can be encrypted report themselves why the key does not
    // match, as do checkpoints in several files.
    const FormatEntry& entry = EntryOf(reader->index().format);
    HAULWAY_TRY(CheckTaken(entry, options));
    if (!options.key.empty() && !entry.can.encrypt &&
        !IsOfShards(*found.format)) {
      return Status(Code::kAuth,
                    fmt::format("a key was given, but {} files are never "
                                "encrypted",
                                entry.name));
    }
    if (!options.alone) HAULWAY_TRY(RefuseDeltaShard(*reader));
    std::optional<Dequantized> dequantized;
    if (HasArithmetic(options)) HAULWAY_TRY(CheckArithmetic(options));
    const uint64_t stored_bytes = reader->source()->size();
    if (options.dequantize) {
      HAULWAY_ASSIGN(auto plain,
                     arithmetic::Dequantize(std::move(reader), *found.source,
                                            options.dequantized_dtype));
      reader = std::move(plain.reader);
      dequantized = std::move(plain.dequantized);
    }
    std::string computed_by = ComputedBy(options);
    std::vector<std::shared_ptr<const Checkpoint>> adapters_from;
    Merged merged;
    if (!options.lora.empty()) {
      std::vector<arithmetic::Adapter> adapters;
      for (const LoraAdapter& one : options.lora) {
        HAULWAY_ASSIGN(OpenedAdapter read, ReadAdapter(one, options));
        if (read.adapter.config.ok()) computed_by += *read.adapter.config;
        adapters.push_back(std::move(read.adapter));
        adapters_from.push_back(std::move(read.checkpoint));
      }
      HAULWAY_ASSIGN(
          merged, arithmetic::MergeAdapters(*found.source, adapters, &reader));
    }
    uint64_t ruled = 0;
    if (!options.rules.empty()) {
      auto applied = ApplyRules(options, *found.source, &computed_by, &reader);
      if (!applied.ok()) {
        return WithRules(std::move(applied).status(), options.rules.name);
      }
      ruled = *applied;
    }
    const auto made = std::make_shared<Checkpoint>(std::move(reader));
    made->state_->allows_casts = options.raw;
    made->state_->opened = found.source;
    made->state_->dequantized = std::move(dequantized);
    made->state_->merged = merged;
    made->state_->computed_by = std::move(computed_by);
    made->state_->adapters = std::move(adapters_from);
    made->state_->rules = options.rules;
    made->state_->ruled = ruled;
    if (HasArithmetic(options) || !options.rules.empty()) {
      made->state_->computed_from = stored_bytes;
    }
    const auto asked = found.source->remote_stats();
    if (asked.has_value()) made->state_->opening = *asked;
    return std::shared_ptr<const Checkpoint>(made);
  };
  auto checkpoint = OrNoMemory(open);
  if (MayPass(checkpoint) && !source->Look({}).is_server()) {
    for (int left = retries; MayPass(checkpoint) && left > 0; --left) {
      checkpoint = OrNoMemory(open);
    }
  }
  if (!checkpoint.ok()) return std::move(checkpoint).status().Of(name);
  return checkpoint;
}

Result<std::shared_ptr<const Checkpoint>> Checkpoint::Open(
    std::string_view uri, const OpenOptions& options) {
  HAULWAY_ASSIGN(auto source, OpenSource(uri));
  return Open(std::move(source), options);
}

const TensorInfo* Checkpoint::Find(std::string_view name) const {
  const LongVector<Entry>& all = entries();
  std::call_once(state_->filled, [&] {
    try {
      state_->names.Reserve(all.size());
    } catch (const std::bad_alloc&) {
      return;
    }
    for (uint32_t i = 0; i < all.size(); ++i) {
      state_->names.Add(all[i].name, i, NameOf{all});
    }
    state_->has_index = true;
  });
  if (!state_->has_index) {
    const auto found = std::ranges::find(all, name, &Entry::name);
    return found == all.end() ? nullptr : &index().tensors[found->tensor];
  }
  const uint32_t row = state_->names.Find(name, NameOf{all});
  if (row == NameIndex::kNone) return nullptr;
  return &index().tensors[all[row].tensor];
}

Status Checkpoint::CheckCast(uint32_t tensor) const {
  if (state_->allows_casts) return Status();
  return OrNoMemory([&]() -> Status {
    HAULWAY_TRY(WithMethod(state_->Scaled(index()).CheckCast(tensor)));
    return CheckDeclared(tensor);
  });
}

Status Checkpoint::CheckDeclared(uint32_t tensor) const {
  const DType dtype = index().tensors[tensor].dtype;
  if (state_->dequantized.has_value() || ItemBytes(dtype) != 1 ||
      Describe(dtype).kind != DTypeKind::kFloat) {
    return Status();
  }
  const Result<arithmetic::Declaration>& declared = state_->Declared();
  if (!declared.ok()) return declared.status();
  if (declared->method.empty()) return Status();
  Status status(
      Code::kUnsupported,
      "a cast would change what its numbers mean, and its scales are not in "
      "this file: dequantize the whole model (the option dequantize, which "
      "load and convert have), or cast the stored numbers (the option raw)");
  const auto named = std::ranges::find(entries(), tensor, &Entry::tensor);
  if (named != entries().end()) {
    status = std::move(status).In(Quote(named->name));
  }
  return WithMethod(std::move(status));
}

Status Checkpoint::CheckCastOfStorage(uint32_t storage) const {
  if (state_->allows_casts) return Status();
  return OrNoMemory([&]() -> Status {
    HAULWAY_TRY(
        WithMethod(state_->Scaled(index()).CheckCastOfStorage(storage)));
    const auto& tensors = index().tensors;
    for (uint32_t row = 0; row < tensors.size(); ++row) {
      if (tensors[row].storage == storage) HAULWAY_TRY(CheckDeclared(row));
    }
    return Status();
  });
}

Status Checkpoint::WithMethod(Status status) const {
  if (status.ok()) return status;
  const Result<arithmetic::Declaration>& declared = state_->Declared();
  if (!declared.ok() || declared->method.empty()) return status;
  return std::move(status).In(
      fmt::format("a model quantized by {}", Escape(declared->method)));
}

const std::shared_ptr<const ByteSource>& Checkpoint::opened() const {
  return state_->opened;
}

const std::optional<Dequantized>& Checkpoint::dequantized() const {
  return state_->dequantized;
}

const Merged& Checkpoint::merged() const { return state_->merged; }

uint64_t Checkpoint::ruled() const { return state_->ruled; }

Result<std::string> Checkpoint::Fingerprint() const {
  return OrNoMemory([&]() -> Result<std::string> {
    const ByteSource& file =
        state_->opened == nullptr ? source() : *state_->opened;
    if (!state_->rules.functions.empty()) {
      return Status(Code::kUnsupported,
                    "nothing tells whether a function of a rule changes from "
                    "one run to the next: expected rules without 'apply'");
    }
    HAULWAY_ASSIGN(std::string text,
                   FingerprintOfFiles(index(), source(), file));
    for (const auto& adapter : state_->adapters) {
      HAULWAY_ASSIGN(const std::string one, adapter->Fingerprint());
      text += one;
    }
    if (state_->dequantized.has_value() || !state_->rules.empty()) {
      HAULWAY_ASSIGN(const std::string declared,
                     arithmetic::ReadDeclarationText(file));
      text += declared;
    }
    return text + state_->computed_by;
  });
}

uint64_t Checkpoint::computed_from() const { return state_->computed_from; }

Result<std::optional<Quantization>> Checkpoint::DescribeQuantization() const {
  using Described = std::optional<Quantization>;
  return OrNoMemory([&]() -> Result<Described> {
    if (state_->dequantized.has_value()) {
      return Described(state_->dequantized->quantization);
    }
    const ByteSource& beside =
        state_->opened == nullptr ? source() : *state_->opened;
    return arithmetic::DescribeQuantization(*reader_, beside);
  });
}

RemoteStats Checkpoint::TakeOpeningStats() const {
  RemoteStats taken;
  std::call_once(state_->opening_taken, [&] { taken = state_->opening; });
  return taken;
}

Result<Buffer> Checkpoint::ReadStorage(uint32_t row) const {
  return haulway::ReadStorage(*reader_, row);
}

Status Checkpoint::Read(const TensorInfo& tensor,
                        std::span<std::byte> out) const {
  return ReadTensor(*reader_, tensor, out);
}

Status Checkpoint::ReadStorageRange(uint32_t row, uint64_t offset,
                                    std::span<std::byte> out) const {
  return haulway::ReadStorageRange(*reader_, row, offset, out);
}

}  // namespace haulway
