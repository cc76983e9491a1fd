// Design: the keys of an adapter are sorted by module (adapter_keys.h), each
// module becomes a step of the weight that it changes, and a weight with steps
// is one that is computed, as a quantized one is. So a merged model is read,
// sliced and written by the code that dequantizes, and may lie over a
// dequantized one.
//
// A tensor under the name of one of the model's takes its place: PEFT writes
// such for `modules_to_save`, for biases, and, with `base_layer` in the name,
// for embeddings that have factors, too. PEFT replaces when it loads, and adds
// when it merges; so what replaces comes first.
//
// A model whose head has the weights of its embeddings stores these once. An
// adapter of either is merged into them, as PEFT does. One that replaces either
// gives the result a head of its own.

#include "arithmetic/find_merges.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "arithmetic/adapter_config.h"
#include "arithmetic/adapter_keys.h"
#include "arithmetic/declaration.h"
#include "arithmetic/json_fields.h"
#include "arithmetic/shapes.h"
#include "base/name_index.h"
#include "base/text.h"
#include "tensor/scaled_tensors.h"
#include "tensor/strided.h"

namespace haulway::arithmetic {

namespace {

constexpr std::string_view kWeight = ".weight";

// Names of embeddings, which may be the weights of `lm_head`, too.
constexpr std::string_view kEmbeddings[] = {"embed_tokens.weight", "wte.weight",
                                            "word_embeddings.weight"};
// The ends of names of classes that have a head.
constexpr std::string_view kWithHead[] = {"ForCausalLM", "LMHeadModel",
                                          "ForConditionalGeneration"};
constexpr std::string_view kHead = "lm_head";
constexpr std::string_view kHeadWeight = "lm_head.weight";

// The steps of one weight.
struct Target {
  uint32_t entry = 0;
  std::optional<MergeStep> replacement = std::nullopt;
  // The adapter whose tensor has the plain name of the weight.
  const Adapter* owner = nullptr;
  std::vector<MergeStep> steps = {};
};

class MergeFinder {
 public:
  MergeFinder(const FormatReader& reader, const ByteSource& beside)
      : index_(reader.index()), beside_(beside), scaled_(index_) {
    names_.Reserve(index_.entries.size());
    for (uint32_t i = 0; i < index_.entries.size(); ++i) {
      names_.Add(index_.entries[i].name, i, NameOf{index_});
      const uint32_t storage = InfoOf(i).storage;
      if (storage != kNoStorage) in_storage_[storage].push_back(i);
    }
  }

  Status Add(const Adapter& adapter) {
    adapter_ = &adapter;
    HAULWAY_ASSIGN(keys_, AdapterKeys::Sort(adapter.reader));
    HAULWAY_TRY(adapter.config.status());
    auto config = ParseAdapterConfig(*adapter.config);
    if (!config.ok()) {
      return std::move(config).status().Of("adapter_config.json");
    }
    config_ = &*config;
    HAULWAY_TRY(GuessSquares());
    for (const auto& [name, entry] : keys_->whole()) {
      HAULWAY_TRY(AddWhole(name, entry));
    }
    // As PEFT, the embeddings before the head that they may be tied to.
    for (const bool is_head : {false, true}) {
      for (const auto& [name, module] : keys_->modules()) {
        if ((name == kHead) == is_head) HAULWAY_TRY(AddModule(module));
      }
    }
    return Status();
  }

  Result<FoundWeights> Finish() {
    FoundWeights made;
    made.weight_of.assign(index_.entries.size(), kIsKept);
    for (auto& [tensor, target] : targets_) {
      HAULWAY_TRY(Make(target, &made));
    }
    if (head_.entry != kNoEntry) HAULWAY_TRY(AddHead(&made));
    return made;
  }

 private:
  using Part = AdapterModule::Part;
  using enum AdapterModule::Part;

  struct NameOf {
    const CheckpointIndex& index;
    std::string_view operator()(uint32_t i) const {
      return index.entries[i].name;
    }
  };

  const TensorInfo& InfoOf(uint32_t entry) const {
    return index_.tensors[index_.entries[entry].tensor];
  }
  uint32_t Find(std::string_view name) const {
    return names_.Find(name, NameOf{index_});
  }

  // Returns the entry of the weight with this name, or kNoEntry. A model may be
  // stored without the part of its path that names it ("transformer." of
  // GPT-2), and without weights that are those of its embeddings.
  Result<uint32_t> FindTarget(const std::string& name) {
    uint32_t found = Find(name);
    const size_t dot = name.find('.');
    if (found == kNoEntry && dot != name.npos) {
      found = Find(std::string_view(name).substr(dot + 1));
    }
    if (found != kNoEntry || name != kHeadWeight) return found;
    return FindEmbeddings();
  }

  // Returns the entry of the embeddings if they are the weights of the head,
  // too; otherwise kNoEntry. A head that is stored has weights of its own,
  // unless config.json says otherwise.
  Result<uint32_t> FindEmbeddings() {
    if (embeddings_.has_value()) return *embeddings_;
    HAULWAY_ASSIGN(const std::string config,
                   ReadBeside(beside_, "config.json"));
    bool is_tied = Find(kHeadWeight) == kNoEntry;
    if (!config.empty()) {
      JsonObject json;
      HAULWAY_ASSIGN(const auto object, json.Parse(config));
      HAULWAY_TRY(ReadFlag(object, "tie_word_embeddings", &is_tied));
      is_tied = is_tied && HasHead(object);
    }
    embeddings_ = kNoEntry;
    for (uint32_t i = 0; is_tied && i < index_.entries.size(); ++i) {
      const std::string_view name = index_.entries[i].name;
      const bool is_one = std::ranges::any_of(
          kEmbeddings, [&](auto ending) { return name.ends_with(ending); });
      if (!is_one) continue;
      is_tied = *embeddings_ == kNoEntry;  // Of several, none is.
      embeddings_ = is_tied ? i : kNoEntry;
    }
    return *embeddings_;
  }

  // Returns whether a model of this config.json computes words, as far as it
  // says.
  static bool HasHead(simdjson::dom::object config) {
    simdjson::dom::array classes;
    if (config["architectures"].get_array().get(classes)) return true;
    return std::ranges::any_of(classes, [](simdjson::dom::element one) {
      std::string_view name;
      return !one.get_string().get(name) &&
             std::ranges::any_of(kWithHead, [&](std::string_view ending) {
               return name.ends_with(ending);
             });
    });
  }

  Status Missing(uint32_t key, std::string_view name) const {
    if (scaled_.weight_count() != 0) {
      return WithMethod(keys_->Wrong(
          key,
          fmt::format("the model has no plain weight {}, and it is "
                      "quantized: dequantize it (the option dequantize)",
                      Quote(name)),
          Code::kUnsupported));
    }
    return keys_->Wrong(key, fmt::format("the model has no {}", Quote(name)));
  }

  // Adds the method of a quantized model to a refusal.
  Status WithMethod(Status status) const {
    const auto declared = ReadDeclaration(beside_);
    if (!declared.ok() || declared->method.empty()) return status;
    return std::move(status).In(
        fmt::format("a model quantized by {}", Escape(declared->method)));
  }

  // Returns the target with this name, which the adapter's entry `key` changes.
  Result<Target*> TargetOf(const std::string& name, uint32_t key) {
    HAULWAY_ASSIGN(const uint32_t entry, FindTarget(name));
    if (entry == kNoEntry) return Missing(key, name);
    const uint32_t tensor = index_.entries[entry].tensor;
    const auto found = targets_.find(tensor);
    if (found != targets_.end()) return &found->second;
    Status status = CheckPlain(entry);
    if (!status.ok()) {
      return WithMethod(
          std::move(status).In(Quote(index_.entries[entry].name)));
    }
    Target& target = targets_[tensor];
    target.entry = entry;
    return &target;
  }

  Status CheckPlain(uint32_t entry) const {
    const TensorInfo& info = InfoOf(entry);
    HAULWAY_TRY(scaled_.CheckPlain(index_.entries[entry].tensor));
    if (info.dtype != DType::kF32 && info.dtype != DType::kF16 &&
        info.dtype != DType::kBF16) {
      return Status(Code::kUnsupported,
                    fmt::format("adapters cannot be merged into dtype {}: "
                                "expected F32, F16 or BF16; dequantize a "
                                "quantized model (the option dequantize)",
                                Name(info.dtype)));
    }
    if (IsInRows(info)) return Status();
    return Status(Code::kUnsupported,
                  "adapters cannot be merged into a weight that is not stored "
                  "densely, in rows");
  }

  Status AddWhole(const std::string& key, uint32_t entry) {
    std::string name = key;
    RemoveComponent(".base_layer.", &name);
    const bool is_base = name != key;
    HAULWAY_ASSIGN(auto* target, TargetOf(name, entry));
    const TensorInfo info = keys_->TensorOf(entry).info();
    HAULWAY_TRY(CheckShape(entry, info.shape, InfoOf(target->entry).shape));
    if (is_base) {
      target->replacement = MergeStep{.kind = MergeStep::Kind::kReplace,
                                      .value = keys_->TensorOf(entry)};
      return Status();
    }
    HAULWAY_ASSIGN(const bool is_shared, IsShared(target->entry));
    if (is_shared) {
      if (Find(kHeadWeight) != kNoEntry) return StoredTwice(entry);
      head_.entry = *embeddings_;
      if (name == kHeadWeight) target = &head_;
    }
    if (target->owner != nullptr) {
      return keys_->Wrong(entry,
                          fmt::format("two adapters replace the weight: {} "
                                      "does, too",
                                      target->owner->name));
    }
    target->owner = adapter_;
    target->replacement = MergeStep{.kind = MergeStep::Kind::kReplace,
                                    .value = keys_->TensorOf(entry)};
    return Status();
  }

  // Returns whether the head and the embeddings share this weight.
  Result<bool> IsShared(uint32_t entry) {
    HAULWAY_ASSIGN(const uint32_t embeddings, FindEmbeddings());
    return embeddings != kNoEntry &&
           (entry == embeddings || entry == Find(kHeadWeight));
  }

  Status StoredTwice(uint32_t key) const {
    return keys_->Wrong(
        key,
        "the model stores two copies of the weight that it changes, "
        "which are to be one (tie_word_embeddings)",
        Code::kUnsupported);
  }

  // Adds the head of a model that has none of its own in its file: what an
  // adapter says that it is, or the embeddings as they were.
  Status AddHead(FoundWeights* made) {
    if (is_head_changed_) {
      return Status(Code::kUnsupported,
                    "one adapter changes the weights that the head shares "
                    "with the embeddings, and one replaces them")
          .In(Quote(kHeadWeight));
    }
    uint32_t number = kIsKept;
    if (head_.replacement.has_value()) {
      Weight weight = WeightOf(head_);
      number = static_cast<uint32_t>(made->weights.size());
      weight.name = kHeadWeight;
      made->weights.push_back(std::move(weight));
    }
    made->added.push_back({std::string(kHeadWeight), head_.entry, number});
    return Status();
  }

  static Status NoFit(std::span<const int64_t> found,
                      std::string_view expected) {
    return Status(Code::kMismatch, fmt::format("it has shape {}: expected {}",
                                               ShapeText(found), expected));
  }

  Status CheckShape(uint32_t entry, std::span<const int64_t> found,
                    std::span<const int64_t> expected) const {
    if (std::ranges::equal(found, expected)) return Status();
    return NoFit(found, ShapeText(expected)).In(Quote(keys_->KeyOf(entry)));
  }

  // Square weights of linear layers do not show how they are stored. PEFT
  // corrects `fan_in_fan_out` by the class of each layer; other layers of the
  // adapter show that class.
  Status GuessSquares() {
    bool has_plain = false;
    bool has_transposed = false;
    for (const auto& [name, module] : keys_->modules()) {
      if (!module.has(kA) || !module.has(kB) || name == kHead) continue;
      HAULWAY_ASSIGN(const uint32_t entry,
                     FindTarget(fmt::format("{}{}", name, kWeight)));
      if (entry == kNoEntry) continue;
      const std::span<const int64_t> shape = InfoOf(entry).shape;
      const auto a = keys_->TensorOf(module.parts[kA]).info().shape;
      if (shape.size() != 2 || a.size() != 2 || shape[0] == shape[1]) continue;
      has_plain = has_plain || a[1] == shape[1];
      has_transposed = has_transposed || a[1] == shape[0];
    }
    are_squares_transposed_ =
        has_transposed || (config_->is_transposed && !has_plain);
    return Status();
  }

  Status AddModule(const AdapterModule& module) {
    const Part a = module.is_embedding() ? kEmbeddingA : kA;
    const Part b = module.is_embedding() ? kEmbeddingB : kB;
    const auto first = std::ranges::find_if(
        module.parts, [](uint32_t part) { return part != kNoEntry; });
    const auto half = [&](std::string_view missing) {
      return keys_->Wrong(*first,
                          fmt::format("the module's {} is not there", missing));
    };
    if (!module.has(a)) return half("lora_A");
    if (!module.has(b)) return half("lora_B");
    if (module.is_embedding() && (module.has(kA) || module.has(kB))) {
      return keys_->Wrong(*first, "the module has factors of two kinds");
    }
    if (config_->has_magnitudes != module.has(kMagnitude)) {
      return config_->has_magnitudes
                 ? half("lora_magnitude_vector, which use_dora asks for,")
                 : keys_->Wrong(module.parts[kMagnitude],
                                "use_dora is not set in adapter_config.json");
    }
    HAULWAY_ASSIGN(
        Target* const target,
        TargetOf(module.name + std::string(kWeight), module.parts[a]));
    if (target->owner != nullptr) {
      return keys_->Wrong(
          module.parts[a],
          fmt::format("the weight that it changes is replaced by a "
                      "tensor of {}",
                      target->owner->name),
          Code::kUnsupported);
    }
    HAULWAY_ASSIGN(const bool is_shared, IsShared(target->entry));
    if (is_shared) {
      const uint32_t head = Find(kHeadWeight);
      const auto tied = TiedTo(*embeddings_);
      if (head != kNoEntry && std::ranges::find(tied, head) == tied.end()) {
        return StoredTwice(module.parts[a]);
      }
      is_head_changed_ = true;
    }
    MergeStep step;
    step.scale = ScaleOf(module.name);
    HAULWAY_TRY(Fit(module, a, b, InfoOf(target->entry).shape, &step));
    target->steps.push_back(std::move(step));
    return module.has(kBias) ? AddBias(module) : Status();
  }

  float ScaleOf(std::string_view module) const {
    return static_cast<float>(config_->ScaleOf(module) * adapter_->weight);
  }

  // Fits the factors to a weight of this shape.
  Status Fit(const AdapterModule& module, Part a, Part b,
             std::span<const int64_t> shape, MergeStep* step) const {
    const TensorInfo left = keys_->TensorOf(module.parts[b]).info();
    const TensorInfo right = keys_->TensorOf(module.parts[a]).info();
    const uint64_t rank = config_->RankOf(module.name);
    const auto is_rank = [&](int64_t size) {
      return static_cast<uint64_t>(size) == rank;
    };
    if (right.shape.size() < 2 || !is_rank(right.shape[0])) {
      return NoFit(right.shape,
                   fmt::format("[{}, ...], as adapter_config.json says", rank))
          .In(Quote(keys_->KeyOf(module.parts[a])));
    }
    // The module's outputs and inputs.
    const int64_t outputs = left.shape.empty() ? 0 : left.shape[0];
    const auto inputs = right.shape.subspan(1);
    const bool fits_plain =
        !module.is_embedding() && shape.size() == right.shape.size() &&
        shape[0] == outputs && std::ranges::equal(shape.subspan(1), inputs);
    const bool fits_transposed = shape.size() == 2 && inputs.size() == 1 &&
                                 shape[0] == inputs[0] && shape[1] == outputs;
    step->is_transposed =
        fits_transposed && (!fits_plain || are_squares_transposed_);
    const bool is_left =
        left.shape.size() == right.shape.size() && is_rank(left.shape[1]) &&
        std::ranges::all_of(left.shape.subspan(2),
                            [](int64_t size) { return size == 1; });
    if (!is_left) {
      return NoFit(left.shape, fmt::format("a factor of rank {}", rank))
          .In(Quote(keys_->KeyOf(module.parts[b])));
    }
    if (!fits_plain && !fits_transposed) {
      return Status(Code::kMismatch,
                    fmt::format("factors of shape {} and {} do not fit a "
                                "weight of {}",
                                ShapeText(right.shape), ShapeText(left.shape),
                                ShapeText(shape)))
          .In(Quote(keys_->KeyOf(module.parts[a])));
    }
    step->rank = rank;
    step->left = keys_->TensorOf(module.parts[step->is_transposed ? a : b]);
    step->right = keys_->TensorOf(module.parts[step->is_transposed ? b : a]);
    if (module.has(kMagnitude)) {
      step->magnitude = keys_->TensorOf(module.parts[kMagnitude]);
      const std::span<const int64_t> found = step->magnitude.info().shape;
      if (ElementsOf(found) != static_cast<uint64_t>(outputs)) {
        return NoFit(found, fmt::format("{} numbers", outputs))
            .In(Quote(keys_->KeyOf(module.parts[kMagnitude])));
      }
    }
    step->rounds_product = module.is_embedding() && !step->magnitude;
    return Status();
  }

  Status AddBias(const AdapterModule& module) {
    const uint32_t key = module.parts[kBias];
    HAULWAY_ASSIGN(Target* const target, TargetOf(module.name + ".bias", key));
    HAULWAY_TRY(CheckShape(key, keys_->TensorOf(key).info().shape,
                           InfoOf(target->entry).shape));
    target->steps.push_back({.kind = MergeStep::Kind::kVector,
                             .value = keys_->TensorOf(key),
                             .scale = ScaleOf(module.name)});
    return Status();
  }

  // Returns the entries that are this tensor.
  std::vector<uint32_t> TiedTo(uint32_t entry) const {
    const TensorInfo& info = InfoOf(entry);
    std::vector<uint32_t> tied;
    for (const uint32_t other : in_storage_.at(info.storage)) {
      const TensorInfo& of = InfoOf(other);
      if (of.storage_offset == info.storage_offset && of.dtype == info.dtype &&
          std::ranges::equal(of.shape, info.shape) &&
          std::ranges::equal(of.strides, info.strides)) {
        tied.push_back(other);
      }
    }
    return tied;
  }

  Weight WeightOf(const Target& target) const {
    const TensorInfo& info = InfoOf(target.entry);
    Weight weight;
    weight.name = index_.entries[target.entry].name;
    weight.shape.assign(info.shape.begin(), info.shape.end());
    weight.nbytes = info.nbytes;
    weight.tensors[static_cast<size_t>(Role::kRoot)] =
        index_.entries[target.entry].tensor;
    weight.arrangement = Arrangement::kMerged;
    weight.terms.to = info.dtype;
    weight.elements = ElementsOf(info.shape);
    weight.rows =
        info.shape.size() < 2 ? 1 : static_cast<uint64_t>(info.shape[0]);
    weight.terms.columns = weight.elements / weight.rows;
    if (target.replacement.has_value()) {
      weight.steps.push_back(*target.replacement);
    }
    weight.steps.insert(weight.steps.end(), target.steps.begin(),
                        target.steps.end());
    return weight;
  }

  Status Make(const Target& target, FoundWeights* made) const {
    // A target that only gave its place to the head has nothing to do.
    const bool is_idle = target.steps.empty() && !target.replacement;
    if (is_idle || InfoOf(target.entry).nbytes == 0) return Status();
    Weight weight = WeightOf(target);
    const auto number = static_cast<uint32_t>(made->weights.size());
    for (const uint32_t entry : TiedTo(target.entry)) {
      made->weight_of[entry] = number;
    }
    HAULWAY_TRY(CheckOverlaps(target.entry, *made));
    made->weights.push_back(std::move(weight));
    return Status();
  }

  // Fails if the weight shares memory with another tensor that stays as it is.
  Status CheckOverlaps(uint32_t entry, const FoundWeights& made) const {
    const TensorInfo& info = InfoOf(entry);
    const uint64_t end = info.storage_offset + ElementsOf(info.shape);
    for (const uint32_t other : in_storage_.at(info.storage)) {
      const TensorInfo& of = InfoOf(other);
      if (made.weight_of[other] == made.weight_of[entry] || of.nbytes == 0) {
        continue;
      }
      const uint64_t item = ItemBytes(info.dtype);
      const uint64_t other_item = ItemBytes(of.dtype);
      const uint64_t other_end =
          of.storage_offset + ElementExtent(of.shape, of.strides).value_or(0);
      if (of.storage_offset * other_item < end * item &&
          info.storage_offset * item < other_end * other_item) {
        return Status(Code::kUnsupported,
                      fmt::format("adapters cannot be merged into a weight "
                                  "that shares memory with {}",
                                  Quote(index_.entries[other].name)))
            .In(Quote(index_.entries[entry].name));
      }
    }
    return Status();
  }

  const CheckpointIndex& index_;
  const ByteSource& beside_;
  const ScaledTensors scaled_;
  NameIndex names_;
  std::map<uint32_t, std::vector<uint32_t>> in_storage_;
  std::map<uint32_t, Target> targets_;  // By row of index.tensors.
  std::optional<uint32_t> embeddings_;  // What FindEmbeddings() returned.
  // The head, if it gets weights of its own; its entry is that of the
  // embeddings.
  Target head_ = {.entry = kNoEntry};
  bool is_head_changed_ = false;  // Together with the embeddings.

  // These describe the adapter that is being added.
  const Adapter* adapter_ = nullptr;
  std::optional<AdapterKeys> keys_;
  const AdapterConfig* config_ = nullptr;
  bool are_squares_transposed_ = false;
};

}  // namespace

Result<FoundWeights> FindMerges(const FormatReader& reader,
                                const ByteSource& beside,
                                std::span<const Adapter> adapters) {
  MergeFinder finder(reader, beside);
  for (const Adapter& adapter : adapters) {
    Status status = finder.Add(adapter);
    if (!status.ok()) return std::move(status).Of(adapter.name);
  }
  return finder.Finish();
}

}  // namespace haulway::arithmetic
