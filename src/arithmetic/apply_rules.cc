// Design: the tensors are a list of names. A rule takes some of them away and
// puts others in their place, which are made of those when they are read
// (made_tensor.h); the next rule sees the list after that. In the end, what is
// not stored is a computed weight, like those of quantized models. A function
// of a rule is called for the shapes of its results when they are put there;
// what it returned is kept for one group, and made again for others.

#include "arithmetic/apply_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "arithmetic/config_numbers.h"
#include "arithmetic/made_tensor.h"
#include "arithmetic/operations.h"
#include "base/regex.h"
#include "base/text.h"
#include "haulway/options.h"
#include "tensor/scaled_tensors.h"

namespace haulway::arithmetic {

namespace {

// Limits on names: without them, rules that double a name take all memory.
constexpr size_t kLongestName = 64 * kKiB;
constexpr size_t kLongestReplacement = 1024;
// Of all names together; twice as much as the largest header of a safetensors
// file.
constexpr size_t kMostNameBytes = 200'000'000;
// Of tensors that rules make: each takes some hundred bytes, and none of the
// file if it is empty.
constexpr size_t kMostMade = 2'000'000;

using FunctionResults = std::vector<RuleTensor>;

// A tensor of the list.
struct Named {
  std::string name;
  uint32_t entry = 0;  // The stored tensor that it is,
  std::optional<MadeTensor> made = std::nullopt;  // unless it is made.
  bool is_ruled = false;
};

// Sources of a rule that belong together.
struct Group {
  std::string name;     // What is before the patterns.
  uint64_t number = 0;  // For rules with a `*` in sources and targets.
  // By pattern: the numbers of the list, by the number in the name.
  std::vector<std::map<uint64_t, size_t>> members;
  size_t first = 0;  // Where in the list the first one is.
};

// Calls a function with the tensors of a group.
Result<FunctionResults> Call(const RuleFunction& function,
                             const Members& sources) {
  FunctionResults given;
  for (const MadeTensor& source : sources) {
    HAULWAY_ASSIGN(Buffer bytes, AllocateBuffer(source.bytes->size()));
    HAULWAY_TRY(source.bytes->ReadAt(0, bytes.mutable_bytes()));
    given.push_back({source.dtype, source.shape, std::move(bytes)});
  }
  return function(std::move(given));
}

class RuleApplier {
 public:
  RuleApplier(const FormatReader& reader, const ByteSource& beside,
              const RulesToApply& rules)
      : reader_(reader),
        rules_(rules),
        scaled_(reader.index()),
        numbers_(reader.index(), beside),
        kept_(std::make_shared<KeptPanels>()),
        results_(std::make_shared<KeptValues<FunctionResults>>(1)) {
    const auto& entries = reader.index().entries;
    for (uint32_t i = 0; i < entries.size(); ++i) {
      list_.push_back({std::string(entries[i].name), i});
      name_bytes_ += list_.back().name.size();
    }
  }

  Status ApplyAll() {
    bool has_matched = false;
    for (const Rule& rule : rules_.rules) {
      rule_ = &rule;
      Status status =
          rule.renaming.has_value() ? Rename(*rule.renaming) : ApplyOne();
      if (status.ok()) status = CheckNames();
      if (status.code() == Code::kNotFound && rules_.is_preset) continue;
      if (!status.ok()) return std::move(status).In(rule.name);
      has_matched = true;
    }
    if (!has_matched) {
      return Status(Code::kNotFound, "no rule matches a tensor");
    }
    if (rules_.names.empty()) return Status();
    HAULWAY_ASSIGN(const Regex names, Regex::Make(rules_.names));
    for (const Named& one : list_) {
      if (names.Finds(one.name)) continue;
      return Status(Code::kUnsupported, "the rules do not know this tensor")
          .In(Quote(one.name));
    }
    return Status();
  }

  Result<RuledTensors> Finish() {
    RuledTensors made;
    FoundWeights& found = made.found;
    found.weight_of.assign(reader_.index().entries.size(), kIsDropped);
    for (Named& one : list_) {
      uint32_t number = kIsKept;
      if (one.made.has_value()) {
        number = static_cast<uint32_t>(found.weights.size());
        Weight& weight = found.weights.emplace_back();
        weight.name = one.name;
        weight.shape = std::move(one.made->shape);
        weight.nbytes = one.made->bytes->size();
        weight.arrangement = Arrangement::kMade;
        weight.terms.to = one.made->dtype;
        weight.bytes = std::move(one.made->bytes);
        weight.inputs = std::move(one.made->inputs);
      }
      if (one.is_ruled) ++made.ruled;
      found.added.push_back({std::move(one.name), one.entry, number});
    }
    return made;
  }

 private:
  Status NoMatch() const {
    return Status(Code::kNotFound, "it matches no tensor");
  }

  Status Rename(const Renaming& renaming) {
    if (renaming.replacement.size() > kLongestReplacement) {
      return Status(
          Code::kLimit,
          fmt::format("the replacement has {} bytes: expected {} at "
                      "most",
                      renaming.replacement.size(), kLongestReplacement));
    }
    bool has_matched = false;
    for (Named& one : list_) {
      if (!renaming.pattern.Finds(one.name)) continue;
      const size_t old_size = one.name.size();
      one.name = renaming.pattern.ReplaceAll(one.name, renaming.replacement);
      name_bytes_ += one.name.size() - old_size;
      HAULWAY_TRY(CheckSize(one.name));
      one.is_ruled = true;
      has_matched = true;
    }
    return has_matched ? Status() : NoMatch();
  }

  // Fails for a new name that is too long, alone or with all others.
  Status CheckSize(std::string_view name) const {
    if (name.size() > kLongestName) {
      return Status(Code::kLimit,
                    fmt::format("a new name has {} bytes: expected {} at most",
                                name.size(), kLongestName))
          .In(Quote(name));
    }
    if (name_bytes_ <= kMostNameBytes) return Status();
    return Status(Code::kLimit,
                  fmt::format("all names together have more than {} bytes",
                              kMostNameBytes));
  }

  Status CheckNames() const {
    std::set<std::string_view> seen;
    for (const Named& one : list_) {
      if (one.name.empty()) {
        return Status(Code::kMismatch, "a result has an empty name");
      }
      if (seen.insert(one.name).second) continue;
      return Status(Code::kMismatch, "two results have this name")
          .In(Quote(one.name));
    }
    return Status();
  }

  // Whether each number is a group of its own.
  bool IsByNumber() const {
    return rule_->sources.is_numbered && rule_->targets.is_numbered;
  }

  std::vector<Group> FindGroups() const {
    const auto& patterns = rule_->sources.patterns;
    std::vector<Group> groups;
    std::map<std::pair<std::string_view, uint64_t>, size_t> by_name;
    for (size_t i = 0; i < list_.size(); ++i) {
      for (size_t p = 0; p < patterns.size(); ++p) {
        const auto match =
            patterns[p].Find(list_[i].name, rule_->sources.is_numbered);
        if (!match.has_value()) continue;
        const uint64_t number = IsByNumber() ? match->number : 0;
        const auto [at, is_new] =
            by_name.try_emplace({match->group, number}, groups.size());
        if (is_new) {
          groups.push_back(
              {std::string(match->group), number,
               std::vector<std::map<uint64_t, size_t>>(patterns.size()), i});
        }
        groups[at->second].members[p].emplace(match->number - number, i);
      }
    }
    return groups;
  }

  Status ApplyOne() {
    const std::vector<Group> groups = FindGroups();
    if (groups.empty()) return NoMatch();
    std::vector<bool> is_consumed(list_.size());
    std::multimap<size_t, Named> made;  // By the place of the first source.
    for (const Group& group : groups) {
      HAULWAY_TRY(CheckMembers(group));
      for (const auto& members : group.members) {
        for (const auto& [number, at] : members) {
          if (is_consumed[at]) {
            return Status(Code::kMismatch, "two sources are this tensor")
                .In(Quote(list_[at].name));
          }
          is_consumed[at] = true;
          name_bytes_ -= list_[at].name.size();
        }
      }
      Status status = Make(group, &made);
      if (!status.ok()) {
        return std::move(status).In(Quote(list_[group.first].name));
      }
    }
    std::vector<Named> list;
    for (size_t i = 0; i < list_.size(); ++i) {
      const auto [begin, end] = made.equal_range(i);
      for (auto at = begin; at != end; ++at) {
        list.push_back(std::move(at->second));
      }
      if (!is_consumed[i]) list.push_back(std::move(list_[i]));
    }
    list_ = std::move(list);
    return Status();
  }

  // Fails unless all sources are there, with the numbers from 0 on.
  Status CheckMembers(const Group& group) const {
    const auto& patterns = rule_->sources.patterns;
    const auto missing = [&](size_t pattern, uint64_t number) {
      std::optional<uint64_t> shown;
      if (rule_->sources.is_numbered) shown = number + group.number;
      return Status(Code::kMismatch, "a source is missing")
          .In(Quote(patterns[pattern].Name(group.name, shown)));
    };
    size_t count = 0;
    for (const auto& members : group.members) {
      count = std::max(count, members.size());
    }
    for (size_t p = 0; p < patterns.size(); ++p) {
      uint64_t next = 0;
      for (const auto& [number, at] : group.members[p]) {
        if (number != next++) return missing(p, next - 1);
      }
      if (next != count) return missing(p, next);
    }
    return Status();
  }

  // Makes the results of a group.
  Status Make(const Group& group, std::multimap<size_t, Named>* made) {
    const auto& targets = rule_->targets.patterns;
    if (targets.empty()) return Status();
    if (IsRenaming()) {
      for (size_t p = 0; p < targets.size(); ++p) {
        Named one = list_[group.members[p].at(0)];
        HAULWAY_ASSIGN(one.name, NewName(group, p, 0));
        one.is_ruled = true;
        made->emplace(group.first, std::move(one));
      }
      return Status();
    }
    Tensors tensors;
    tensors.is_numbered = rule_->sources.is_numbered && !IsByNumber();
    for (const auto& members : group.members) {
      Members& list = tensors.lists.emplace_back();
      for (const auto& [number, at] : members) {
        HAULWAY_ASSIGN(list.emplace_back(), TensorOf(list_[at]));
      }
    }
    HAULWAY_TRY(Compute(&tensors));
    const bool is_numbered = rule_->targets.is_numbered && !IsByNumber();
    if (tensors.lists.size() != targets.size() ||
        tensors.is_numbered != is_numbered) {
      return Status(
          Code::kMismatch,
          fmt::format("its operations make {}{}, which are not its targets",
                      tensors.is_numbered ? "numbered tensors for " : "",
                      tensors.lists.size()));
    }
    for (size_t p = 0; p < targets.size(); ++p) {
      count_made_ += tensors.lists[p].size();
      if (count_made_ > kMostMade) {
        return Status(
            Code::kLimit,
            fmt::format("the rules make more than {} tensors", kMostMade));
      }
      for (size_t i = 0; i < tensors.lists[p].size(); ++i) {
        HAULWAY_ASSIGN(std::string name, NewName(group, p, i));
        made->emplace(group.first, Named{.name = std::move(name),
                                         .made = std::move(tensors.lists[p][i]),
                                         .is_ruled = true});
      }
    }
    return Status();
  }

  // Whether tensors only get other names: then they stay the stored ones.
  bool IsRenaming() const {
    return rule_->operations.empty() && !rule_->function.has_value() &&
           rule_->sources.patterns.size() == rule_->targets.patterns.size() &&
           rule_->sources.is_numbered == rule_->targets.is_numbered;
  }

  Result<std::string> NewName(const Group& group, size_t target,
                              uint64_t number) {
    std::optional<uint64_t> shown;
    if (rule_->targets.is_numbered) shown = group.number + number;
    std::string name = rule_->targets.patterns[target].Name(group.name, shown);
    name_bytes_ += name.size();
    HAULWAY_TRY(CheckSize(name));
    return name;
  }

  Result<MadeTensor> TensorOf(const Named& one) const {
    if (one.made.has_value()) return *one.made;
    const uint32_t tensor = reader_.index().entries[one.entry].tensor;
    if (!rules_.takes_quantized) HAULWAY_TRY(scaled_.CheckPlain(tensor));
    auto made = StoredTensor(reader_, tensor);
    if (!made.ok()) return std::move(made).status().In(Quote(one.name));
    return made;
  }

  Status Compute(Tensors* tensors) {
    const auto named = [&](std::string_view name) {
      return numbers_.Find(name);
    };
    Parameters base;
    base.targets = rule_->targets.patterns.size();
    base.kept = kept_;
    for (const RuleOperation& operation : rule_->operations) {
      HAULWAY_TRY(Apply(operation, base, named, tensors));
    }
    return rule_->function.has_value() ? CallFunction(tensors) : Status();
  }

  // Replaces the tensors by those that a function makes of them.
  Status CallFunction(Tensors* tensors) {
    Members sources;
    for (Members& list : tensors->lists) {
      std::ranges::move(list, std::back_inserter(sources));
    }
    std::vector<uint32_t> inputs;
    for (const MadeTensor& one : sources) {
      inputs.insert(inputs.end(), one.inputs.begin(), one.inputs.end());
    }
    const auto call = [kept = results_, key = functions_called_++, sources,
                       function = rules_.functions[*rule_->function]] {
      return kept->Get(key, [&] { return Call(function, sources); });
    };
    HAULWAY_ASSIGN(const auto results, call());
    const size_t targets = rule_->targets.patterns.size();
    if (results->size() != targets) {
      return Status(Code::kMismatch,
                    fmt::format("its function returned {} tensors: expected "
                                "one for each of {} targets",
                                results->size(), targets));
    }
    tensors->lists = std::vector<Members>(targets);
    tensors->is_numbered = false;
    for (size_t i = 0; i < targets; ++i) {
      const RuleTensor& one = (*results)[i];
      const uint64_t size = one.bytes.size();
      const auto read = [call, i, size](uint64_t offset,
                                        std::span<std::byte> out) -> Status {
        HAULWAY_ASSIGN(const auto now, call());
        if (now->size() <= i || (*now)[i].bytes.size() != size) {
          return Status(Code::kMismatch,
                        "the function of its rule returned other tensors than "
                        "before");
        }
        std::ranges::copy((*now)[i].bytes.bytes().subspan(offset, out.size()),
                          out.begin());
        return Status();
      };
      tensors->lists[i].push_back(
          {one.dtype, one.shape,
           MakeFunctionSource(size, read,
                              std::string(reader_.source()->name())),
           inputs});
    }
    return Status();
  }

  const FormatReader& reader_;
  const RulesToApply& rules_;
  const ScaledTensors scaled_;
  ConfigNumbers numbers_;
  const std::shared_ptr<KeptPanels> kept_;
  // What functions returned for the last group.
  const std::shared_ptr<KeptValues<FunctionResults>> results_;
  uint64_t functions_called_ = 0;
  std::vector<Named> list_;
  uint64_t name_bytes_ = 0;     // Of all names.
  uint64_t count_made_ = 0;     // By all rules.
  const Rule* rule_ = nullptr;  // The one that is being applied.
};

}  // namespace

Result<RuledTensors> ApplyRules(const FormatReader& reader,
                                const ByteSource& beside,
                                const RulesToApply& rules) {
  RuleApplier applier(reader, beside, rules);
  HAULWAY_TRY(applier.ApplyAll());
  return applier.Finish();
}

}  // namespace haulway::arithmetic
