// Parses the text arguments of pickle opcodes, mostly those of protocol 0.

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "haulway/tree.h"

namespace haulway::pickle {

// Maximum number of decimal digits that Python converts from text.
inline constexpr size_t kMaxDecimalDigits = 4300;

// Parses a decimal integer; a kInt if it fits. Returns nullopt if it is not
// one, or has more than kMaxDecimalDigits digits.
std::optional<Value> ParseDecimal(std::string_view text, TreeArena& arena);

// Decodes a little-endian two's complement integer of any length: a kInt if it
// fits, else a kBigInt that borrows the bytes.
Value DecodeInteger(std::string_view bytes);

std::optional<double> ParseFloat(std::string_view text);

// Decodes the quoted repr() of a Python 2 str to its bytes. Borrows `text` or
// `arena`.
std::optional<std::string_view> UnquoteString(std::string_view text,
                                              TreeArena& arena);

// Decodes Python's raw-unicode-escape to UTF-8.
std::optional<std::string_view> DecodeRawUnicodeEscape(std::string_view text,
                                                       TreeArena& arena);

// Encodes UTF-8 as Latin-1; nullopt for code points above 255. Borrows `text`
// if it is ASCII.
std::optional<std::string_view> EncodeLatin1(std::string_view text,
                                             TreeArena& arena);

bool IsAscii(std::string_view text);
// Returns whether `text` is UTF-8, in which lone surrogates are allowed. Fast
// for ASCII.
bool IsPickleText(std::string_view text);

}  // namespace haulway::pickle
