// Checks YAML and simpler configuration formats for what they make programs
// run.

#pragma once

#include <optional>
#include <string_view>

#include "scan/config_names.h"
#include "scan/text_proof.h"

namespace haulway::scan {

// Returns a doubt for tags by which YAML loaders call what the tag names. A
// file named as YAML may have only YAML's own tags. In other texts, an
// exclamation mark counts only if it begins a PyYAML tag for Python objects.
std::optional<Doubt> DoubtOfTags(std::string_view text, bool is_yaml);

// Returns a doubt for keys and values by which programs import, call or
// evaluate what they name. Applies to files named as YAML, TOML or a
// configuration.
std::optional<Doubt> DoubtOfPairs(std::string_view text,
                                  const ConfigPlace& place);

// Returns a doubt for a model of YOLO in YAML, which may also be JSON, if it
// calls something: Ultralytics evaluates its parts.
std::optional<Doubt> DoubtOfYolo(std::string_view text);

// Returns a doubt for templates of Jinja in a configuration.
std::optional<Doubt> DoubtOfTemplates(std::string_view text);

}  // namespace haulway::scan
