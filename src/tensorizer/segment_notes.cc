#include "tensorizer/segment_notes.h"

#include <fmt/format.h>

#include <string_view>
#include <unordered_set>

#include "base/cursor.h"
#include "base/text.h"
#include "tensorizer/byte_writer.h"

namespace haulway::tensorizer {

namespace {

// Returns what is wrong with a note, or "".
std::string Fault(std::string_view key, std::string_view value) {
  if (key.empty()) return "key of a note is empty";
  if (!IsUtf8(key) || !IsUtf8(value)) {
    return fmt::format("note {} is not UTF-8", Quote(key));
  }
  return {};
}

}  // namespace

Result<Notes> ParseNotes(std::span<const std::byte> bytes,
                         const ParseLimits& limits) {
  ByteCursor cursor(bytes);
  const uint32_t count = cursor.U32();
  // A note has at least two lengths and a key of one byte.
  if (!cursor.ok() || count > cursor.remaining() / (2 + 1 + 4)) {
    return Status(Code::kCorrupt, fmt::format("{} notes do not fit {} bytes",
                                              count, bytes.size()));
  }
  if (count > limits.max_entries) {
    return Status(Code::kLimit, fmt::format("{} notes pass max_entries {}",
                                            count, limits.max_entries));
  }
  Notes notes;
  notes.reserve(count);
  std::unordered_set<std::string_view> keys;
  for (uint32_t i = 0; i < count; ++i) {
    const size_t at = cursor.position();
    const std::string_view key = cursor.Text(cursor.U16());
    const std::string_view value = cursor.Text(cursor.U32());
    if (!cursor.ok()) {
      return Status(Code::kTruncated, "note runs past its segment").At(at);
    }
    const std::string fault = Fault(key, value);
    if (!fault.empty()) return Status(Code::kCorrupt, fault).At(at);
    if (!keys.insert(key).second) {
      return Status(Code::kCorrupt,
                    fmt::format("note {} stands twice", Quote(key)))
          .At(at);
    }
    notes.emplace_back(key, value);
  }
  if (cursor.remaining() != 0) {
    return Status(Code::kCorrupt, "notes do not fill their length")
        .At(cursor.position());
  }
  return notes;
}

Result<std::vector<std::byte>> EncodeNotes(const Notes& notes) {
  std::vector<std::byte> bytes;
  ByteWriter out(&bytes);
  std::unordered_set<std::string_view> keys;
  out.U32(static_cast<uint32_t>(notes.size()));
  for (const auto& [key, value] : notes) {
    const std::string fault = Fault(key, value);
    if (!fault.empty()) return Status(Code::kInvalidArgument, fault);
    if (key.size() > kMaxNoteKeyBytes || value.size() > kMaxNoteBytes) {
      return Status(Code::kLimit,
                    fmt::format("note {} is too long", Quote(key)));
    }
    if (!keys.insert(key).second) {
      return Status(Code::kInvalidArgument,
                    fmt::format("note {} is given twice", Quote(key)));
    }
    out.U16(static_cast<uint16_t>(key.size()));
    out.Text(key);
    out.U32(static_cast<uint32_t>(value.size()));
    out.Text(value);
  }
  return bytes;
}

}  // namespace haulway::tensorizer
