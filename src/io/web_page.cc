#include "io/web_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "base/ascii.h"

namespace haulway {

namespace {

// Where the first element of a page begins, however long its comments are.
constexpr uint64_t kHeadBytes = 4096;

constexpr std::array<std::string_view, 12> kPageSuffixes = {
    ".asp", ".aspx", ".cgi", ".htm",   ".html", ".jsp",
    ".md",  ".php",  ".txt", ".xhtml", ".xml",  ".xht"};

// Returns the text from the first element, or the document type, on.
std::string_view FromFirstElement(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  while (true) {
    text.remove_prefix(
        std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    std::string_view end;
    if (text.starts_with("<?")) end = "?>";
    if (text.starts_with("<!--")) end = "-->";
    if (end.empty()) return text;
    const size_t at = text.find(end);
    if (at == text.npos) return {};
    text.remove_prefix(at + end.size());
  }
}

// Returns what the text is, if it is no object; an empty string otherwise.
std::string_view KindOfPage(std::string_view text) {
  text = FromFirstElement(text);
  const std::string begin = LowerCase(text.substr(0, 14));
  if (begin == "<!doctype html" || begin.starts_with("<html")) {
    return "a web page";
  }
  return text.starts_with("<Error>") ? "an error of a store" : "";
}

// Returns whether a file of this name may be a page.
bool MayBePage(std::string_view name) {
  name.remove_prefix(name.rfind('/') + 1);  // npos + 1 is 0.
  const size_t dot = name.substr(0, name.find('?')).rfind('.');
  if (dot == name.npos) return true;
  const std::string suffix = LowerCase(name.substr(dot, name.find('?') - dot));
  return std::ranges::find(kPageSuffixes, suffix) != kPageSuffixes.end();
}

}  // namespace

Status RefuseWebPage(const ByteSource& source, std::string_view name) {
  if (MayBePage(name) || !source.Look({}).is_server()) return Status();
  std::string head(std::min(source.size(), kHeadBytes), '\0');
  HAULWAY_TRY(source.ReadAt(0, std::as_writable_bytes(std::span(head))));
  const std::string_view kind = KindOfPage(head);
  if (kind.empty()) return Status();
  return Status(Code::kIoError,
                fmt::format("the server sends {}: expected the object, or a "
                            "name such as page.html for the page itself",
                            kind))
      .Of(source.name());
}

}  // namespace haulway
