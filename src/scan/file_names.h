// Classifies file names by the programs that open such files.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace haulway::scan {

// Converts ASCII letters to lower case. torch looks up records without regard
// to case.
std::string Lower(std::string_view text);

enum class NameKind : uint8_t {
  kNone,   // No name: bytes passed to a program directly.
  kText,   // Conventionally a text or a list of values. No program runs it.
  kCode,   // Some program runs files with this name, or the commands in them.
  kOther,  // Anything else. A shell runs a text whose name has no suffix.
};

struct NameFacts {
  NameKind kind = NameKind::kNone;
  // The part of the name that led to kCode: ".py", "Makefile".
  std::string_view part;
};

// Classifies `name`, which may be a path or a URL. `part` points to static
// storage.
NameFacts FactsOfName(std::string_view name);

// Returns the suffix of the last component of `name`, in lower case and with
// the dot, or "".
std::string SuffixOf(std::string_view name);

// Returns whether files, JSON keys and metadata with this name hold templates,
// which programs render: "chat_template.txt",
// "tokenizer.chat_template.tool_use".
bool IsNameOfTemplate(std::string_view name);

// Returns whether programs evaluate parts of a text with this name: a template,
// or a configuration that may name code.
bool IsNameOfProgramText(std::string_view name);

// Returns whether programs that go by names may open this file as an image,
// audio, a table or a SentencePiece model: its name has a suffix of such files
// or of a text, or there is no name.
bool IsNameOfMedia(std::string_view name);

// Returns `name` without a compression suffix: "x.sh" for "x.sh.gz".
std::string_view WithoutCompression(std::string_view name);

// Returns whether a program that extracts a member under this name, without
// checking the name, would write outside the target folder.
bool LeavesFolder(std::string_view name);

}  // namespace haulway::scan
