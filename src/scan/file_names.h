// What the name of a file says about the programs that open it.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace haulway::scan {

// ASCII in lower case: torch finds records whatever case their names are in.
std::string Lower(std::string_view text);

enum class NameKind : uint8_t {
  kNone,   // There is no name: bytes that a program was given.
  kText,   // By custom a text or a list of values, which no program runs.
  kCode,   // Some program runs files of this name, or what they tell it to.
  kOther,  // Anything else. A shell runs a text whose name has no ending.
};

struct NameFacts {
  NameKind kind = NameKind::kNone;
  // The part of the name that decided for kCode: ".py", "Makefile".
  std::string_view part;
};

// `name` may have folders before it, and may be a URL. `part` points to static
// storage.
NameFacts FactsOfName(std::string_view name);

// The ending of the last part of `name`, in lower case with the dot, or "".
std::string SuffixOf(std::string_view name);

// Whether files, keys of JSON and metadata of this name hold templates, which
// programs render: "chat_template.txt", "tokenizer.chat_template.tool_use".
bool IsNameOfTemplate(std::string_view name);

// Whether a file of this name may be a picture, a sound, a table or a model of
// SentencePiece for all programs that go by names: it is called so, or like a
// text, or it has no name.
bool IsNameOfMedia(std::string_view name);

// `name` without an ending that compression adds: "x.sh" of "x.sh.gz".
std::string_view WithoutCompression(std::string_view name);

// Whether a program that unpacks a member of this name and trusts it would
// write outside of the folder that it unpacks to.
bool LeavesFolder(std::string_view name);

}  // namespace haulway::scan
