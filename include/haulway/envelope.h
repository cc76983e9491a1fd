// An Envelope is the small part of an item that is handed over: how its large
// parts lie in an arena, and the rest of it. docs/arena.md has the layout.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "haulway/arena.h"
#include "haulway/export.h"
#include "haulway/status.h"

namespace haulway {

enum class EnvelopeKind : uint16_t {
  kPickle = 1,  // The body is a pickle; parts are its out-of-band buffers.
  kItem = 2,    // The body is an Item, without a pickle: see item.h.
};

struct EnvelopePart {
  // A part is where `range` says in the arena, or, if inlined, in the
  // envelope, `range.offset` bytes after the body.
  enum Flags : uint32_t {
    kInline = 1,
    kBytes = 2,      // It was a bytes object,
    kByteArray = 4,  // or a bytearray,
    kExact = 8,      // and must be one again, not a view.
  };
  ArenaRange range;
  uint32_t flags = 0;

  bool is_inline() const { return (flags & kInline) != 0; }
};

struct Envelope {
  EnvelopeKind kind = EnvelopeKind::kPickle;
  uint64_t span = 0;  // Bytes of the arena that the item takes.
  std::vector<EnvelopePart> parts;
  std::span<const std::byte> body;
  std::span<const std::byte> inlined;  // All that follows the body.
};

// The bytes of an envelope up to its body. What `envelope.body` and
// `envelope.inlined` point to is to follow.
HAULWAY_EXPORT void AppendEnvelopeHead(const Envelope& envelope,
                                       std::vector<std::byte>* out);
// Views into `bytes`. kCorrupt, kTruncated, or kUnsupported for another
// version. Inlined parts lie within the envelope; whether the others lie in
// the arena is for the ArenaReader to say.
HAULWAY_EXPORT Result<Envelope> ParseEnvelope(std::span<const std::byte> bytes);

}  // namespace haulway
