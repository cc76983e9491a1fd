// What is no tensor in a directory: objects, each an archive of torch.save.

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

// An object as the reader of torch.save sees it.
struct OpenedObject {
  std::string_view name;
  StoredItem item;
  std::unique_ptr<const FormatReader> reader;
};

// Opens the objects of a directory, of which small ones come in one read of
// each file. Their pickles are taken as data; one that could only be made by
// code has it in its index's object_status. Fails as reading and torch's reader
// do, naming the object and its file.
Result<std::vector<OpenedObject>> OpenObjects(const Metadata& metadata,
                                              const DataFiles& files,
                                              const OpenOptions& options);

// Makes the rows of tensors and storages that the object refers to those of an
// index in which its own begin at `first_tensor` and `first_storage`. To be
// called once.
void ShiftRows(const Value& root, uint32_t first_tensor,
               uint32_t first_storage);

}  // namespace haulway::dcp
