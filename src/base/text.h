// Text from files, made safe to show.

#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace haulway {

// `text` in single quotes, cut at 64 bytes, with control bytes, quotes,
// backslashes and bytes that are not UTF-8 escaped: for messages.
std::string Quote(std::string_view text);

// `text` with backslashes and control bytes escaped, `also` too if not 0, and
// bytes that are not UTF-8; nothing is cut. One-to-one.
std::string Escape(std::string_view text, char also = 0);

// The length of the well-formed UTF-8 sequence at the start of `text` (1 to
// 4), or 0. Surrogates count as well formed if `surrogates`.
size_t Utf8SequenceLength(std::string_view text, bool surrogates = false);
bool IsUtf8(std::string_view text, bool surrogates = false);

// Two lower-case hexadecimal digits per byte.
std::string Hex(std::span<const std::byte> bytes);

}  // namespace haulway
