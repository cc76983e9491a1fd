// Design: the rules in the order in which they are asked. First what a program
// of known names would open; each program's names are one candidate, because
// two programs' models in one folder are two models. Then an index, then what
// is left: files with a checkpoint's ending that are not another thing by their
// names, where the parts of a set are one candidate. A variant leaves the
// candidates that have it. One candidate is the model; several are named.
//
// Alternative not taken: the largest or the newest file. It would be right so
// often that nobody would look when it is wrong.

#include "checkpoint/choose_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/text.h"
#include "checkpoint/dcp_shards.h"
#include "haulway/format.h"
#include "io/model_names.h"

namespace haulway {

namespace {

constexpr size_t kMostNamed = 10;  // In a message.

// One file, or the parts of one model in their order.
using Candidate = std::vector<std::string>;

bool Has(std::span<const std::string> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string Listed(std::span<const Candidate> candidates) {
  std::vector<std::string> names;
  for (const Candidate& one : candidates) names.push_back(one.front());
  return ListedNames(names);
}

Status Several(std::span<const Candidate> candidates) {
  return Status(Code::kInvalidArgument,
                fmt::format("folder holds several checkpoints: expected one, "
                            "found {}; name a file, or a variant (the option "
                            "variant, which load and convert have)",
                            Listed(candidates)));
}

// Fails if a part is missing. Formats whose files state their places check
// them when they are opened.
Status CheckWhole(const Candidate& model) {
  const FormatEntry* format = FormatBySuffix(model.front());
  const auto first = ParsePart(model.front());
  if (!first.has_value() || (format != nullptr && format->place != nullptr)) {
    return Status();
  }
  for (uint64_t number = 1; number <= first->count; ++number) {
    const std::string name = first->Other(number);
    if (Has(model, name)) continue;
    return Status(Code::kMismatch,
                  fmt::format("part {} of {} of the model is missing: expected "
                              "{}",
                              number, first->count, Quote(name)));
  }
  return Status();
}

Result<Candidate> TheOne(std::vector<Candidate> candidates) {
  if (candidates.size() > 1) return Several(candidates);
  HAULWAY_TRY(CheckWhole(candidates.front()));
  return std::move(candidates.front());
}

// Returns the files that programs of known names would open, one of each
// program, and files with the same name and a number: further models of one
// state of accelerate, "model_1.safetensors".
std::vector<Candidate> FindUsual(std::span<const std::string> names,
                                 std::string_view variant) {
  std::vector<Candidate> found;
  for (const UsualNames& host : NamesOfHosts(variant)) {
    const auto usual = std::ranges::find_if(
        host, [&](const std::string& name) { return Has(names, name); });
    if (usual == host.end()) continue;
    found.push_back({*usual});
    const size_t dot = usual->rfind('.');
    for (size_t i = 1;; ++i) {
      std::string next = *usual;
      next.insert(dot, fmt::format("_{}", i));
      if (!Has(names, next)) break;
      found.push_back({std::move(next)});
    }
  }
  return found;
}

// Returns all that may be the model: indexes or, if there are none, files and
// sets. `variant`: only those that have it; empty: all.
std::vector<Candidate> FindOthers(std::span<const std::string> names,
                                  std::string_view variant) {
  std::vector<Candidate> found;
  const auto fits = [&](const std::string& name) {
    return variant.empty() || HasVariant(name, variant);
  };
  for (const std::string& name : names) {
    if (IsIndexName(name) && fits(name)) found.push_back({name});
  }
  if (!found.empty()) return found;
  std::map<std::string, size_t> sets;
  Candidate ranks;
  Candidate zero;
  bool has_ranks = false;
  for (const std::string& name : names) {
    if (IsOfProcess(name)) {
      (IsDeepSpeedName(name) ? zero : ranks).push_back(name);
      has_ranks = has_ranks || MayBeModel(name);
      continue;
    }
    if (!MayBeModel(name) || !fits(name)) continue;
    if (const auto part = ParsePart(name)) {
      const auto [set, is_new] = sets.try_emplace(part->Set(), found.size());
      if (!is_new) {
        found[set->second].push_back(name);
        continue;
      }
    }
    found.push_back({name});
  }
  // Beside a model, the other states of a training are not one.
  if (!variant.empty() || (!found.empty() && !has_ranks)) return found;
  for (Candidate* const one : {&ranks, &zero}) {
    if (!one->empty()) found.push_back(std::move(*one));
  }
  return found;
}

Status None(std::span<const std::string> names) {
  std::map<std::string_view, std::vector<std::string>> sides;
  for (const std::string& name : names) {
    if (FormatBySuffix(name) != nullptr) sides[SideFile(name)].push_back(name);
  }
  std::string why;
  for (const auto& [what, found] : sides) {
    why += fmt::format("; {}, not a model: {}", what, ListedNames(found));
  }
  return Status(Code::kNotFound,
                fmt::format("folder holds no checkpoint: expected an index of "
                            "shards, or a file that ends as checkpoints do{}",
                            why));
}

}  // namespace

bool OpensDirectory(std::string_view name) {
  return std::ranges::find(kDirectoryNames, name) != std::end(kDirectoryNames);
}

bool IsOfProcess(std::string_view name) {
  return ParseRankName(name).has_value() || IsDeepSpeedName(name);
}

bool MayBeModel(std::string_view name) {
  return FormatBySuffix(name) != nullptr && SideFile(name).empty();
}

std::string ListedNames(std::span<const std::string> names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", Quote(names[i]));
  }
  if (names.size() > kMostNamed) {
    text += fmt::format(" and {} more", names.size() - kMostNamed);
  }
  return text;
}

bool IsOfUnendedSave(std::string_view name) {
  return name.ends_with(kDataFileSuffix) || name == ".metadata.tmp";
}

Result<std::vector<std::string>> ChooseModel(std::span<const std::string> names,
                                             std::string_view variant) {
  if (variant.empty()) {
    for (const std::string_view usual : kDirectoryNames) {
      if (Has(names, usual)) return Candidate{std::string(usual)};
    }
    if (std::ranges::any_of(names, IsOfUnendedSave)) {
      return Status(Code::kTruncated,
                    "a directory of torch.distributed.checkpoint whose save "
                    "did not end: expected a .metadata");
    }
  }
  std::vector<Candidate> found = FindUsual(names, variant);
  if (!found.empty()) return TheOne(std::move(found));
  Candidate shards;
  std::ranges::copy_if(names, std::back_inserter(shards), IsNamedAsDcpShard);
  const auto is_other = [](const std::string& name) {
    return !IsNamedAsDcpShard(name) && (IsIndexName(name) || MayBeModel(name));
  };
  if (variant.empty() && !shards.empty() &&
      std::ranges::none_of(names, is_other)) {
    return shards;
  }
  found = FindOthers(names, variant);
  if (!found.empty()) return TheOne(std::move(found));
  found = FindOthers(names, "");
  if (found.empty()) return None(names);
  return Status(Code::kNotFound,
                fmt::format("folder holds no variant {}: found {}",
                            Quote(variant), Listed(found)));
}

}  // namespace haulway
