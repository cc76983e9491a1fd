// Design: a layout is a row: how its names look, and a function that says what
// a checkpoint lacks. What is the same for all of them - files that are cut,
// damaged or empty, manifests, pointers, the order of steps - is not here.
//
// The layout of a folder is told by names alone. Where names of two programs
// are the same, a file decides that only one of them has, and the row with that
// file comes first.

#include "runs/run_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/ascii.h"
#include "base/text.h"
#include "haulway/checkpoint.h"
#include "haulway/runs.h"
#include "io/model_names.h"
#include "runs/run_manifest.h"

namespace haulway {

namespace {

constexpr std::string_view kCkpt = ".ckpt";
constexpr std::string_view kUnfinished = "-unfinished";

using Entries = std::vector<FoundEntry>;

// Returns the folders "STEM<number>" of the root, or of a folder of it.
Entries Numbered(const RunFolder& run, std::string_view stem,
                 std::string_view folder = {}) {
  Entries entries;
  for (std::string& name : run.Children(folder)) {
    const std::string_view last = LastPart(name);
    if (!last.starts_with(stem) || !run.IsFolder(name)) continue;
    const auto step = WholeNumberOf(last.substr(stem.size()));
    if (step.has_value()) entries.push_back({std::move(name), step});
  }
  return entries;
}

Result<Entries> StepEntries(const RunFolder& run) {
  return Numbered(run, "step-");
}

// A local save that does not end has a hidden name; one in a store has none.
Result<Entries> HaulwayEntries(const RunFolder& run) {
  Entries entries = Numbered(run, "step-");
  for (FoundEntry& entry : entries) {
    const auto files = run.Below(entry.name);
    const std::string save = fmt::format("{}/{}", entry.name, kSavePrefix);
    entry.is_unended =
        !run.is_local() && std::ranges::all_of(files, [&](const RunFile& file) {
          return file.name.starts_with(save);
        });
  }
  return entries;
}

bool IsHaulway(const RunFolder& run) {
  for (const std::string& name : run.Children()) {
    if (name.starts_with(".step-") && name.find(".tmp-") != name.npos) {
      return true;
    }
  }
  // A save that did not end has no manifest, but its folder.
  return std::ranges::any_of(Numbered(run, "step-"), [&](const auto& entry) {
    const auto files = run.Below(entry.name);
    const std::string save = fmt::format("{}/{}", entry.name, kSavePrefix);
    return std::ranges::any_of(files, [&](const RunFile& file) {
      return file.name == fmt::format("{}/{}", entry.name, kRunManifestName) ||
             file.name.starts_with(save);
    });
  });
}

// The manifest is checked for all layouts.
Status CheckHaulway(const RunFolder& run, const FoundEntry& entry) {
  if (run.Find(fmt::format("{}/{}", entry.name, kRunManifestName)) != nullptr) {
    return Status();
  }
  return Lacks(kRunManifestName);
}

bool IsTorchtitan(const RunFolder& run) {
  return !Numbered(run, "step-").empty();
}

bool IsTrainer(const RunFolder& run) {
  return !Numbered(run, "checkpoint-").empty();
}
Result<Entries> TrainerEntries(const RunFolder& run) {
  return Numbered(run, "checkpoint-");
}

// accelerate's folder may be given, or the project's, in which it is.
Result<Entries> AccelerateEntries(const RunFolder& run) {
  Entries entries = Numbered(run, "checkpoint_");
  if (entries.empty() && run.IsFolder("checkpoints")) {
    entries = Numbered(run, "checkpoint_", "checkpoints");
  }
  return entries;
}
bool IsAccelerate(const RunFolder& run) {
  // Orbax has a prefix of the caller's choice, and a file of its own.
  const auto entries = AccelerateEntries(run);
  return !entries->empty() &&
         std::ranges::none_of(*entries, [&](const FoundEntry& entry) {
           return run.Find(entry.name + "/_CHECKPOINT_METADATA") != nullptr;
         });
}

Result<Entries> MegatronEntries(const RunFolder& run) {
  Entries entries = Numbered(run, "iter_");
  if (run.IsFolder("release")) {
    entries.push_back({.name = "release", .is_step = false});
  }
  return entries;
}
bool IsMegatron(const RunFolder& run) {
  return !Numbered(run, "iter_").empty() ||
         (run.IsFolder("release") &&
          run.Find("latest_checkpointed_iteration.txt") != nullptr);
}
std::string PointedByMegatron(std::string_view text) {
  if (text == "release") return "release";
  const auto step = WholeNumberOf(text);
  return step.has_value() ? fmt::format("iter_{:07}", *step) : "";
}

Result<Entries> VerlEntries(const RunFolder& run) {
  return Numbered(run, "global_step_");
}
bool IsVerl(const RunFolder& run) {
  return !Numbered(run, "global_step_").empty();
}
std::string PointedByVerl(std::string_view text) {
  const auto step = WholeNumberOf(text);
  return step.has_value() ? fmt::format("global_step_{}", *step) : "";
}

// A tag may have any name.
Result<Entries> DeepSpeedEntries(const RunFolder& run) {
  Entries entries = Numbered(run, "global_step");
  for (const std::string& name : run.Children()) {
    if (name.starts_with('.') || !run.IsFolder(name) ||
        std::ranges::find(entries, name, &FoundEntry::name) != entries.end()) {
      continue;
    }
    const auto files = run.Below(name);
    if (std::ranges::none_of(files, [&](const RunFile& file) {
          return file.name.ends_with("_states.pt") &&
                 file.name.find('/', name.size() + 1) == file.name.npos;
        })) {
      continue;
    }
    const size_t digits = name.find_last_not_of("0123456789") + 1;
    const auto step = WholeNumberOf(name.substr(digits));
    entries.push_back(
        {.name = name, .step = step, .is_step = step.has_value()});
  }
  return entries;
}
bool IsDeepSpeed(const RunFolder& run) {
  return !DeepSpeedEntries(run)->empty();
}
std::string PointedByDeepSpeed(std::string_view text) {
  return IsPathBelow(text) ? std::string(text) : "";
}

// Takes "-v3" off the end of a name.
uint64_t TakeVersion(std::string_view* stem) {
  const size_t dash = stem->rfind("-v");
  if (dash == stem->npos) return 0;
  const auto version = WholeNumberOf(stem->substr(dash + 2));
  if (!version.has_value()) return 0;
  *stem = stem->substr(0, dash);
  return *version;
}

// Returns the number after "step=".
std::optional<uint64_t> StepInName(std::string_view name) {
  const size_t at = name.rfind("step=");
  if (at == name.npos) return std::nullopt;
  std::string_view digits = name.substr(at + 5);
  digits = digits.substr(0, digits.find_first_not_of("0123456789"));
  return WholeNumberOf(digits);
}

// Sets the step of a checkpoint of Lightning's to the one in its content.
void ReadStep(const RunFolder& run, FoundEntry* entry) {
  const auto step = NumberIn(
      run, run.IsFolder(entry->name) ? entry->name + "/meta.pt" : entry->name,
      "global_step");
  if (step.ok()) {
    if (step->has_value() && **step >= 0) {
      entry->step = static_cast<uint64_t>(**step);
    }
    return;
  }
  const Code code = step.status().code();
  entry->fault = step.status();
  // Another program's file, which says nothing of the others.
  if (code == Code::kUnsafe || code == Code::kUnsupported ||
      code == Code::kInvalidArgument ||
      (code == Code::kAuth && run.is_local())) {
    entry->fault = Status(
        Code::kCorrupt,
        fmt::format("its step cannot be read: {}", step.status().message()));
  }
}

Result<Entries> LightningEntries(const RunFolder& run) {
  Entries entries;
  for (std::string& name : run.Children()) {
    if (!name.ends_with(kCkpt) || name.starts_with('.')) continue;
    FoundEntry entry{name};
    std::string_view stem = name;
    stem.remove_suffix(kCkpt.size());
    // Above those without a version, and above "last".
    entry.version = TakeVersion(&stem) + 1;
    if (stem.starts_with("last")) entry.version = 0;
    entry.step = StepInName(stem);
    if (!entry.step.has_value() && stem.starts_with("hpc_ckpt_")) {
      entry.step = WholeNumberOf(stem.substr(9));
    }
    if (!entry.step.has_value()) {
      ReadStep(run, &entry);
      entry.is_step =
          stem == "last" && (entry.step.has_value() || !entry.fault.ok());
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}
bool IsLightning(const RunFolder& run) {
  return std::ranges::any_of(run.Children(), [](const std::string& name) {
    return name.ends_with(kCkpt) && !name.starts_with('.');
  });
}

// Returns the name of a checkpoint of NeMo without its ending; "" if it is
// none. Checkpoints of NeMo 2 are folders without one.
std::string_view NemoStem(const RunFolder& run, std::string_view name) {
  if (name.starts_with('.') || name.ends_with(kUnfinished)) return {};
  const bool is_file = name.ends_with(kCkpt);
  if (!is_file && !run.IsFolder(name)) return {};
  if (!StepInName(name).has_value()) return {};
  if (is_file) name.remove_suffix(kCkpt.size());
  return name;
}
bool IsNemo(const RunFolder& run) {
  const auto names = run.Children();
  return std::ranges::any_of(names, [&](const std::string& name) {
    const std::string_view stem = NemoStem(run, name);
    return !stem.empty() &&
           (stem.ends_with("-last") || stem.size() == name.size() ||
            run.Find(fmt::format("{}{}", stem, kUnfinished)) != nullptr);
  });
}
Result<Entries> NemoEntries(const RunFolder& run) {
  Entries entries;
  for (const std::string& name : run.Children()) {
    const std::string_view stem = NemoStem(run, name);
    if (stem.empty()) continue;
    entries.push_back({.name = name,
                       .step = StepInName(stem),
                       .version = stem.ends_with("-last") ? 1U : 0U});
  }
  return entries;
}

Result<Entries> OrbaxEntries(const RunFolder& run) {
  Entries entries;
  for (const std::string& name : run.Children()) {
    if (name.starts_with('.') || !run.IsFolder(name)) continue;
    const std::string_view digits =
        std::string_view(name).substr(name.rfind('_') + 1);
    const auto step = WholeNumberOf(digits);
    const bool is_marked = run.Find(name + "/_CHECKPOINT_METADATA") != nullptr;
    if (step.has_value() && (is_marked || digits.size() == name.size())) {
      entries.push_back({name, step});
    }
  }
  return entries;
}
bool IsOrbax(const RunFolder& run) { return !OrbaxEntries(run)->empty(); }

constexpr RunLayout kLayouts[] = {
    {.name = "haulway",
     .is_of = IsHaulway,
     .entries = HaulwayEntries,
     .check = CheckHaulway,
     .last = kRunManifestName},
    {.name = "torchtitan",
     .is_of = IsTorchtitan,
     .entries = StepEntries,
     .check = CheckTorchtitan,
     .last = ".metadata"},
    {.name = "trainer",
     .is_of = IsTrainer,
     .entries = TrainerEntries,
     .check = CheckTrainer,
     .last = "trainer_state.json",
     .best = BestOfTrainer},
    {.name = "accelerate",
     .is_of = IsAccelerate,
     .entries = AccelerateEntries,
     .check = CheckAccelerate,
     .last = "random_states_0.pkl"},
    {.name = "megatron",
     .is_of = IsMegatron,
     .entries = MegatronEntries,
     .check = CheckMegatron,
     .pointer = "latest_checkpointed_iteration.txt",
     .pointed = PointedByMegatron,
     .last = "metadata.json"},
    {.name = "verl",
     .is_of = IsVerl,
     .entries = VerlEntries,
     .check = CheckVerl,
     .pointer = "latest_checkpointed_iteration.txt",
     .pointed = PointedByVerl,
     .last = "_rank_0.pt"},
    {.name = "deepspeed",
     .is_of = IsDeepSpeed,
     .entries = DeepSpeedEntries,
     .check = CheckDeepSpeed,
     .pointer = "latest",
     .pointed = PointedByDeepSpeed,
     .last = "mp_rank_00_model_states.pt"},
    {.name = "nemo",
     .is_of = IsNemo,
     .entries = NemoEntries,
     .check = CheckNemo,
     .last = "metadata.json"},
    {.name = "lightning",
     .is_of = IsLightning,
     .entries = LightningEntries,
     .check = CheckLightning,
     .last = "meta.pt"},
    {.name = "orbax",
     .is_of = IsOrbax,
     .entries = OrbaxEntries,
     .check = CheckOrbax,
     .last = "_CHECKPOINT_METADATA"},
};
static_assert(std::ranges::equal(kLayouts, kRunLayoutWords, {},
                                 &RunLayout::name));

}  // namespace

std::span<const RunLayout> RunLayouts() { return kLayouts; }

std::optional<uint64_t> WholeNumberOf(std::string_view text) {
  uint64_t number = 0;
  const auto end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (text.empty() || read.ec != std::errc() || read.ptr != end) {
    return std::nullopt;
  }
  return number;
}

Status Lacks(std::string_view file) {
  return Status(Code::kNotFound, fmt::format("lacks {}", file));
}

Result<std::optional<int64_t>> NumberIn(const RunFolder& run,
                                        std::string_view file,
                                        std::string_view key) {
  HAULWAY_ASSIGN(auto source, run.Open(file));
  HAULWAY_ASSIGN(const auto checkpoint, Checkpoint::Open(std::move(source)));
  const Value& root = checkpoint->index().root;
  if (!root.is_mapping()) return std::optional<int64_t>();
  const Value* const value = root.mapping().Find(key);
  if (value == nullptr || !value->is(Kind::kInt)) {
    return std::optional<int64_t>();
  }
  return std::optional<int64_t>(value->integer());
}

}  // namespace haulway
