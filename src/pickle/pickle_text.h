// The text arguments of pickle opcodes, most of them of protocol 0.

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "haulway/tree.h"

namespace haulway::pickle {

// Decimal digits that Python itself would still convert from text.
inline constexpr size_t kMaxDecimalDigits = 4300;

// A decimal integer, a kInt if it fits. Nullopt if it is none, or has more
// than kMaxDecimalDigits digits.
std::optional<Value> ParseDecimal(std::string_view text, TreeArena& arena);

// Two's complement, little-endian, of any length; a kInt if it fits, else a
// kBigInt that borrows the bytes.
Value DecodeInteger(std::string_view bytes);

std::optional<double> ParseFloat(std::string_view text);

// The bytes of a Python 2 str from its repr() with quotes. Borrows `text` or
// `arena`.
std::optional<std::string_view> UnquoteString(std::string_view text,
                                              TreeArena& arena);

// UTF-8 from Python's raw-unicode-escape.
std::optional<std::string_view> DecodeRawUnicodeEscape(std::string_view text,
                                                       TreeArena& arena);

// Latin-1 bytes from UTF-8; nullopt for code points past 255. Borrows `text`
// if it is ASCII.
std::optional<std::string_view> EncodeLatin1(std::string_view text,
                                             TreeArena& arena);

bool IsAscii(std::string_view text);
// UTF-8 with lone surrogates, fast if it is ASCII.
bool IsPickleText(std::string_view text);

}  // namespace haulway::pickle
