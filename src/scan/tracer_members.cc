// Traces enumeration members as Python 3.11.0 to 3.11.3 pickled them: a call of
// getattr with a class and the name of a member.

#include <algorithm>
#include <vector>

#include "scan/tracer.h"

namespace haulway::scan {

// Records the new tuple if it names an enumeration member: an enumeration
// class, and a name in the form that only members have.
void Tracer::NoteMember(const std::vector<Thing>& items) {
  if (!ended_ && items.size() == 2 && IsEnumerationHere(items[0]) &&
      items[1].is(Kind::kText) && IsMemberName(items[1].at())) {
    members_.insert(op_);
  }
}

bool Tracer::IsEnumerationHere(Thing thing) const {
  if (!thing.is(Kind::kGlobal)) return false;
  const auto& [module, name] = names_[thing.at()];
  return IsEnumeration(module, name);
}

bool Tracer::IsMemberName(uint64_t text) {
  const auto known = member_names_.find(text);
  if (known != member_names_.end()) return known->second;
  // Enumerations have few members. Strings beyond the limit do not count as
  // names of members.
  if (member_names_.size() >= kMostGlobals) return false;
  const auto name = TextAt(text);
  const auto is_upper = [](char c) { return c >= 'A' && c <= 'Z'; };
  const bool is_name =
      name.ok() && name->has_value() && !(*name)->empty() &&
      is_upper((*name)->front()) && std::ranges::all_of(**name, [&](char c) {
        return is_upper(c) || c == '_' || (c >= '0' && c <= '9');
      });
  member_names_.emplace(text, is_name);
  return is_name;
}

void Tracer::JudgeGetattr() {
  if (getattr_pushes_ == getattr_calls_ && !getattr_changed_) return;
  for (NamedGlobal& global : trace_.globals) {
    if (global.module == "builtins" && global.name == "getattr") {
      global.allowed = false;
    }
  }
  FaultAt(getattr_byte_, Code::kUnsafe,
          "global 'builtins.getattr' is not allowed but to take a member of a "
          "known enumeration");
}

}  // namespace haulway::scan
