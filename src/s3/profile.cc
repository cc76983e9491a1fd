#include "s3/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/ascii.h"
#include "base/text.h"

namespace haulway::s3 {

namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return file.good() || file.eof() ? std::move(text).str() : std::string();
}

// Returns the path in a variable, or else the default path in the home folder.
std::string FilePath(std::string_view variable, std::string_view usual,
                     const Environment& environment) {
  std::string path = environment(variable);
  if (path.empty()) path = "~/.aws/" + std::string(usual);
  if (path.starts_with("~/")) path = environment("HOME") + path.substr(1);
  return path;
}

}  // namespace

std::map<std::string, Section, std::less<>> ParseIni(std::string_view text) {
  std::map<std::string, Section, std::less<>> sections;
  Section* section = nullptr;
  std::string outer;  // The key that indented lines belong to.
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::string_view trimmed = Trim(line);
    if (trimmed.empty() || trimmed.front() == '#' || trimmed.front() == ';') {
      continue;
    }
    if (trimmed.front() == '[' && trimmed.back() == ']') {
      section =
          &sections[std::string(Trim(trimmed.substr(1, trimmed.size() - 2)))];
      outer.clear();
      continue;
    }
    const size_t equals = trimmed.find('=');
    if (section == nullptr || equals == trimmed.npos) continue;
    const std::string key(Trim(trimmed.substr(0, equals)));
    const std::string_view value = Trim(trimmed.substr(equals + 1));
    const bool is_nested = line.front() == ' ' || line.front() == '\t';
    if (is_nested && !outer.empty()) {
      (*section)[outer + "." + key] = value;
    } else {
      (*section)[key] = value;
      outer = value.empty() ? key : "";
    }
  }
  return sections;
}

std::string Profile::Value(std::string_view key) const {
  for (const Section* section : {&credentials, &config}) {
    const auto found = section->find(key);
    if (found != section->end()) return found->second;
  }
  return {};
}

Result<Profile> LoadProfile(std::string_view name,
                            const Environment& environment) {
  Profile profile;
  profile.name = name;
  for (const std::string_view variable :
       {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"}) {
    if (profile.name.empty()) profile.name = environment(variable);
  }
  const bool is_named = !profile.name.empty();
  if (!is_named) profile.name = "default";
  const auto credentials = ParseIni(ReadText(
      FilePath("AWS_SHARED_CREDENTIALS_FILE", "credentials", environment)));
  const auto config =
      ParseIni(ReadText(FilePath("AWS_CONFIG_FILE", "config", environment)));
  const auto of = [](const auto& sections, std::string_view section) {
    const auto found = sections.find(section);
    return found == sections.end() ? Section() : found->second;
  };
  profile.credentials = of(credentials, profile.name);
  profile.config =
      of(config,
         profile.name == "default" ? profile.name : "profile " + profile.name);
  if (is_named && profile.credentials.empty() && profile.config.empty()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("there is no profile {} in the AWS "
                              "configuration",
                              Quote(profile.name)));
  }
  profile.services = of(config, "services " + profile.Value("services"));
  return profile;
}

}  // namespace haulway::s3
