// Design: two tables, of the names by which programs open models and of the
// names that they give to other things. The order of names is that of the
// program's own code; docs/opening.md shows both tables to users.
//
// Alternative not taken: look into the files. For a server that takes a request
// per file, and an optimizer's state looks like a model.

#include "io/model_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <span>

#include "base/ascii.h"

namespace haulway {

namespace {

constexpr std::string_view kTransformers[] = {
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "pytorch_model.bin.index.json"};
constexpr std::string_view kDiffusers[] = {
    "diffusion_pytorch_model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.bin.index.json", "diffusion_pytorch_model.bin"};
constexpr std::string_view kPeft[] = {"adapter_model.safetensors",
                                      "adapter_model.bin"};
constexpr std::string_view kAccelerate[] = {"pytorch_model_fsdp.bin"};
constexpr std::array<std::span<const std::string_view>, 4> kHosts = {
    kTransformers, kDiffusers, kPeft, kAccelerate};

constexpr std::string_view kTrainers = "a trainer's";
constexpr std::string_view kBeside = "for use beside a model";

// Stems of names that are never a model: of the whole stem without numbers and
// ranks, of its end, or of any part of it.
enum class Where : uint8_t { kWhole, kEnd, kAnywhere };
struct Side {
  std::string_view stem;
  Where where = Where::kWhole;
  std::string_view what = kTrainers;
};
constexpr Side kSides[] = {
    {"training_args"},  // transformers
    {"optimizer"},      // transformers, accelerate: optimizer_1.bin
    {"scheduler"},      // transformers, accelerate
    {"scaler"},         // transformers, accelerate
    {"rng_state"},      // transformers: rng_state_0.pth
    {"sampler"},        // accelerate
    {"dl_state_dict"},  // accelerate
    {"random_states"},  // accelerate: random_states_0.pkl
    {"custom_checkpoint"},
    {"lr_scheduler"},
    {"grad_scaler"},
    {"optim"},          // verl: optim_world_size_8_rank_0.pt
    {"extra_state"},    // verl
    {"recipe_state"},   // torchtune
    {"distrib_optim"},  // Megatron
    {"optim_states", Where::kEnd, "DeepSpeed's, which zero_to_fp32.py joins"},
    {"model_states", Where::kEnd, "DeepSpeed's, which zero_to_fp32.py joins"},
    {"mmproj", Where::kAnywhere, kBeside},   // llama.cpp
    {"imatrix", Where::kAnywhere, kBeside},  // llama.cpp
};

constexpr bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The stem of a name ends here.
size_t EndOfStem(std::string_view name) { return name.rfind('.'); }

// Removes numbers, and words that trainers put between them, from the end.
std::string_view WithoutRank(std::string_view stem) {
  constexpr std::string_view kWords[] = {"rank", "world_size"};
  while (true) {
    const std::string_view before = stem;
    while (!stem.empty() && IsDigit(stem.back())) stem.remove_suffix(1);
    for (const std::string_view word : kWords) {
      if (stem.ends_with(word)) stem.remove_suffix(word.size());
    }
    while (stem.ends_with('_') || stem.ends_with('-') || stem.ends_with('.')) {
      stem.remove_suffix(1);
    }
    if (stem == before) return stem;
  }
}

std::string WithVariant(std::string_view name, std::string_view variant) {
  if (variant.empty()) return std::string(name);
  const size_t end = EndOfStem(name);
  return fmt::format("{}.{}{}", name.substr(0, end), variant, name.substr(end));
}

// Removes an ending ".xyz", and the number of a part, from a name.
std::string_view StemOf(std::string_view name) {
  const auto part = ParsePart(name);
  return part.has_value() ? part->stem : name.substr(0, EndOfStem(name));
}

bool SameLetters(std::string_view a, std::string_view b) {
  return LowerCase(a) == LowerCase(b);
}

}  // namespace

std::vector<UsualNames> NamesOfHosts(std::string_view variant) {
  std::vector<UsualNames> all;
  for (const auto& host : kHosts) {
    UsualNames& names = all.emplace_back();
    for (const std::string_view name : host) {
      names.push_back(WithVariant(name, variant));
    }
  }
  return all;
}

UsualNames AllUsualNames(std::string_view variant) {
  UsualNames all;
  for (UsualNames& names : NamesOfHosts(variant)) {
    std::ranges::move(names, std::back_inserter(all));
  }
  return all;
}

std::string PartName::Other(uint64_t of) const {
  return fmt::format("{}-{:05}-of-{:05}{}", stem, of, count, ending);
}

std::optional<PartName> ParsePart(std::string_view name) {
  constexpr std::string_view kForm = "-00000-of-00000";
  const size_t end = EndOfStem(name);
  if (end == name.npos || end < kForm.size()) return std::nullopt;
  const size_t start = end - kForm.size();
  PartName part{.stem = name.substr(0, start), .ending = name.substr(end)};
  uint64_t* number = &part.number;
  for (size_t i = 0; i < kForm.size(); ++i) {
    const char c = name[start + i];
    if (kForm[i] != '0') {
      if (c != kForm[i]) return std::nullopt;
      if (c == 'f') number = &part.count;
      continue;
    }
    if (!IsDigit(c)) return std::nullopt;
    *number = *number * 10 + static_cast<uint64_t>(c - '0');
  }
  if (part.number == 0 || part.count < 2 || part.number > part.count) {
    return std::nullopt;
  }
  return part;
}

std::string RankName::Other(uint64_t of) const {
  if (world == 0) return fmt::format("{}_rank{}.bin", part, of);
  return fmt::format("{}_world_size_{}_rank_{}.pt", part, world, of);
}

namespace {

// Parses the name of a file of accelerate, whose part may have a number.
std::optional<RankName> ParseFsdpName(std::string_view name) {
  constexpr std::string_view kRank = "_rank";
  const size_t rank = name.rfind(kRank);
  if (rank == name.npos) return std::nullopt;
  RankName found{.part = name.substr(0, rank)};
  const std::string_view digits = name.substr(rank + kRank.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), found.rank);
  std::string_view stem = found.part;
  const size_t after = stem.find_last_not_of("0123456789");
  if (after != stem.npos && stem[after] == '_') stem = stem.substr(0, after);
  const bool is_known = stem == kFsdpModel || stem == "optimizer";
  if (!is_known || found.Other(found.rank) != name) return std::nullopt;
  return found;
}

}  // namespace

std::optional<RankName> ParseRankName(std::string_view name) {
  if (const auto found = ParseFsdpName(name)) return found;
  constexpr std::string_view kWorld = "_world_size_";
  constexpr std::string_view kRank = "_rank_";
  const size_t world = name.rfind(kWorld);
  const size_t rank = name.rfind(kRank);
  if (world == name.npos || rank == name.npos || rank < world || world == 0) {
    return std::nullopt;
  }
  RankName found{.part = name.substr(0, world)};
  const auto number = [](std::string_view text) {
    uint64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  };
  const size_t digits = world + kWorld.size();
  found.world = number(name.substr(digits, rank - std::min(digits, rank)));
  found.rank = number(name.substr(rank + kRank.size()));
  // Other spellings of the numbers are other names.
  if (found.world == 0 || found.Other(found.rank) != name) return std::nullopt;
  return found;
}

bool IsDeepSpeedName(std::string_view name) {
  return name.ends_with("model_states.pt") || name.ends_with("optim_states.pt");
}

bool IsIndexName(std::string_view name) {
  constexpr std::string_view kIndex = ".index";
  constexpr std::string_view kJson = ".json";
  if (!name.ends_with(kJson)) return false;
  name.remove_suffix(kJson.size());
  if (name.ends_with(kIndex)) return true;
  name = name.substr(0, EndOfStem(name));  // The variant.
  return name.ends_with(kIndex);
}

bool HasVariant(std::string_view name, std::string_view variant) {
  // An index has it here: X.safetensors.index.fp16.json
  const std::string_view stem =
      IsIndexName(name) ? name.substr(0, EndOfStem(name)) : StemOf(name);
  if (stem.size() <= variant.size()) return false;
  const char mark = stem[stem.size() - variant.size() - 1];
  return (mark == '.' || mark == '-' || mark == '_') &&
         SameLetters(stem.substr(stem.size() - variant.size()), variant);
}

bool IsPlainFile(std::string_view name) {
  constexpr std::string_view kWeights[] = {
      ".safetensors", ".index.json", ".bin",  ".pt",      ".pth",     ".ckpt",
      ".tensors",     ".gguf",       ".npz",  ".npy",     ".msgpack", ".h5",
      ".onnx",        ".distcp",     ".lock", ".metadata"};
  return !name.starts_with('.') &&
         std::ranges::none_of(kWeights, [&](std::string_view ending) {
           return name.ends_with(ending);
         });
}

std::string_view SideFile(std::string_view name) {
  const std::string_view stem = name.substr(0, EndOfStem(name));
  const std::string_view bare = WithoutRank(stem);
  for (const Side& side : kSides) {
    const bool is_it = side.where == Where::kWhole ? bare == side.stem
                       : side.where == Where::kEnd
                           ? bare.ends_with(side.stem)
                           : stem.find(side.stem) != stem.npos;
    if (is_it) return side.what;
  }
  return {};
}

}  // namespace haulway
