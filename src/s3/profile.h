// Reads profiles from the files of the AWS command line and from the
// environment.

#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "haulway/status.h"

namespace haulway::s3 {

using Environment = std::function<std::string(std::string_view name)>;

// The values of a section by key. Nested keys are written "key.subkey".
using Section = std::map<std::string, std::string, std::less<>>;

// Parses sections; the key is the text between the brackets. Never fails:
// invalid lines are skipped.
std::map<std::string, Section, std::less<>> ParseIni(std::string_view text);

// A Profile holds the settings of one profile in both files. The credentials
// file takes precedence.
struct Profile {
  std::string name;
  Section credentials;  // From ~/.aws/credentials.
  Section config;       // From ~/.aws/config.
  Section services;     // The section named by `services` in config.

  std::string Value(std::string_view key) const;
};

// Returns profile `name` or, if empty, the profile named by AWS_PROFILE or
// AWS_DEFAULT_PROFILE, else "default". Fails with kInvalidArgument if a named
// profile is in neither file.
Result<Profile> LoadProfile(std::string_view name,
                            const Environment& environment);

}  // namespace haulway::s3
