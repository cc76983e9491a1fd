// Design: headers are read by the rules of Python's tarfile, which accepts more
// than others do: checksums of signed bytes, numbers with signs and
// underscores, base 256, a prefix whatever the magic is. Where other readers
// would read something else, the member says so (`odd`). Headers that describe
// the next member are followed as far as they name it, and refused otherwise.
//
// Alternative not taken: torch's own reader of tars, which is strict, and so
// would not see what tarfile extracts.

#include "scan/tar_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/ascii.h"
#include "base/checked.h"
#include "base/text.h"
#include "haulway/options.h"
#include "scan/byte_window.h"

namespace haulway::scan {

namespace {

// Header fields of POSIX.1-1988 ustar.
constexpr size_t kSizeField = 124;
constexpr size_t kSizeBytes = 12;
constexpr size_t kSumField = 148;
constexpr size_t kSumBytes = 8;
constexpr size_t kTypeField = 156;
constexpr size_t kPrefixField = 345;
// Limit on the size of a member that describes the next one.
constexpr uint64_t kMostDescription = kMiB;

// Parses a number as tarfile's nti() does: int() of the text before a NUL, or
// base 256.
std::optional<int64_t> TarNumber(std::string_view field) {
  const auto first = static_cast<unsigned char>(field[0]);
  if (first == 0x80 || first == 0xFF) {
    // No file size needs more than eight bytes.
    uint64_t number = first == 0xFF ? UINT64_MAX : 0;
    for (const char c : field.substr(1)) {
      if (number >> 55 != 0 && number >> 55 != 0x1FF) return std::nullopt;
      number = number << 8 | static_cast<unsigned char>(c);
    }
    return static_cast<int64_t>(number);
  }
  field = field.substr(0, field.find('\0'));
  while (!field.empty() && IsSpace(field.front())) field.remove_prefix(1);
  while (!field.empty() && IsSpace(field.back())) field.remove_suffix(1);
  if (field.empty()) return 0;
  const bool negative = field.front() == '-';
  if (negative || field.front() == '+') field.remove_prefix(1);
  if (field.starts_with("0o") || field.starts_with("0O")) {
    field.remove_prefix(2);
  }
  std::string digits(field);
  std::erase(digits, '_');
  int64_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, number, 8);
  if (error != std::errc() || stop != end) return std::nullopt;
  return negative ? -number : number;
}

// Returns whether every tar reader reads the same number: octal digits between
// spaces and NULs.
bool IsPlain(std::string_view field) {
  while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
  const size_t digits =
      std::min(field.find_first_not_of("01234567"), field.size());
  return digits > 0 && std::ranges::all_of(field.substr(digits), [](char c) {
           return c == ' ' || c == '\0';
         });
}

std::string_view UpToNul(std::string_view field) {
  return field.substr(0, field.find('\0'));
}

Status Wrong(std::string_view what, uint64_t at) {
  return Status(Code::kCorrupt, what).At(at);
}

// Returns whether the pax header in `text` changes more than a name or a time.
// Stores the name that it gives the member in `name`. `name` is null for a
// global header, which applies to all following members.
bool ReadsOddly(std::string_view text, std::string* name) {
  while (!text.empty()) {
    size_t length = 0;
    const auto [stop, error] =
        std::from_chars(text.data(), text.data() + text.size(), length);
    const size_t digits = static_cast<size_t>(stop - text.data());
    if (error != std::errc()) {
      return !std::ranges::all_of(text, [](char c) { return c == '\0'; });
    }
    if (length > text.size() || length < digits + 3 || *stop != ' ' ||
        text[length - 1] != '\n') {
      return true;
    }
    const std::string_view pair = text.substr(digits + 1, length - digits - 2);
    const std::string_view key = pair.substr(0, pair.find('='));
    if (key == "size" || key == "linkpath" || key == "hdrcharset" ||
        key.starts_with("GNU.sparse")) {
      return true;
    }
    if (key == "path" && pair.size() > key.size()) {
      if (name == nullptr) return true;
      *name = pair.substr(key.size() + 1);
    }
    text.remove_prefix(length);
  }
  return false;
}

// Fails unless only zeros follow. Tar readers end at a block of zeros, so other
// programs may read what follows it.
Status OnlyZeros(const ByteSource& source, uint64_t begin) {
  ByteWindow window(source, source.size());
  for (uint64_t at = begin; at < source.size();) {
    HAULWAY_ASSIGN(const auto bytes, window.Peek(at, 1));
    const size_t found = TextOf(bytes).find_first_not_of('\0');
    if (found != std::string_view::npos) {
      return Status(Code::kUnsupported, "bytes behind the end of a tar")
          .At(at + found);
    }
    at += bytes.size();
  }
  return Status();
}

std::optional<TarMember> ParseHeader(std::span<const std::byte> block) {
  const std::string_view text = TextOf(block);
  int64_t plain = 8 * ' ', with_signs = 8 * ' ';
  for (size_t i = 0; i < text.size(); ++i) {
    // The checksum counts its own field as spaces.
    if (i >= kSumField && i < kSumField + kSumBytes) continue;
    plain += static_cast<unsigned char>(text[i]);
    with_signs += static_cast<signed char>(text[i]);
  }
  const std::string_view sum = text.substr(kSumField, kSumBytes);
  const std::string_view size = text.substr(kSizeField, kSizeBytes);
  const auto found = TarNumber(sum);
  if (!found.has_value() || (*found != plain && *found != with_signs)) {
    return std::nullopt;
  }
  TarMember member;
  const auto bytes = TarNumber(size);
  if (!bytes.has_value() || *bytes < 0) {
    member.odd = "the size of a member is no number";
  } else {
    member.size = static_cast<uint64_t>(*bytes);
  }
  // Every reader knows base 256 for large sizes.
  if (!IsPlain(sum) || (!IsPlain(size) && size[0] != '\x80')) {
    member.odd = "numbers of a tar header are not as tar writes them";
  } else if (*found != plain) {
    member.odd = "the checksum of a tar header counts bytes as signed";
  }
  member.name = UpToNul(text.substr(0, 100));
  member.type = text[kTypeField];
  if (member.type == '\0') member.type = member.name.ends_with('/') ? '5' : '0';
  member.link = UpToNul(text.substr(157, 100));
  const std::string_view prefix = UpToNul(text.substr(kPrefixField, 155));
  // tarfile uses the prefix whatever the magic is. GNU tar stores times there.
  constexpr std::string_view kOfGnu = "LKS";
  if (!prefix.empty() && kOfGnu.find(member.type) == kOfGnu.npos) {
    member.name = fmt::format("{}/{}", prefix, member.name);
    if (text.substr(257, 5) != "ustar" || text[262] != '\0') {
      member.odd =
          "the name of a tar member has a prefix in a header that has "
          "none to some readers";
    }
  }
  return member;
}

}  // namespace

bool IsTarHeader(std::span<const std::byte> block) {
  return block.size() >= kTarBlockBytes &&
         ParseHeader(block.first(kTarBlockBytes)).has_value();
}

Status WalkTar(const ByteSource& source,
               const std::function<Status(const TarMember& member)>& each) {
  std::string next_name;  // Name of the next member, from a header before it.
  bool named_twice = false;  // Two such headers: readers take either name.
  uint64_t at = 0;
  while (RangeFits(at, kTarBlockBytes, source.size())) {
    std::array<std::byte, kTarBlockBytes> block;
    HAULWAY_TRY(source.ReadAt(at, block));
    if (std::ranges::all_of(block,
                            [](std::byte b) { return b == std::byte{0}; })) {
      return OnlyZeros(source, at);
    }
    auto member = ParseHeader(block);
    if (!member.has_value()) return Wrong("tar header is damaged", at);
    member->header = at;
    member->offset = at + kTarBlockBytes;
    const char type = member->type;
    const bool has_bytes = type < '1' || type > '6';
    if (!has_bytes && member->size != 0) {
      member->odd = "what holds no bytes has a size";
    }
    if (has_bytes && !RangeFits(member->offset, member->size, source.size())) {
      return Status(Code::kTruncated,
                    fmt::format("tar member {} needs {} bytes, {} remain",
                                Quote(member->name), member->size,
                                source.size() - member->offset))
          .At(at);
    }
    uint64_t bytes = 0;
    if (has_bytes && !CheckedRoundUp(member->size, kTarBlockBytes, &bytes)) {
      return Wrong("size of a tar member overflows", at);
    }
    at = member->offset + bytes;
    if (type == 'x' || type == 'g' || type == 'X' || type == 'L' ||
        type == 'K') {
      if (member->size > kMostDescription || !member->odd.empty()) {
        return Wrong("what describes a tar member is damaged", member->header);
      }
      std::vector<std::byte> text(member->size);
      if (!text.empty()) HAULWAY_TRY(source.ReadAt(member->offset, text));
      const std::string name_before = std::exchange(next_name, {});
      if (type == 'L') {
        next_name = UpToNul(TextOf(text));
      } else if (type == 'K' ||
                 ReadsOddly(TextOf(text), type == 'g' ? nullptr : &next_name)) {
        return Status(Code::kUnsupported,
                      "extended headers of tar that change what is read")
            .At(member->header);
      }
      named_twice = named_twice || (!name_before.empty() && !next_name.empty());
      if (next_name.empty()) next_name = name_before;
      continue;
    }
    if (type == 'S') {
      return Status(Code::kUnsupported, "sparse members of tar")
          .At(member->header);
    }
    if (!next_name.empty()) member->name = std::move(next_name);
    next_name.clear();
    if (std::exchange(named_twice, false)) {
      member->odd = "two headers before a tar member name it";
    }
    HAULWAY_TRY(each(*member));
  }
  // Readers also accept a tar without an end block.
  return Status();
}

}  // namespace haulway::scan
