#include "runs/run_manifest.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <optional>
#include <set>
#include <utility>

#include "base/json_text.h"
#include "base/text.h"

namespace haulway {

namespace {

namespace dom = simdjson::dom;

constexpr uint64_t kVersion = 1;

Status Corrupt(std::string_view what) {
  return Status(Code::kCorrupt, what).In(kRunManifestName);
}

std::optional<Sha256Value> DigestOf(std::string_view hex) {
  Sha256Value digest{};
  if (hex.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < hex.size(); ++i) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const size_t value = kDigits.find(hex[i]);
    if (value == kDigits.npos) return std::nullopt;
    std::byte& byte = digest[i / 2];
    byte = i % 2 == 0 ? std::byte(value << 4) : byte | std::byte(value);
  }
  return digest;
}

Status ParseFile(std::string_view name, dom::element element,
                 RunManifest* manifest) {
  ManifestFile file{.name = std::string(name)};
  if (!IsPathBelow(name) || name == kRunManifestName) {
    return Corrupt(
        fmt::format("file {} is not a name below the folder", Quote(name)));
  }
  std::string_view hex;
  if (element["bytes"].get(file.bytes) != simdjson::SUCCESS ||
      element["sha256"].get(hex) != simdjson::SUCCESS) {
    return Corrupt(
        fmt::format("file {}: expected bytes and sha256", Quote(name)));
  }
  const auto digest = DigestOf(hex);
  if (!digest.has_value()) {
    return Corrupt(fmt::format(
        "file {}: its sha256 is not of 64 hexadecimal digits", Quote(name)));
  }
  file.sha256 = *digest;
  manifest->files.push_back(std::move(file));
  return Status();
}

Status ParseFiles(dom::element element, RunManifest* manifest) {
  dom::object files;
  if (element.get(files) != simdjson::SUCCESS) {
    return Corrupt("files: expected an object");
  }
  std::set<std::string_view> names;
  for (const dom::key_value_pair file : files) {
    if (!names.insert(file.key).second) {
      return Corrupt(fmt::format("file {} is there twice", Quote(file.key)));
    }
    HAULWAY_TRY(ParseFile(file.key, file.value, manifest));
  }
  if (names.empty()) return Corrupt("files: there is none");
  return Status();
}

Status ParseText(dom::element element, std::string_view key,
                 std::string* text) {
  std::string_view value;
  if (element.get(value) != simdjson::SUCCESS) {
    return Corrupt(fmt::format("{}: expected a text", key));
  }
  *text = value;
  return Status();
}

// Parses one of the keys of a manifest; others are left to later versions.
Status ParseKey(std::string_view key, dom::element value,
                RunManifest* manifest) {
  if (key == "step") {
    if (value.get(manifest->step) != simdjson::SUCCESS) {
      return Corrupt("step: expected a whole number");
    }
  } else if (key == "format") {
    return ParseText(value, key, &manifest->format);
  } else if (key == "created") {
    return ParseText(value, key, &manifest->created);
  } else if (key == "save") {
    HAULWAY_TRY(ParseText(value, key, &manifest->save));
    if (!manifest->save.starts_with(kSavePrefix) ||
        manifest->save.find('/') != manifest->save.npos ||
        !IsPathBelow(manifest->save)) {
      return Corrupt("save: expected the name of a folder");
    }
  } else if (key == "files") {
    return ParseFiles(value, manifest);
  } else if (key == "metadata" && !value.is_null()) {
    manifest->metadata = simdjson::minify(value);
  }
  return Status();
}

}  // namespace

bool IsPathBelow(std::string_view name) {
  if (name.find('\0') != name.npos) return false;
  while (true) {
    const std::string_view part = name.substr(0, name.find('/'));
    if (part.empty() || part == "." || part == "..") return false;
    if (part.size() == name.size()) return true;
    name.remove_prefix(part.size() + 1);
  }
}

Result<RunManifest> ParseRunManifest(std::string_view json) {
  if (json.size() > kMostManifestBytes) {
    return Status(Code::kLimit,
                  fmt::format("manifest of {} bytes: expected at most {}",
                              json.size(), kMostManifestBytes))
        .In(kRunManifestName);
  }
  dom::parser parser;
  dom::object object;
  if (parser.parse(json.data(), json.size()).get(object) != simdjson::SUCCESS) {
    return Corrupt("manifest is not a JSON object");
  }
  uint64_t version = 0;
  if (object["version"].get(version) != simdjson::SUCCESS) {
    return Corrupt("version: expected a whole number");
  }
  if (version != kVersion) {
    return Status(Code::kUnsupported,
                  fmt::format("version {} of the manifest: expected {}",
                              version, kVersion))
        .In(kRunManifestName);
  }
  RunManifest manifest;
  std::set<std::string_view> keys;
  for (const dom::key_value_pair field : object) {
    if (!keys.insert(field.key).second) {
      return Corrupt(fmt::format("{} is there twice", Quote(field.key)));
    }
    HAULWAY_TRY(ParseKey(field.key, field.value, &manifest));
  }
  for (const std::string_view key : {"step", "format", "files"}) {
    if (!keys.contains(key)) return Corrupt(fmt::format("lacks {}", key));
  }
  return manifest;
}

std::string RunManifestToJson(const RunManifest& manifest) {
  std::string json = fmt::format(
      "{{\"version\": {}, \"step\": {}, \"format\": {}, \"created\": {}",
      kVersion, manifest.step, JsonText(manifest.format),
      JsonText(manifest.created));
  if (!manifest.save.empty()) {
    json += fmt::format(", \"save\": {}", JsonText(manifest.save));
  }
  json += ", \"files\": {";
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    json += fmt::format("{}\n  {}: {{\"bytes\": {}, \"sha256\": \"{}\"}}",
                        i == 0 ? "" : ",", JsonText(file.name), file.bytes,
                        Hex(file.sha256));
  }
  json += '}';
  if (!manifest.metadata.empty()) {
    json += fmt::format(", \"metadata\": {}", manifest.metadata);
  }
  return json + "}\n";
}

}  // namespace haulway
