#include "delta/version_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.h"

namespace haulway::delta {

namespace {

constexpr std::array<std::string_view, 2> kChanges = {"xor", "overwrite"};
constexpr std::array<std::string_view, 3> kChecksums = {"xxh3-128", "blake3",
                                                        "adler32"};
constexpr std::string_view kEncodingKey = "delta_encoding";
// Folders are called so by trainers whose versions are numbers.
constexpr std::string_view kFolderStem = "weight_v";

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

template <class Words>
std::optional<size_t> RowOf(const Words& words, std::string_view word) {
  const auto found = std::ranges::find(words, word);
  if (found == words.end()) return std::nullopt;
  return static_cast<size_t>(found - words.begin());
}

const FactValue* Find(std::span<const Fact> metadata, std::string_view key) {
  const auto found = std::ranges::find(metadata, key, &Fact::name);
  return found == metadata.end() ? nullptr : &found->value;
}

std::optional<std::string> TextOf(std::span<const Fact> metadata,
                                  std::string_view key) {
  const FactValue* const value = Find(metadata, key);
  if (value == nullptr) return std::nullopt;
  if (const auto* text = std::get_if<std::string>(value)) return *text;
  if (const auto* number = std::get_if<int64_t>(value); number != nullptr) {
    if (*number >= 0) return fmt::format("{:06}", *number);
  }
  if (const auto* number = std::get_if<uint64_t>(value); number != nullptr) {
    return fmt::format("{:06}", *number);
  }
  return std::nullopt;
}

Result<std::string> NeededText(std::span<const Fact> metadata,
                               std::string_view key) {
  if (std::ranges::count(metadata, key, &Fact::name) > 1) {
    return Status(
        Code::kCorrupt,
        fmt::format("metadata of the index have {} more than once", key));
  }
  auto text = TextOf(metadata, key);
  if (!text.has_value() || text->empty()) {
    return Status(Code::kCorrupt,
                  fmt::format("metadata of the index have no {}", key));
  }
  return *std::move(text);
}

template <class Words>
Result<size_t> OneOf(std::span<const Fact> metadata, std::string_view key,
                     const Words& words) {
  HAULWAY_ASSIGN(const std::string text, NeededText(metadata, key));
  if (const auto row = RowOf(words, text)) return *row;
  std::string known;
  for (const std::string_view word : words) {
    known += fmt::format("{}{}", known.empty() ? "" : " or ", word);
  }
  return Status(Code::kUnsupported, fmt::format("{} {} is not known: expected "
                                                "{}",
                                                key, Quote(text), known));
}

std::string_view WithoutZeros(std::string_view digits) {
  const size_t first = digits.find_first_not_of('0');
  return digits.substr(first == digits.npos ? digits.size() - 1 : first);
}

// Returns the digits at the end of a text.
std::string_view TrailingDigits(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0 && IsDigit(text[begin - 1])) --begin;
  return text.substr(begin);
}

}  // namespace

std::string_view Name(Change change) {
  return kChanges[static_cast<size_t>(change)];
}

std::optional<Change> ChangeFromName(std::string_view name) {
  const auto row = RowOf(kChanges, name);
  if (!row.has_value()) return std::nullopt;
  return static_cast<Change>(*row);
}

std::string_view Name(ChecksumKind kind) {
  return kChecksums[static_cast<size_t>(kind)];
}

std::optional<ChecksumKind> ChecksumKindFromName(std::string_view name) {
  const auto row = RowOf(kChecksums, name);
  if (!row.has_value()) return std::nullopt;
  return static_cast<ChecksumKind>(*row);
}

Status CheckFolder(std::string_view folder, std::string_view version) {
  const std::string_view digits = TrailingDigits(folder);
  const std::string_view stem = folder.substr(0, folder.size() - digits.size());
  const std::string_view number = NumberOf(version);
  if (digits.empty() || number.empty()) return Status();
  // Where a server names the versions, "v4" may hold any of them.
  const bool is_numbered =
      stem == kFolderStem || (stem == "v" && version.front() == 'v');
  if (!is_numbered || WithoutZeros(digits) == number) return Status();
  return Status(Code::kMismatch, fmt::format("folder {} holds version {}",
                                             Quote(folder), Quote(version)));
}

bool IsDelta(std::span<const Fact> metadata) {
  return Find(metadata, kEncodingKey) != nullptr;
}

std::optional<std::string> VersionOf(std::span<const Fact> metadata) {
  return TextOf(metadata, "version");
}

Result<VersionFacts> ReadVersionFacts(std::span<const Fact> metadata,
                                      std::string_view folder) {
  VersionFacts facts;
  HAULWAY_ASSIGN(facts.version, NeededText(metadata, "version"));
  HAULWAY_ASSIGN(facts.base, NeededText(metadata, "base_version"));
  HAULWAY_ASSIGN(const size_t change, OneOf(metadata, kEncodingKey, kChanges));
  facts.change = static_cast<Change>(change);
  constexpr std::array<std::string_view, 1> kCompressions = {"zstd"};
  HAULWAY_TRY(OneOf(metadata, "compression_format", kCompressions).status());
  HAULWAY_ASSIGN(const size_t checksum,
                 OneOf(metadata, "checksum_format", kChecksums));
  facts.checksum = static_cast<ChecksumKind>(checksum);
  if (IsSameVersion(facts.version, facts.base)) {
    return Status(Code::kCorrupt, fmt::format("version {} builds on itself",
                                              Quote(facts.version)));
  }
  HAULWAY_TRY(CheckFolder(folder, facts.version));
  return facts;
}

std::string_view NumberOf(std::string_view version) {
  if (version.starts_with('v')) version.remove_prefix(1);
  if (version.empty() || !std::ranges::all_of(version, IsDigit)) return {};
  return WithoutZeros(version);
}

std::string_view DigitsOfFolder(std::string_view folder) {
  for (const std::string_view stem : {kFolderStem, std::string_view("v")}) {
    if (!folder.starts_with(stem)) continue;
    const std::string_view digits = folder.substr(stem.size());
    if (!digits.empty() && std::ranges::all_of(digits, IsDigit)) return digits;
  }
  return {};
}

bool IsSameVersion(std::string_view a, std::string_view b) {
  if (a == b) return true;
  const std::string_view number = NumberOf(a);
  return !number.empty() && number == NumberOf(b) &&
         a.starts_with('v') == b.starts_with('v');
}

bool IsOlderVersion(std::string_view a, std::string_view b) {
  const std::string_view x = NumberOf(a);
  const std::string_view y = NumberOf(b);
  if (x.empty() || y.empty()) return false;
  return x.size() != y.size() ? x.size() < y.size() : x < y;
}

Status CheckBase(std::string_view version, std::string_view base,
                 const std::optional<std::string>& states) {
  const std::string_view number = NumberOf(base);
  if (number.empty() || number == "0") return Status();
  if (states.has_value() && NumberOf(*states) == number) return Status();
  const std::string found =
      states.has_value()
          ? fmt::format(
                "the checkpoint named with base= or --base is version "
                "{}",
                Quote(*states))
          : "the checkpoint named with base= or --base does not say that it "
            "is that version";
  return Status(
      Code::kMismatch,
      fmt::format("version {} builds on version {}, which is missing, and {}: "
                  "put version {} back, use a later full version, or name a "
                  "checkpoint of version {} whose index states it or whose "
                  "folder is called weight_v{:0>6}",
                  Quote(version), Quote(base), found, Quote(base), Quote(base),
                  number));
}

std::vector<std::string> FoldersOfBase(std::string_view folder,
                                       std::string_view version,
                                       std::string_view base) {
  std::vector<std::string> names;
  if (!version.empty() && folder.ends_with(version)) {
    names.push_back(fmt::format(
        "{}{}", folder.substr(0, folder.size() - version.size()), base));
  }
  // The same numbers, with as many digits as the folder has.
  const std::string_view digits = TrailingDigits(folder);
  const std::string_view number = NumberOf(version);
  const std::string_view of_base = NumberOf(base);
  if (!digits.empty() && !number.empty() && !of_base.empty() &&
      WithoutZeros(digits) == number) {
    const std::string_view stem =
        folder.substr(0, folder.size() - digits.size());
    std::string name = fmt::format("{}{:0>{}}", stem, of_base, digits.size());
    if (std::ranges::find(names, name) == names.end()) {
      names.push_back(std::move(name));
    }
    // "v9" is the base of "v10".
    name = fmt::format("{}{}", stem, of_base);
    if (digits.front() != '0' &&
        std::ranges::find(names, name) == names.end()) {
      names.push_back(std::move(name));
    }
  }
  // A name from an index must not lead elsewhere.
  std::erase_if(names, [](const std::string& name) {
    return name.find('/') != name.npos || name.find('\0') != name.npos ||
           name == "." || name == "..";
  });
  std::erase(names, std::string(folder));
  return names;
}

}  // namespace haulway::delta
