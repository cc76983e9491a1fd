// Makes text from files safe to show.

#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace haulway {

// Returns `text` in single quotes, cut at 64 bytes, for messages. Control
// characters, quotes, backslashes and bytes that are not UTF-8 are escaped.
std::string Quote(std::string_view text);

// Escapes backslashes, control characters, bytes that are not UTF-8 and, if not
// 0, the character `also`. Cuts nothing. One-to-one.
std::string Escape(std::string_view text, char also = 0);

// Returns bytes in Base64 (RFC 4648), padded.
std::string Base64(std::string_view bytes);

// Returns a path as Quote() does, but whole: a path that is cut names no file.
std::string QuotePath(std::string_view path);

// Returns the length of the well-formed UTF-8 sequence at the start of `text`
// (1 to 4), or 0. Surrogates count as well formed if `surrogates`.
size_t Utf8SequenceLength(std::string_view text, bool surrogates = false);
bool IsUtf8(std::string_view text, bool surrogates = false);

// Returns two lower-case hexadecimal digits per byte.
std::string Hex(std::span<const std::byte> bytes);

}  // namespace haulway
