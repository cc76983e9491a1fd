// Design: each function follows what the program writes last, and what its own
// reader needs; docs/runs.md lists both. Names say most of it. Small files are
// read where names do not: which step a trainer's state is of, which shards an
// index names, how many ranks DeepSpeed had. Whether the files themselves are
// whole is checked for all layouts together (sound_entry.h).
//
// Not taken: a check by what each program's own loader needs for a given model,
// since that is in the program's configuration, not in the folder.

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/text.h"
#include "checkpoint/choose_model.h"
#include "checkpoint/sharded_index.h"
#include "haulway/options.h"
#include "io/model_names.h"
#include "runs/run_layout.h"
#include "runs/sound_entry.h"

namespace haulway {

namespace {

namespace dom = simdjson::dom;

Status Wrong(std::string_view what) { return Status(Code::kCorrupt, what); }

// The names in a folder, without it, and what can be asked about them.
class Names {
 public:
  Names(const RunFolder& run, std::string_view folder) {
    for (std::string& name : run.Children(folder)) {
      (run.IsFolder(name) ? folders_ : files_).emplace(LastPart(name));
    }
  }

  bool has(std::string_view file) const { return files_.contains(file); }
  bool has_folder(std::string_view name) const {
    return folders_.contains(name);
  }
  template <class Test>
  bool has_file_with(const Test& test) const {
    return std::ranges::any_of(files_, test);
  }
  template <class Test>
  bool has_folder_with(const Test& test) const {
    return std::ranges::any_of(folders_, test);
  }
  const std::set<std::string, std::less<>>& files() const { return files_; }
  const std::set<std::string, std::less<>>& folders() const { return folders_; }

 private:
  std::set<std::string, std::less<>> files_, folders_;
};

// Returns the number between `before` and `after`, which are all of the name.
std::optional<uint64_t> NumberBetween(std::string_view name,
                                      std::string_view before,
                                      std::string_view after) {
  if (!name.starts_with(before) || !name.ends_with(after) ||
      name.size() < before.size() + after.size()) {
    return std::nullopt;
  }
  name.remove_prefix(before.size());
  name.remove_suffix(after.size());
  return WholeNumberOf(name);
}

// Returns which of the numbers 0 to `count` - 1 is the first that is not there;
// `count` 0: up to the largest.
std::optional<uint64_t> FirstGap(const std::set<uint64_t>& numbers,
                                 uint64_t count = 0) {
  uint64_t next = 0;
  for (const uint64_t number : numbers) {
    if (number != next) return next;
    ++next;
  }
  if (next < count) return next;
  return std::nullopt;
}

// Returns why the shards of an index in a folder are not all there.
Status CheckIndex(const RunFolder& run, const std::string& folder,
                  const std::string& index) {
  const ParseLimits limits;
  HAULWAY_ASSIGN(
      const std::string json,
      run.Read(fmt::format("{}/{}", folder, index), limits.max_header_bytes));
  const auto parsed = ParseShardedIndex(std::as_bytes(std::span(json)),
                                        Strictness::kLenient, limits);
  if (!parsed.ok()) {
    return parsed.status().code() == Code::kUnsupported ? Status()
                                                        : parsed.status();
  }
  for (const std::string& shard : parsed->files) {
    if (run.Find(fmt::format("{}/{}", folder, shard)) == nullptr) {
      return Lacks(fmt::format("{}, which {} names", Quote(shard), index));
    }
  }
  return Status();
}

// Returns why a folder has no model as transformers and accelerate save it.
Status CheckModel(const RunFolder& run, const std::string& folder,
                  const Names& names) {
  bool is_there = false;
  for (const std::string& name : names.files()) {
    if (IsIndexName(name)) {
      HAULWAY_TRY(CheckIndex(run, folder, name));
      is_there = true;
    }
    is_there =
        is_there ||
        (MayBeModel(name) && !name.starts_with("optimizer") &&
         !name.starts_with("scheduler") && !name.starts_with("rng_state") &&
         !name.starts_with("random_states") &&
         !name.starts_with("training_args"));
  }
  for (const std::string& name : names.folders()) {
    // A directory of torch.distributed.checkpoint, or DeepSpeed's.
    is_there = is_there || name.starts_with("pytorch_model") ||
               name.starts_with("global_step");
    if (name.starts_with("global_step")) {
      HAULWAY_TRY(
          CheckDeepSpeed(run, {.name = fmt::format("{}/{}", folder, name)}));
    }
  }
  return is_there ? Status() : Lacks("the model");
}

// Returns why the files "STEM<rank>ENDING" are not those of all ranks.
Status CheckRanks(const Names& names, std::string_view stem,
                  std::string_view ending) {
  std::set<uint64_t> ranks;
  for (const std::string& name : names.files()) {
    const auto rank = NumberBetween(name, stem, ending);
    if (rank.has_value()) ranks.insert(*rank);
  }
  const auto gap = FirstGap(ranks);
  if (!gap.has_value()) return Status();
  return Lacks(fmt::format("{}{}{}", stem, *gap, ending));
}

bool IsStates(std::string_view name) { return name.ends_with("_states.pt"); }

// The ranks that a name of DeepSpeed's has: of data and of model parallelism.
struct DeepSpeedRanks {
  uint64_t data = 0;
  uint64_t model = 0;
};

// Parses "[bf16_]zero_pp_rank_1_mp_rank_00_optim_states.pt".
std::optional<DeepSpeedRanks> RanksOf(std::string_view name,
                                      std::string_view ending) {
  if (name.starts_with("bf16_")) name.remove_prefix(5);
  if (name.starts_with("fp16_")) name.remove_prefix(5);
  constexpr std::string_view kModel = "_mp_rank_";
  const size_t at = name.find(kModel);
  if (at == name.npos) return std::nullopt;
  const auto data = NumberBetween(name.substr(0, at), "zero_pp_rank_", "");
  const auto model = NumberBetween(name.substr(at), kModel, ending);
  if (!data.has_value() || !model.has_value()) return std::nullopt;
  return DeepSpeedRanks{*data, *model};
}

// Returns a number that a model file of DeepSpeed's has; 0 if it has none.
Result<uint64_t> CountIn(const RunFolder& run, const std::string& file,
                         std::string_view key) {
  const auto number = NumberIn(run, file, key);
  if (!number.ok()) {
    if (!IsDamage(number.status())) return uint64_t{0};
    return number.status();
  }
  return static_cast<uint64_t>(std::max<int64_t>(number->value_or(0), 0));
}

}  // namespace

Status CheckTorchtitan(const RunFolder& run, const FoundEntry& entry) {
  const Names names(run, entry.name);
  constexpr std::string_view kIndex = "model.safetensors.index.json";
  if (names.has(".metadata")) return Status();
  if (names.has(kIndex)) {
    return CheckIndex(run, entry.name, std::string(kIndex));
  }
  return Lacks(".metadata");
}

Status CheckTrainer(const RunFolder& run, const FoundEntry& entry) {
  const Names names(run, entry.name);
  constexpr std::string_view kState = "trainer_state.json";
  if (!names.has(kState)) return Lacks(kState);
  HAULWAY_ASSIGN(const std::string json,
                 ReadJson(run, fmt::format("{}/{}", entry.name, kState)));
  dom::parser parser;
  uint64_t step = 0;
  if (parser.parse(json)["global_step"].get(step) != simdjson::SUCCESS) {
    return Wrong("trainer_state.json has no global_step");
  }
  if (step != *entry.step) {
    return Wrong(fmt::format("trainer_state.json is of step {}", step));
  }
  HAULWAY_TRY(CheckModel(run, entry.name, names));
  const auto is_optimizer = [](const std::string& name) {
    return name.starts_with("optimizer") || name.starts_with("global_step");
  };
  if ((names.has("scheduler.pt") || names.has("scheduler.bin")) &&
      !names.has_file_with(is_optimizer) &&
      !names.has_folder_with(is_optimizer)) {
    return Lacks("optimizer.pt");
  }
  return CheckRanks(names, "rng_state_", ".pth");
}

std::string BestOfTrainer(const RunFolder& run, const FoundEntry& entry) {
  const auto json =
      ReadJson(run, fmt::format("{}/trainer_state.json", entry.name));
  dom::parser parser;
  std::string_view path;
  if (!json.ok() || parser.parse(*json)["best_model_checkpoint"].get(path) !=
                        simdjson::SUCCESS) {
    return "";
  }
  // The run may have been moved since.
  while (path.ends_with('/')) path.remove_suffix(1);
  return std::string(LastPart(path));
}

Status CheckAccelerate(const RunFolder& run, const FoundEntry& entry) {
  const Names names(run, entry.name);
  HAULWAY_TRY(CheckModel(run, entry.name, names));
  const auto is_optimizer = [](const std::string& name) {
    return name.starts_with("optimizer") || name.starts_with("global_step") ||
           name.starts_with("pytorch_model");
  };
  if (!names.has_file_with(is_optimizer) &&
      !names.has_folder_with(is_optimizer)) {
    return Lacks("optimizer.bin");
  }
  if (!names.has("random_states_0.pkl")) return Lacks("random_states_0.pkl");
  return CheckRanks(names, "random_states_", ".pkl");
}

Status CheckMegatron(const RunFolder& run, const FoundEntry& entry) {
  const Names names(run, entry.name);
  if (names.has("metadata.json")) {
    HAULWAY_TRY(ReadJson(run, entry.name + "/metadata.json").status());
    return names.has(".metadata") ? Status() : Lacks(".metadata");
  }
  // The older way: a folder for each model-parallel rank.
  std::set<uint64_t> ranks;
  for (const std::string& name : names.folders()) {
    std::string_view digits = name;
    if (!digits.starts_with("mp_rank_")) continue;
    digits.remove_prefix(8);
    const auto rank = WholeNumberOf(digits.substr(0, digits.find('_')));
    if (rank.has_value()) ranks.insert(*rank);
    const Names inner(run, fmt::format("{}/{}", entry.name, name));
    if (!inner.has("model_optim_rng.pt") && !inner.has("model_rng.pt")) {
      return Lacks(fmt::format("{}/model_optim_rng.pt", name));
    }
  }
  if (ranks.empty()) return Lacks("metadata.json");
  if (const auto gap = FirstGap(ranks)) {
    return Lacks(fmt::format("mp_rank_{:02}", *gap));
  }
  return Status();
}

Status CheckVerl(const RunFolder& run, const FoundEntry& entry) {
  bool is_there = false;
  for (const std::string_view role : {"actor", "critic"}) {
    const std::string folder = fmt::format("{}/{}", entry.name, role);
    // Kind, and "model_world_size_4": its ranks.
    std::map<std::string, std::set<uint64_t>, std::less<>> kinds;
    const Names names(run, folder);
    for (const std::string& name : names.files()) {
      const size_t at = name.rfind("_rank_");
      if (at == name.npos) continue;
      const auto rank =
          NumberBetween(std::string_view(name).substr(at), "_rank_", ".pt");
      if (rank.has_value()) kinds[name.substr(0, at)].insert(*rank);
    }
    bool has_model = false;
    for (const auto& [kind, ranks] : kinds) {
      const size_t at = kind.rfind("_world_size_");
      const auto world =
          at == kind.npos
              ? std::nullopt
              : WholeNumberOf(std::string_view(kind).substr(at + 12));
      if (!world.has_value()) continue;
      has_model = has_model || kind.starts_with("model_");
      // It is the same on all ranks, and may be saved by the first one only.
      if (kind.starts_with("extra_state_") && ranks == std::set<uint64_t>{0}) {
        continue;
      }
      if (const auto gap = FirstGap(ranks, *world)) {
        return Lacks(fmt::format("{}/{}_rank_{}.pt", role, kind, *gap));
      }
    }
    if (!kinds.empty() && !has_model) {
      return Lacks(fmt::format("{}/model_world_size_*", role));
    }
    // Megatron's workers save in its way.
    is_there =
        is_there || has_model || !run.Below(folder + "/dist_ckpt").empty();
  }
  return is_there ? Status() : Lacks("the files of the ranks");
}

Status CheckDeepSpeed(const RunFolder& run, const FoundEntry& entry) {
  const Names names(run, entry.name);
  std::map<uint64_t, std::set<uint64_t>> optimizers;  // By model rank.
  std::map<uint64_t, std::set<uint64_t>> models;      // Of stage 3.
  std::set<uint64_t> plain;                           // Of other stages.
  for (const std::string& name : names.files()) {
    if (!IsStates(name)) continue;
    if (const auto ranks = RanksOf(name, "_optim_states.pt")) {
      optimizers[ranks->model].insert(ranks->data);
    } else if (const auto ranks3 = RanksOf(name, "_model_states.pt")) {
      models[ranks3->model].insert(ranks3->data);
    } else if (const auto rank =
                   NumberBetween(name, "mp_rank_", "_model_states.pt")) {
      plain.insert(*rank);
    }
  }
  const bool is_stage3 = plain.empty();
  if (is_stage3) {
    for (const auto& [model, ranks] : models) plain.insert(model);
  }
  if (plain.empty()) {
    const bool has_layers = names.has_file_with(
        [](const std::string& name) { return name.starts_with("layer_"); });
    return has_layers ? Status() : Lacks("mp_rank_00_model_states.pt");
  }
  const std::string first =
      is_stage3
          ? fmt::format("{}/zero_pp_rank_{}_mp_rank_{:02}_model_states.pt",
                        entry.name, *models.begin()->second.begin(),
                        *plain.begin())
          : fmt::format("{}/mp_rank_{:02}_model_states.pt", entry.name,
                        *plain.begin());
  HAULWAY_ASSIGN(const uint64_t world, CountIn(run, first, "dp_world_size"));
  HAULWAY_ASSIGN(const uint64_t parallel, CountIn(run, first, "mp_world_size"));
  if (const auto gap = FirstGap(plain, parallel)) {
    return Lacks(fmt::format("mp_rank_{:02}_model_states.pt", *gap));
  }
  if (optimizers.empty() && !is_stage3) return Status();  // No ZeRO.
  for (const uint64_t model : plain) {
    if (const auto gap =
            FirstGap(optimizers[model], std::max<uint64_t>(world, 1))) {
      return Lacks(fmt::format("zero_pp_rank_{}_mp_rank_{:02}_optim_states.pt",
                               *gap, model));
    }
    if (!is_stage3) continue;
    if (const auto gap = FirstGap(models[model], world)) {
      return Lacks(fmt::format("zero_pp_rank_{}_mp_rank_{:02}_model_states.pt",
                               *gap, model));
    }
  }
  return Status();
}

Status CheckNemo(const RunFolder& run, const FoundEntry& entry) {
  std::string stem = entry.name;
  if (stem.ends_with(".ckpt")) stem.resize(stem.size() - 5);
  const std::string marker = stem + "-unfinished";
  if (run.Find(marker) != nullptr) {
    return Wrong(
        fmt::format("{} is there: its save did not end", LastPart(marker)));
  }
  return Status();
}

Status CheckLightning(const RunFolder& run, const FoundEntry& entry) {
  if (!run.IsFolder(entry.name)) return Status();
  const Names names(run, entry.name);
  // DeepSpeed's strategy has a tag folder and its own pointer.
  if (names.has_folder("checkpoint")) {
    return CheckDeepSpeed(run, {.name = entry.name + "/checkpoint"});
  }
  for (const std::string_view name : {".metadata", "meta.pt"}) {
    if (!names.has(name)) return Lacks(name);
  }
  return Status();
}

Status CheckOrbax(const RunFolder& run, const FoundEntry& entry) {
  const std::string marker = "commit_success.txt";
  const auto has = [&](std::string_view name) {
    return run.Find(fmt::format("{}/{}", entry.name, name)) != nullptr;
  };
  // Where there is no rename, every checkpoint of the run has this file.
  const bool is_marked =
      std::ranges::any_of(run.files(), [&](const auto& file) {
        return LastPart(file.name) == marker &&
               std::ranges::count(file.name, '/') == 1;
      });
  if (is_marked && !has(marker)) return Lacks(marker);
  constexpr std::string_view kMetadata = "_CHECKPOINT_METADATA";
  if (!has(kMetadata)) return Lacks(kMetadata);
  HAULWAY_TRY(
      ReadJson(run, fmt::format("{}/{}", entry.name, kMetadata)).status());
  if (std::ranges::all_of(run.Below(entry.name), [&](const RunFile& file) {
        const std::string_view last = LastPart(file.name);
        return file.is_folder || last == kMetadata || last == marker;
      })) {
    return Lacks("its items");
  }
  return Status();
}

}  // namespace haulway
