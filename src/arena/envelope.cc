#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "arena/append.h"
#include "base/checked.h"
#include "base/cursor.h"
#include "haulway/items.h"

namespace haulway {

namespace {

constexpr uint32_t kMagic = 0x56455748;  // "HWEV"
constexpr uint16_t kVersion = 1;
constexpr uint64_t kPartBytes = 32;
constexpr uint32_t kKnownFlags = EnvelopePart::kInline | EnvelopePart::kBytes |
                                 EnvelopePart::kByteArray |
                                 EnvelopePart::kExact;

static_assert(std::endian::native == std::endian::little,
              "swap here to support a big-endian machine");

Status Bad(const ByteCursor& cursor, std::string_view what) {
  return Status(Code::kCorrupt, what).At(cursor.position()).In("envelope");
}

}  // namespace

void AppendEnvelopeHead(const Envelope& envelope, std::vector<std::byte>* out) {
  Append(kMagic, out);
  Append(kVersion, out);
  Append(static_cast<uint16_t>(envelope.kind), out);
  Append(envelope.span, out);
  Append(static_cast<uint32_t>(envelope.parts.size()), out);
  Append(uint32_t{0}, out);
  Append(static_cast<uint64_t>(envelope.body.size()), out);
  for (const EnvelopePart& part : envelope.parts) {
    Append(part.range.offset, out);
    Append(part.range.bytes, out);
    Append(part.range.unit.slot, out);
    Append(part.range.unit.generation, out);
    Append(part.flags, out);
    Append(uint32_t{0}, out);
  }
}

Result<Envelope> ParseEnvelope(std::span<const std::byte> bytes) {
  ByteCursor cursor(bytes);
  Envelope envelope;
  const uint32_t magic = cursor.U32();
  const uint16_t version = cursor.U16();
  const uint16_t kind = cursor.U16();
  envelope.span = cursor.U64();
  const uint32_t count = cursor.U32();
  const uint32_t zero = cursor.U32();
  const uint64_t body_bytes = cursor.U64();
  if (!cursor.ok()) {
    return Status(Code::kTruncated, "envelope ends early")
        .At(bytes.size())
        .In("envelope");
  }
  if (magic != kMagic) return Bad(cursor, "not an envelope");
  if (version != kVersion) {
    return Status(
        Code::kUnsupported,
        fmt::format("envelope of version {}: expected {}", version, kVersion));
  }
  if (kind != static_cast<uint16_t>(EnvelopeKind::kPickle) &&
      kind != static_cast<uint16_t>(EnvelopeKind::kItem)) {
    return Bad(cursor, fmt::format("unknown kind {}", kind));
  }
  envelope.kind = static_cast<EnvelopeKind>(kind);
  if (zero != 0) return Bad(cursor, "reserved bytes are not zero");
  if (count > cursor.remaining() / kPartBytes) {
    return Bad(cursor,
               fmt::format("{} parts in {} bytes", count, cursor.remaining()));
  }
  envelope.parts.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    EnvelopePart part;
    part.range.offset = cursor.U64();
    part.range.bytes = cursor.U64();
    part.range.unit.slot = cursor.U32();
    part.range.unit.generation = cursor.U32();
    part.flags = cursor.U32();
    if (cursor.U32() != 0 || (part.flags & ~kKnownFlags) != 0) {
      return Bad(cursor, "part with unknown flags");
    }
    envelope.parts.push_back(part);
  }
  envelope.body = cursor.Bytes(body_bytes);
  if (!cursor.ok()) return Bad(cursor, "body does not fit");
  envelope.inlined = cursor.Bytes(cursor.remaining());
  for (const EnvelopePart& part : envelope.parts) {
    if (part.is_inline() && !RangeFits(part.range.offset, part.range.bytes,
                                       envelope.inlined.size())) {
      return Bad(cursor, "inlined part does not fit");
    }
  }
  return envelope;
}

}  // namespace haulway
