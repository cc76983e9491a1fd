// The layouts of runs: which files are checkpoints, which step they are of,
// and what makes them whole. One row for each program's way.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/status.h"
#include "runs/run_folder.h"

namespace haulway {

// A checkpoint of a run, by its name below the root.
struct FoundEntry {
  std::string name;
  std::optional<uint64_t> step = std::nullopt;
  // Which of several of one step is newer.
  uint64_t version = 0;
  // Whether it was never whole: what a save in a store leaves that did not end.
  bool is_unended = false;
  // Not ok if the step is in the content, and that cannot be read.
  Status fault{};
  // Whether its name, or the pointer, says that it is one of the run's steps.
  // Others may be any model that lies there, and are never removed.
  bool is_step = true;
};

struct RunLayout {
  std::string_view name;
  // Returns whether the names of a run are of this layout. Rows are tried in
  // their order.
  bool (*is_of)(const RunFolder& run);
  // Returns the checkpoints, in any order, and those that are not whole, too.
  Result<std::vector<FoundEntry>> (*entries)(const RunFolder& run);
  // Returns why a checkpoint is not whole: what it lacks, by names and by the
  // small files that say so. CheckSound() looks into the other files.
  Status (*check)(const RunFolder& run, const FoundEntry& entry);
  // The file that names the newest checkpoint, and the checkpoint that its text
  // names, or "". Empty and null if there is no such file.
  std::string_view pointer = {};
  std::string (*pointed)(std::string_view text) = nullptr;
  // How the names of the files end that a checkpoint cannot be whole without;
  // they are removed first.
  std::string_view last = {};
  // Returns the name of the checkpoint that the program keeps because an entry
  // names it as the best; "" if it names none.
  std::string (*best)(const RunFolder& run, const FoundEntry& entry) = nullptr;
};

// The rows, in the order of kRunLayoutWords.
std::span<const RunLayout> RunLayouts();

// Returns the number that all of `text` is.
std::optional<uint64_t> WholeNumberOf(std::string_view text);

// Returns why a run's checkpoint lacks a file.
Status Lacks(std::string_view file);

// Each is a row's `check`.
Status CheckTorchtitan(const RunFolder& run, const FoundEntry& entry);
Status CheckTrainer(const RunFolder& run, const FoundEntry& entry);
Status CheckAccelerate(const RunFolder& run, const FoundEntry& entry);
Status CheckMegatron(const RunFolder& run, const FoundEntry& entry);
Status CheckVerl(const RunFolder& run, const FoundEntry& entry);
Status CheckDeepSpeed(const RunFolder& run, const FoundEntry& entry);
Status CheckNemo(const RunFolder& run, const FoundEntry& entry);
Status CheckLightning(const RunFolder& run, const FoundEntry& entry);
Status CheckOrbax(const RunFolder& run, const FoundEntry& entry);

// Is the trainer's `best`.
std::string BestOfTrainer(const RunFolder& run, const FoundEntry& entry);

// Reads the number `key` of the dict in a checkpoint. Fails as opening does;
// nullopt if it has no such number.
Result<std::optional<int64_t>> NumberIn(const RunFolder& run,
                                        std::string_view file,
                                        std::string_view key);

}  // namespace haulway
