// Decodes items from envelopes.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "haulway/arena.h"
#include "haulway/items.h"
#include "items/copy_pool.h"

namespace haulway::python {

struct DecodeOptions {
  bool copy = false;            // Copy parts out of the arena.
  bool read_only = false;       // Make parts read-only.
  bool bytes_as_views = false;  // Return bytes and bytearray as memoryviews.
  bool no_pickle = false;       // Refuse an item that needs unpickling.
};

// An ItemDecoder builds items from envelopes. Parts are views of the arena; a
// unit is released when Python has dropped all views of it.
class ItemDecoder {
 public:
  // If `reader` is null, all parts must be inlined. With `copy`, parts are
  // copied into memory of `pool`.
  ItemDecoder(std::shared_ptr<ArenaReader> reader, DecodeOptions options);

  // Throws Python exceptions, also if the envelope is malformed.
  nanobind::object Decode(const Buffer& bytes);
  // Releases the units that the envelope refers to without reading them.
  void Discard(const Buffer& bytes);

 private:
  class Claims;
  nanobind::object Load(const Envelope& envelope, const Buffer& bytes,
                        Claims& claims, bool bytes_as_views);
  nanobind::object LoadItem(const Envelope& envelope, const Buffer& bytes,
                            Claims& claims);
  // Returns the parts as Python objects.
  nanobind::list Parts(const Envelope& envelope, const Buffer& bytes,
                       Claims& claims, bool bytes_as_views);

  std::shared_ptr<ArenaReader> reader_;
  DecodeOptions options_;
  std::shared_ptr<CopyPool> pool_ = std::make_shared<CopyPool>();
  nanobind::object loads_;
  nanobind::object load_tensor_;
};

}  // namespace haulway::python
