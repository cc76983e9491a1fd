#include "delta/change.h"

#include <cstdint>

#include "delta/change_reader.h"

namespace haulway::delta {

Status ApplyChange(Change change, std::span<const std::byte> frame,
                   std::span<std::byte> tensor, Checksum* checksum) {
  HAULWAY_ASSIGN(ChangeReader reader,
                 ChangeReader::Open(change, frame, tensor.size()));
  for (size_t done = 0; done < tensor.size();) {
    HAULWAY_ASSIGN(const ChangeReader::Step step,
                   reader.Next(tensor.subspan(done)));
    if (checksum != nullptr) {
      checksum->Update(tensor.subspan(done, step.bytes));
    }
    done += step.bytes;
  }
  return reader.Finish();
}

}  // namespace haulway::delta
