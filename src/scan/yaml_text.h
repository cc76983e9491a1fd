// YAML and its simpler kin, and what programs run because of them.

#pragma once

#include <optional>
#include <string_view>

#include "scan/config_names.h"
#include "scan/text_proof.h"

namespace haulway::scan {

// Tags by which loaders of YAML call what they name. A file that is called
// YAML may have none but YAML's own; in other texts an exclamation mark is one
// only if it begins a tag of PyYAML for objects of Python.
std::optional<Doubt> DoubtOfTags(std::string_view text, bool is_yaml);

// Keys and values of a file that is called YAML, TOML or a configuration, by
// which programs import, call or evaluate what they name.
std::optional<Doubt> DoubtOfPairs(std::string_view text,
                                  const ConfigPlace& place);

}  // namespace haulway::scan
