// Items out of envelopes.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "haulway/arena.h"
#include "haulway/items.h"
#include "items/copy_pool.h"

namespace haulway::python {

struct DecodeOptions {
  bool copy = false;            // Parts are copied out of the arena.
  bool read_only = false;       // Parts cannot be written to.
  bool bytes_as_views = false;  // bytes and bytearray come as memoryviews.
  bool no_pickle = false;       // Refuses what would be unpickled.
};

// An ItemDecoder makes items from envelopes. Parts of them are views of the
// arena, whose units are released when Python has let go of all views.
class ItemDecoder {
 public:
  // `reader` may be null: then all parts must be inlined. Parts are copied
  // into memory of `pool`.
  ItemDecoder(std::shared_ptr<ArenaReader> reader, DecodeOptions options);

  // Throws Python's errors, also for an envelope that is not well formed.
  nanobind::object Decode(const Buffer& bytes);
  // Releases what the envelope refers to, unread.
  void Discard(const Buffer& bytes);

 private:
  class Claims;
  nanobind::object Load(const Envelope& envelope, const Buffer& bytes,
                        Claims& claims, bool bytes_as_views);
  nanobind::object LoadItem(const Envelope& envelope, const Buffer& bytes,
                            Claims& claims);
  // The parts as Python objects.
  nanobind::list Parts(const Envelope& envelope, const Buffer& bytes,
                       Claims& claims, bool bytes_as_views);

  std::shared_ptr<ArenaReader> reader_;
  DecodeOptions options_;
  std::shared_ptr<CopyPool> pool_ = std::make_shared<CopyPool>();
  nanobind::object loads_;
  nanobind::object load_tensor_;
};

}  // namespace haulway::python
