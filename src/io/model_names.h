// What the names of files say: which file of a folder opens a model, which
// files are the parts of one model, and which are no model.
//
// Names are those in a folder, without the folder. No I/O.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace haulway {

// Returns the part of a path or URL after the last slash.
constexpr std::string_view LastPart(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

// The names by which a program opens a model in a folder, in its order.
using UsualNames = std::vector<std::string>;

// Returns the names of each program that has some: transformers, diffusers,
// peft, accelerate. `variant` is in each name where these programs put it:
// "model.fp16.safetensors". Empty: the plain names.
std::vector<UsualNames> NamesOfHosts(std::string_view variant);
// Returns all of them in one list, for folders that cannot be listed.
UsualNames AllUsualNames(std::string_view variant);

// The name of a part of a model: "model-00001-of-00003.gguf".
struct PartName {
  std::string_view stem;    // "model".
  uint64_t number = 0;      // 1.
  uint64_t count = 0;       // 3.
  std::string_view ending;  // ".gguf".

  // Returns the name of another part of the same model.
  std::string Other(uint64_t of) const;
  // Returns a name that the parts of one model share, and no others.
  std::string Set() const { return Other(0); }
};

// Returns nullopt if `name` is not the name of a part of several.
std::optional<PartName> ParsePart(std::string_view name);

// The name of the file that one process of a training wrote of its state:
// "model_world_size_4_rank_0.pt", or of accelerate
// "pytorch_model_fsdp_0_rank0.bin".
struct RankName {
  std::string_view part;  // "model", "pytorch_model_fsdp_0".
  uint64_t world = 0;     // 4; 0 if the name does not state it.
  uint64_t rank = 0;      // 0.

  // Returns the name of another process's file.
  std::string Other(uint64_t of) const;
};

// Returns nullopt if `name` is not the name of such a file.
std::optional<RankName> ParseRankName(std::string_view name);

// How accelerate begins the names of the files of a model of FSDP.
inline constexpr std::string_view kFsdpModel = "pytorch_model_fsdp";

// Returns whether processes of DeepSpeed give files such a name:
// "zero_pp_rank_0_mp_rank_00_optim_states.pt".
bool IsDeepSpeedName(std::string_view name);

// Returns whether files so named are indexes of shards: X.index.json, or with a
// variant X.index.fp16.json.
bool IsIndexName(std::string_view name);

// Returns whether a name has the variant: at the end of its stem or before the
// number of a part, after '.', '-' or '_', regardless of case.
bool HasVariant(std::string_view name, std::string_view variant);

// Returns whether a file beside a checkpoint belongs to a model but holds no
// weights: its configuration, its tokenizer.
bool IsPlainFile(std::string_view name);

// Returns what a file is that belongs to a model but never is the model, "a
// trainer's"; empty for all other names.
std::string_view SideFile(std::string_view name);

}  // namespace haulway
