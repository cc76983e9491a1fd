// Where the chunks of a distributed checkpoint lie.

#include "haulway/dcp.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include <span>
#include <vector>

#include "base/errors.h"
#include "base/gil.h"
#include "bind/bindings.h"
#include "haulway/checkpoint.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

nb::tuple TupleOf(std::span<const int64_t> numbers) {
  nb::list list;
  for (const int64_t number : numbers) list.append(number);
  return nb::tuple(list);
}

}  // namespace

void BindDcp(nb::module_& module) {
  module.def(
      "dcp_chunks",
      [](const Checkpoint& checkpoint) {
        const std::vector<StoredChunk> chunks =
            Unwrap(WithoutGil([&] { return ListChunks(checkpoint.reader()); }));
        nb::list list;
        for (const StoredChunk& chunk : chunks) {
          list.append(nb::make_tuple(chunk.tensor, TupleOf(chunk.offsets),
                                     TupleOf(chunk.sizes), chunk.file,
                                     chunk.offset, chunk.nbytes));
        }
        return list;
      },
      nb::arg("checkpoint"),
      "(tensor, offsets, sizes, file, offset, nbytes) of every chunk of a "
      "directory of torch.distributed.checkpoint: nbytes of the file from "
      "offset on are its elements, row-major.");
}

}  // namespace haulway::python
