#include "scan/media_proof.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "scan/byte_window.h"

namespace haulway::scan {

namespace {

uint64_t BigEndian(std::string_view text, size_t at, size_t bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < bytes; ++i) {
    number = number << 8 | static_cast<unsigned char>(text[at + i]);
  }
  return number;
}

uint64_t LittleEndian(std::string_view text, size_t at, size_t bytes) {
  uint64_t number = 0;
  for (size_t i = bytes; i-- > 0;) {
    number = number << 8 | static_cast<unsigned char>(text[at + i]);
  }
  return number;
}

Result<std::string_view> PeekAt(ByteWindow* window, uint64_t at,
                                uint64_t bytes) {
  HAULWAY_ASSIGN(const auto found, window->Peek(at, bytes));
  return TextOf(found);
}

// Returns whether the source is a PNG: chunks, of which the last is IEND
// (ISO/IEC 15948, 5.3).
Result<bool> IsPng(ByteWindow* window) {
  uint64_t at = 8;
  while (true) {
    HAULWAY_ASSIGN(const std::string_view head, PeekAt(window, at, 8));
    if (head.size() < 8) return false;
    const uint64_t next = at + BigEndian(head, 0, 4) + 12;
    if (next > window->end()) return false;
    if (head.substr(4, 4) == "IEND") return next == window->end();
    at = next;
  }
}

// Returns whether the source is a JPEG: segments up to the scan, and the
// end-of-image marker last (ITU T.81, annex B).
Result<bool> IsJpeg(ByteWindow* window) {
  uint64_t at = 2;
  while (true) {
    HAULWAY_ASSIGN(const std::string_view head, PeekAt(window, at, 4));
    if (head.size() < 4 || head[0] != '\xFF') return false;
    const uint64_t length = BigEndian(head, 2, 2);
    if (length < 2) return false;
    const bool scan = head[1] == '\xDA';
    at += 2 + length;
    if (!scan) continue;
    if (at + 2 > window->end()) return false;
    HAULWAY_ASSIGN(const std::string_view end,
                   PeekAt(window, window->end() - 2, 2));
    return end.substr(0, 2) == "\xFF\xD9";
  }
}

// Reads a protocol buffers varint at `*at`, and moves `*at` past it. Returns
// nullopt if there is none.
std::optional<uint64_t> Varint(std::string_view text, uint64_t* at) {
  uint64_t number = 0;
  for (int bits = 0; bits < 64 && *at < text.size(); bits += 7) {
    const auto byte = static_cast<unsigned char>(text[(*at)++]);
    number |= static_cast<uint64_t>(byte & 0x7F) << bits;
    if (byte < 0x80) return number;
  }
  return std::nullopt;
}

// Returns whether all of `text` is a protocol buffers message whose field tags
// (number and type) are all in `wanted`. Calls `each` with the tag and the
// bytes of each field of type 2.
bool IsMessage(std::string_view text, std::string_view wanted,
               const std::function<bool(char, std::string_view)>& each) {
  for (uint64_t at = 0; at < text.size();) {
    const char tag = text[at++];
    if (wanted.find(tag) == wanted.npos) return false;
    const int type = tag & 7;
    if (type == 5) {
      at += 4;
    } else {
      const auto number = Varint(text, &at);
      if (!number.has_value()) return false;
      if (type == 2) {
        if (*number > text.size() - at) return false;
        if (!each(tag, text.substr(at, *number))) return false;
        at += *number;
      }
    }
    if (at > text.size()) return false;
  }
  return true;
}

// Checks for ModelProto of sentencepiece_model.proto: pieces (text, score,
// type), then the settings of the trainer and the normalizers, which are data
// too.
Result<bool> IsSentencePiece(const ByteSource& source) {
  constexpr uint64_t kMost = 64 * kMiB;
  constexpr std::string_view kModel = "\x0A\x12\x1A\x22\x2A";
  constexpr std::string_view kPiece = "\x0A\x15\x18";
  if (source.size() > kMost) return false;
  std::vector<std::byte> bytes(source.size());
  HAULWAY_TRY(source.ReadAt(0, bytes));
  uint64_t scored = 0;
  const bool is_model =
      IsMessage(TextOf(bytes), kModel, [&](char tag, std::string_view field) {
        if (tag != kModel[0]) return true;
        scored += field.find(kPiece[1]) != field.npos ? 1 : 0;
        return IsMessage(field, kPiece, [](char, std::string_view piece) {
          return IsUtf8(piece);
        });
      });
  // In protocol buffers of other programs, this field has no scores.
  return is_model && scored > 0;
}

// Reads a variable-length integer of SQLite at `*at`, and moves `*at` past it.
// Returns nullopt if there is none.
std::optional<uint64_t> DatabaseVarint(std::string_view text, uint64_t* at) {
  uint64_t number = 0;
  for (int i = 0; i < 9 && *at < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[(*at)++]);
    if (i == 8) return number << 8 | byte;
    number = number << 7 | (byte & 0x7F);
    if (byte < 0x80) return number;
  }
  return std::nullopt;
}

// Returns whether a page of a SQLite file is known to hold no binary values
// (fileformat2.html, 1.6 and 2.1). Pages that are no nodes of a tree hold
// nothing of their own. `header`: where the node begins.
bool HasNoBinaries(std::string_view page, size_t header) {
  const char kind = page[header];
  const bool is_table = kind == '\x0D', is_inner = kind == '\x02';
  if (!is_table && !is_inner && kind != '\x0A') return true;
  const uint64_t cells = BigEndian(page, header + 3, 2);
  const size_t pointers = header + (is_inner ? 12 : 8);
  if (2 * cells > page.size() - pointers) return false;
  for (uint64_t i = 0; i < cells; ++i) {
    uint64_t at = BigEndian(page, pointers + 2 * i, 2) + (is_inner ? 4 : 0);
    if (!DatabaseVarint(page, &at)) return false;  // Length of the row.
    if (is_table && !DatabaseVarint(page, &at)) return false;  // Its number.
    const uint64_t begin = at;
    const auto length = DatabaseVarint(page, &at);
    if (!length.has_value() || *length > page.size() - begin) return false;
    while (at < begin + *length) {
      const auto type = DatabaseVarint(page, &at);
      if (!type.has_value() || (*type > 12 && *type % 2 == 0)) return false;
    }
  }
  return true;
}

// Checks a SQLite file. Programs that keep objects in databases (shelve,
// diskcache) unpickle the binary values.
Result<bool> IsPlainDatabase(const ByteSource& source, std::string_view head) {
  uint64_t page_bytes = BigEndian(head, 16, 2);
  if (page_bytes == 1) page_bytes = 65'536;
  if (page_bytes < 512 ||
      page_bytes * BigEndian(head, 28, 4) != source.size()) {
    return false;
  }
  constexpr size_t kFileHeader = 100;
  std::vector<std::byte> page(page_bytes);
  for (uint64_t at = 0; at < source.size(); at += page_bytes) {
    HAULWAY_TRY(source.ReadAt(at, page));
    if (!HasNoBinaries(TextOf(page), at == 0 ? kFileHeader : 0)) return false;
  }
  return true;
}

Result<bool> IsZeros(const ByteSource& source) {
  std::vector<std::byte> bytes;
  for (uint64_t at = 0; at < source.size(); at += bytes.size()) {
    bytes.resize(std::min<uint64_t>(kMiB, source.size() - at));
    HAULWAY_TRY(source.ReadAt(at, bytes));
    if (std::ranges::any_of(bytes,
                            [](std::byte b) { return b != std::byte{}; })) {
      return false;
    }
  }
  return true;
}

}  // namespace

Result<bool> IsMedia(const ByteSource& source) {
  constexpr size_t kHead = 32;
  ByteWindow window(source, source.size());
  HAULWAY_ASSIGN(const std::string_view peeked, PeekAt(&window, 0, kHead));
  const std::string head(peeked);
  if (head.size() < kHead) {
    return std::ranges::all_of(head, [](char c) { return c == '\0'; });
  }
  const uint64_t size = source.size();
  if (head.starts_with("\x89PNG\r\n\x1A\n")) return IsPng(&window);
  if (head.starts_with("\xFF\xD8\xFF")) return IsJpeg(&window);
  if (head.starts_with("GIF87a") || head.starts_with("GIF89a")) {
    HAULWAY_ASSIGN(const std::string_view end, PeekAt(&window, size - 1, 1));
    return end.starts_with(';');
  }
  if (head.starts_with("BM")) return LittleEndian(head, 2, 4) == size;
  if (head.starts_with("RIFF")) return LittleEndian(head, 4, 4) + 8 == size;
  if (head.starts_with(kDatabase)) return IsPlainDatabase(source, head);
  if (head[0] == '\0') return IsZeros(source);
  if (head[0] == '\n') return IsSentencePiece(source);
  return false;
}

}  // namespace haulway::scan
