// Judges files in no known checkpoint format, and what their names imply.
//
// Design: a file is SAFE only if its content is proven to be data. When no
// checkpoint reader accepts a file, it is a text, media of other programs, or
// unknown. A text is data for some programs and code for others, so the name
// counts: programs that run files go by the name, and shells take any text
// without a suffix. If the proof fails, the verdict is UNKNOWN, with the
// reason.
//
// Alternative not taken: a list of malicious patterns. Such a list is never
// complete.

#include <fmt/format.h>

#include <algorithm>
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

// Returns whether `character`, in UTF-8, ends a line to str.splitlines(), which
// site uses since Python 3.13.
bool EndsLine(std::string_view character) {
  constexpr std::string_view kEnds[] = {
      "\n",   "\v",   "\f",       "\r",           "\x1C",
      "\x1D", "\x1E", "\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"};
  return std::ranges::find(kEnds, character) != std::end(kEnds);
}

// Returns the offset of the first line that Python's site module would run if
// the file were named .pth in a site-packages folder; nullopt if there is none.
// site decodes the file as UTF-8 and stops at invalid bytes, which come early
// in checkpoints.
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
    // Continue at the next line, or at the end of the window.
    const size_t end =
        text.size() <= kLongestWord ? text.size() : text.size() - kLongestWord;
    size_t i = 0;
    begins = false;
    while (i < end && !begins) {
      const size_t length = Utf8SequenceLength(text.substr(i));
      if (length == 0) return std::optional<uint64_t>();
      begins = EndsLine(text.substr(i, length));
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
  // Most files that are not texts have a NUL byte early.
  ByteWindow window(source, source.size());
  HAULWAY_ASSIGN(const auto head, window.Peek(0, 256));
  const bool may_be_text =
      TextOf(head).substr(0, 256).find('\0') == std::string_view::npos;
  // Shells also run lines between the binary data of an image.
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
    if (TextOf(head).starts_with(kDatabase)) {
      Unknown("a database with binary values, which programs unpickle", place);
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
    const std::string_view mistaken = MistakenFor(bytes, "");
    Say(Verdict::kUnknown, Code::kUnsupported,
        mistaken.empty() ? doubt->why : std::string(mistaken),
        place.offset + doubt->byte, place.member);
  }
  return Status();
}

}  // namespace haulway::scan
