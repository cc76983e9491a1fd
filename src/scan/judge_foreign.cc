// Files that no reader of checkpoints knows, and what their names say.
//
// How: a file is SAFE only if it is proven what it is. What is left when every
// reader of checkpoints has declined is a text, media of other programs, or
// unknown. Texts are data for some programs and programs for others, so their
// names count: whoever runs files goes by the name, and shells take any text
// that has no ending. What the proof does not reach is UNKNOWN, with the
// reason.
//
// A list of what is evil was left out: it is never whole.

#include <fmt/format.h>

#include <vector>

#include "base/text.h"
#include "checkpoint/format_registry.h"
#include "scan/byte_window.h"
#include "scan/file_names.h"
#include "scan/judge.h"
#include "scan/media_proof.h"
#include "scan/text_proof.h"

namespace haulway::scan {

namespace {

// What is read at once to prove that it is a text.
constexpr uint64_t kMostText = 64 * kMiB;

// Where the first line stands that Python's site module would run of a file
// called .pth in a folder of packages; nullopt if there is none. site decodes
// the file as UTF-8 and ends where that fails, as it soon does in checkpoints.
Result<std::optional<uint64_t>> SiteLine(const ByteSource& source) {
  constexpr uint64_t kLongestWord = 16;
  ByteWindow window(source, source.size());
  bool begins = true;
  for (uint64_t at = 0; at < source.size();) {
    HAULWAY_ASSIGN(const auto bytes, window.Peek(at, kLongestWord));
    std::string_view text = TextOf(bytes);
    constexpr std::string_view kBom = "\xEF\xBB\xBF";
    if (at == 0 && text.starts_with(kBom)) {
      at += kBom.size();
      continue;
    }
    if (begins &&
        (text.starts_with("import ") || text.starts_with("import\t"))) {
      return std::optional<uint64_t>(at);
    }
    // On to the next line, or to where the window ends.
    const size_t end =
        text.size() <= kLongestWord ? text.size() : text.size() - kLongestWord;
    size_t i = 0;
    begins = false;
    while (i < end && !begins) {
      const size_t length = Utf8SequenceLength(text.substr(i));
      if (length == 0) return std::optional<uint64_t>();
      begins = text[i] == '\n' || text[i] == '\r';
      i += length;
    }
    at += i;
  }
  return std::optional<uint64_t>();
}

}  // namespace

Status Judge::NameSays(const ByteSource& source, const Place& place) {
  if (source.size() == 0) return Status();
  const NameFacts facts = FactsOfName(place.name);
  if (facts.kind == NameKind::kCode) {
    Unknown(fmt::format("programs run what is called {}", Quote(facts.part)),
            place);
  }
  if (SuffixOf(place.name) != ".pth") return Status();
  HAULWAY_ASSIGN(const auto line, SiteLine(source));
  if (line.has_value()) {
    Say(Verdict::kUnsafe, Code::kUnsafe,
        "a line that Python runs when it starts, if the file lies in a folder "
        "of packages",
        place.offset + *line, place.member);
  }
  return Status();
}

Status Judge::Foreign(const ByteSource& source, const Place& place) {
  if (source.size() == 0 || FactsOfName(place.name).kind == NameKind::kCode) {
    return Status();
  }
  if (!place.whole) {
    Unknown("it inflates to more than is looked into", place, Code::kLimit);
    return Status();
  }
  HAULWAY_ASSIGN(const bool media, IsMedia(source));
  // Most of what is no text says so early.
  ByteWindow window(source, source.size());
  HAULWAY_ASSIGN(const auto head, window.Peek(0, 256));
  const bool may_be_text =
      TextOf(head).substr(0, 256).find('\0') == std::string_view::npos;
  // Shells run lines between the numbers of a picture as well.
  const bool is_named_so = head[0] == std::byte{0} || IsNameOfMedia(place.name);
  if (media && is_named_so && (!may_be_text || source.size() > kMostText)) {
    return Status();
  }
  if (may_be_text && source.size() > kMostText) {
    Unknown("a text that is too long to be looked into", place, Code::kLimit);
    return Status();
  }
  std::vector<std::byte> bytes(may_be_text ? source.size() : 0);
  if (may_be_text) HAULWAY_TRY(source.ReadAt(0, bytes));
  if (!may_be_text || !IsPlainText(TextOf(bytes))) {
    if (media && is_named_so) return Status();
    if (media) {
      Unknown(
          "a picture, a sound or a table, and nothing in its name says "
          "that no shell or other program runs it",
          place);
      return Status();
    }
    const std::string_view named = ForeignBySuffix(place.name);
    Unknown(
        fmt::format(
            "{}neither a text nor of a format that is known to hold no code",
            named.empty() ? "" : fmt::format("{} by its name, and ", named)),
        place);
    return Status();
  }
  if (const auto doubt =
          DoubtOfText(TextOf(bytes), place.name, options_.allowed_globals)) {
    Say(Verdict::kUnknown, Code::kUnsupported, doubt->why,
        place.offset + doubt->byte, place.member);
  }
  return Status();
}

}  // namespace haulway::scan
