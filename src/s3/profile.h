// What the AWS command line's files and the environment say: profiles.

#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "haulway/status.h"

namespace haulway::s3 {

using Environment = std::function<std::string(std::string_view name)>;

// The values of a section by key; those of nested ones as "key.subkey".
using Section = std::map<std::string, std::string, std::less<>>;

// Sections by what stands between their brackets. Never fails: lines that are
// none are passed over.
std::map<std::string, Section, std::less<>> ParseIni(std::string_view text);

// A Profile is what both files say of one, the credentials file first.
struct Profile {
  std::string name;
  Section credentials;  // From ~/.aws/credentials.
  Section config;       // From ~/.aws/config.
  Section services;     // The section that `services` of config names.

  std::string Value(std::string_view key) const;
};

// The profile `name`; if that is empty, the one of AWS_PROFILE or
// AWS_DEFAULT_PROFILE, else "default". Fails with kInvalidArgument if one that
// was named is in neither file.
Result<Profile> LoadProfile(std::string_view name,
                            const Environment& environment);

}  // namespace haulway::s3
