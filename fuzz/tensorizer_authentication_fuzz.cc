// Property: any bytes after an end mark are parsed as an authentication record,
// as none, or as a typed error. A record lies within the bytes and has a tag
// for each tensor. Its facts are encoded to a record that parses to the same
// facts and that the key and the start of the file confirm. Nothing else is
// confirmed: not another key, start or header, and not the record with one bit
// changed.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "base/cursor.h"
#include "tensorizer/tensorizer_authentication.h"

namespace {

using namespace haulway;
using namespace haulway::tensorizer;

void Require(bool holds) {
  if (!holds) abort();
}

bool Within(std::span<const std::byte> part, std::span<const std::byte> whole) {
  return part.empty() ||
         (part.data() >= whole.data() &&
          part.data() + part.size() <= whole.data() + whole.size());
}

// Returns whether `bytes` is the record of `head`.
bool IsRecord(const Secret& key, std::span<const std::byte> bytes,
              uint64_t tensors, std::span<const std::byte> head) {
  const auto parsed = ParseAuthentication(bytes, tensors, ParseLimits());
  if (!parsed.ok() || !parsed->has_value()) return false;
  return CheckIndexTag(key, **parsed, head).ok();
}

// Returns a substitute for the header of a tensor: short, and different for
// each.
std::array<std::byte, 16> HeaderOf(std::span<const std::byte> head,
                                   uint64_t row) {
  std::array<std::byte, 16> header{};
  std::ranges::copy(head.first(std::min(head.size(), header.size())),
                    header.begin());
  header[0] = static_cast<std::byte>(row);
  return header;
}

void CheckEncoding(const AuthenticationRecord& record, uint64_t tensors,
                   std::span<const std::byte> head, uint64_t flip) {
  static const Secret key =
      MetadataKey(Secret("0123456789abcdef"
                         "0123456789ABCDEF"));
  static const Secret other =
      MetadataKey(Secret("0123456789abcdef"
                         "0123456789ABCDEG"));
  std::vector<HeaderTag> tags;
  for (uint64_t row = 0; row < tensors; ++row) {
    tags.push_back(TagHeader(key, row, HeaderOf(head, row)));
  }
  std::vector<std::byte> bytes =
      EncodeAuthentication(key, record.derivation, head, tags);
  Require(bytes.size() ==
          AuthenticationBytes(record.derivation.has_value(), tensors));
  const auto again = ParseAuthentication(bytes, tensors, ParseLimits());
  Require(again.ok() && again->has_value());
  Require((*again)->derivation == record.derivation);
  Require(CheckIndexTag(key, **again, head).ok());
  for (uint64_t row = 0; row < tensors; ++row) {
    const auto header = HeaderOf(head, row);
    Require(CheckHeaderTag(key, **again, row, header).ok());
    Require(CheckHeaderTag(other, **again, row, header).code() == Code::kAuth);
    if (row > 0) {
      Require(!CheckHeaderTag(key, **again, row - 1, header).ok());
    }
  }
  Require(!IsRecord(other, bytes, tensors, head));
  Require(head.empty() ||
          !IsRecord(key, bytes, tensors, head.first(head.size() - 1)));
  bytes[flip / 8 % bytes.size()] ^= std::byte(1u << flip % 8);
  Require(!IsRecord(key, bytes, tensors, head));
}

}  // namespace

// The input is the number of tensors, the bit to change, and the record, whose
// bytes are also used as the start of the file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ByteCursor cursor(std::as_bytes(std::span(data, size)));
  const uint64_t tensors = cursor.U8();
  const uint64_t flip = cursor.U16();
  const auto bytes = cursor.Bytes(cursor.remaining());
  if (!cursor.ok()) return 0;
  const ParseLimits limits;
  const auto parsed = ParseAuthentication(bytes, tensors, limits);
  if (!parsed.ok()) {
    Require(!parsed.status().message().empty());
    return 0;
  }
  if (!parsed->has_value()) return 0;
  const AuthenticationRecord& record = **parsed;
  Require(Within(record.start, bytes) && Within(record.index_tag, bytes) &&
          Within(record.header_tags, bytes));
  Require(record.header_tags.size() == tensors * kHeaderTagBytes);
  Require(record.start.size() + record.index_tag.size() +
              record.header_tags.size() <=
          LongestAuthentication(tensors));
  if (record.derivation.has_value()) {
    Require(record.derivation->operations <= limits.max_kdf_operations);
    Require(record.derivation->memory_bytes <= limits.max_kdf_memory_bytes);
  }
  CheckEncoding(record, tensors, bytes, flip);
  return 0;
}
