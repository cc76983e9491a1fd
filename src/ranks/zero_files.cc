#include "ranks/zero_files.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/text.h"

namespace haulway::ranks {

namespace {

constexpr std::string_view kModelEnd = "_model_states.pt";
constexpr std::string_view kOptimizerEnd = "_optim_states.pt";
constexpr std::string_view kFirstModel = "mp_rank_00";

// Returns the rank in "zero_pp_rank_3_mp_rank_00"; nullopt for another name.
std::optional<uint64_t> RankIn(std::string_view name) {
  constexpr std::string_view kStart = "zero_pp_rank_";
  constexpr std::string_view kEnd = "_mp_rank_00";
  if (!name.starts_with(kStart) || !name.ends_with(kEnd)) return std::nullopt;
  name.remove_prefix(kStart.size());
  name.remove_suffix(kEnd.size());
  uint64_t rank = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data(), end, rank);
  if (error != std::errc() || stop != end || name.empty()) return std::nullopt;
  return rank;
}

// Returns the names by rank. Fails if one is missing.
Result<std::vector<std::string>> InOrder(
    const std::map<uint64_t, std::string>& by_rank, std::string_view what) {
  std::vector<std::string> names;
  for (const auto& [rank, name] : by_rank) {
    if (rank != names.size()) {
      return Status(Code::kMismatch,
                    fmt::format("{} of rank {} is missing: expected one for "
                                "each rank up to {}",
                                what, names.size(), by_rank.rbegin()->first));
    }
    names.push_back(name);
  }
  return names;
}

}  // namespace

Result<ZeroFiles> FindZeroFiles(const std::vector<std::string>& names) {
  ZeroFiles files;
  std::map<uint64_t, std::string> models;
  std::map<uint64_t, std::string> optimizers;
  std::string plain;
  for (const std::string& name : names) {
    std::string_view stem = name;
    const bool is_model = stem.ends_with(kModelEnd);
    const bool is_optimizer = stem.ends_with(kOptimizerEnd);
    stem.remove_suffix(is_model       ? kModelEnd.size()
                       : is_optimizer ? kOptimizerEnd.size()
                                      : 0);
    if (stem.starts_with("bf16_")) stem.remove_prefix(5);
    const auto rank = RankIn(stem);
    if (is_model && stem == kFirstModel) {
      plain = name;
    } else if (rank.has_value()) {
      (is_model ? models : optimizers)[*rank] = name;
    } else {
      return Status(Code::kUnsupported,
                    "a file of tensor, pipeline or expert parallelism, which "
                    "are not put together: expected the files of ZeRO alone")
          .Of(name);
    }
  }
  if (!plain.empty() && !models.empty()) {
    return Status(Code::kMismatch,
                  fmt::format("files are of stage 3 and of another stage: {} "
                              "and {}",
                              Quote(plain), Quote(models.begin()->second)));
  }
  files.is_stage3 = plain.empty();
  if (plain.empty()) {
    HAULWAY_ASSIGN(files.models, InOrder(models, "the model file"));
  } else {
    files.models = {plain};
  }
  HAULWAY_ASSIGN(files.optimizers, InOrder(optimizers, "the optimizer file"));
  if (files.models.empty()) {
    return Status(Code::kMismatch,
                  fmt::format("folder lacks a model file: expected {}{}",
                              kFirstModel, kModelEnd));
  }
  return files;
}

}  // namespace haulway::ranks
