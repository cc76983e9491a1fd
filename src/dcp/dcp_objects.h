// The objects of a directory that are not tensors. Each is an archive of
// torch.save().

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dcp/dcp_files.h"
#include "dcp/dcp_metadata.h"
#include "haulway/format.h"
#include "haulway/index.h"
#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway::dcp {

// An object, opened by the reader of torch.save().
struct OpenedObject {
  std::string_view name;
  StoredItem item;
  std::unique_ptr<const FormatReader> reader;
};

// Opens the objects of a directory. Small ones are read with one call per file.
// Their pickles are parsed as data; if only code could create an object, its
// index's object_status says so. An object that extensions transformed gets a
// file of its own in `files`, of its decoded bytes, and its item in `metadata`
// is that file. Fails as reading, ItemDecoder and torch's reader do, naming the
// object and its file.
Result<std::vector<OpenedObject>> OpenObjects(DataFiles* files,
                                              const OpenOptions& options,
                                              Metadata* metadata);

// Adjusts the rows of tensors and storages in the object to an index in which
// its own begin at `first_tensor` and `first_storage`. Call it once.
void ShiftRows(const Value& root, uint32_t first_tensor,
               uint32_t first_storage);

}  // namespace haulway::dcp
