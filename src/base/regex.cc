#include "base/regex.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/text.h"

namespace haulway {

namespace {

using re2::RE2;
using re2::StringPiece;

constexpr std::string_view kDigits = "0123456789";

// A part of a replacement: literal text, or the number of a group.
struct Piece {
  std::string_view text;
  int group = -1;
};

bool IsLetterOrDigit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
         (c >= 'A' && c <= 'Z');
}

// Returns the number of the group with this number or name, or nullopt.
std::optional<int> GroupOf(const RE2& regex, std::string_view name) {
  int number = 0;
  const char* const end = name.data() + name.size();
  if (const auto parsed = std::from_chars(name.data(), end, number);
      parsed.ec == std::errc() && parsed.ptr == end) {
    if (number < 0 || number > regex.NumberOfCapturingGroups()) {
      return std::nullopt;
    }
    return number;
  }
  const auto& groups = regex.NamedCapturingGroups();
  const auto found = groups.find(std::string(name));
  if (found == groups.end()) return std::nullopt;
  return found->second;
}

// Parses and removes what follows a backslash at the front of `rest`.
Result<Piece> TakeEscape(const RE2& regex, std::string_view* rest) {
  const auto group = [&](std::string_view name) -> Result<Piece> {
    const auto number = GroupOf(regex, name);
    if (number.has_value()) return Piece{.text = {}, .group = *number};
    return Status(Code::kInvalidArgument,
                  fmt::format("the expression has no group {}", Quote(name)));
  };
  if (rest->starts_with("g<")) {
    const size_t end = rest->find('>');
    if (end == rest->npos) {
      return Status(Code::kInvalidArgument, "'\\g<' without a '>'");
    }
    const std::string_view name = rest->substr(2, end - 2);
    rest->remove_prefix(end + 1);
    return group(name);
  }
  size_t digits = 0;
  while (digits < 2 && digits < rest->size() &&
         kDigits.find((*rest)[digits]) != kDigits.npos) {
    ++digits;
  }
  if (digits > 0) {
    const std::string_view name = rest->substr(0, digits);
    rest->remove_prefix(digits);
    return group(name);
  }
  if (rest->empty() || IsLetterOrDigit(rest->front())) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("'\\{}' means nothing: expected \\1, \\g<name> or \\\\",
                    Escape(rest->substr(0, 1))));
  }
  const Piece piece{.text = rest->substr(0, 1)};
  rest->remove_prefix(1);
  return piece;
}

Result<std::vector<Piece>> PiecesOf(const RE2& regex,
                                    std::string_view replacement) {
  std::vector<Piece> pieces;
  while (!replacement.empty()) {
    const size_t text = std::min(replacement.find('\\'), replacement.size());
    if (text > 0) {
      pieces.push_back({.text = replacement.substr(0, text)});
      replacement.remove_prefix(text);
      continue;
    }
    replacement.remove_prefix(1);
    HAULWAY_ASSIGN(const Piece piece, TakeEscape(regex, &replacement));
    pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace

Regex::Regex(std::unique_ptr<const RE2> compiled)
    : compiled_(std::move(compiled)) {}
Regex::Regex(Regex&& other) noexcept = default;
Regex& Regex::operator=(Regex&& other) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::Make(std::string_view pattern) {
  RE2::Options options;
  options.set_log_errors(false);  // Log nothing.
  auto compiled = std::make_unique<const RE2>(
      StringPiece(pattern.data(), pattern.size()), options);
  if (!compiled->ok()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("not a regular expression: {}",
                              Escape(compiled->error())))
        .In(Quote(pattern));
  }
  return Regex(std::move(compiled));
}

bool Regex::Finds(std::string_view text) const {
  return RE2::PartialMatch(StringPiece(text.data(), text.size()), *compiled_);
}

Status Regex::CheckReplacement(std::string_view replacement) const {
  return PiecesOf(*compiled_, replacement).status();
}

std::string Regex::ReplaceAll(std::string_view text,
                              std::string_view replacement) const {
  const auto pieces = PiecesOf(*compiled_, replacement);
  if (!pieces.ok()) return std::string(text);
  const StringPiece whole(text.data(), text.size());
  std::vector<StringPiece> groups(
      static_cast<size_t>(compiled_->NumberOfCapturingGroups()) + 1);
  std::string out;
  size_t at = 0;
  while (at <= text.size() &&
         compiled_->Match(whole, at, text.size(), RE2::UNANCHORED,
                          groups.data(), static_cast<int>(groups.size()))) {
    const auto begin = static_cast<size_t>(groups[0].data() - text.data());
    const size_t end = begin + groups[0].size();
    out += text.substr(at, begin - at);
    for (const Piece& piece : *pieces) {
      if (piece.group < 0) {
        out += piece.text;
      } else {
        const StringPiece& group = groups[static_cast<size_t>(piece.group)];
        out.append(group.data() == nullptr ? "" : group.data(), group.size());
      }
    }
    at = end;
    // After an empty match, continue behind the next character.
    if (end == begin) {
      const size_t length =
          end == text.size()
              ? 1
              : std::max<size_t>(Utf8SequenceLength(text.substr(end), false),
                                 1);
      out += text.substr(end, length);
      at += length;
    }
  }
  if (at < text.size()) out += text.substr(at);
  return out;
}

}  // namespace haulway
