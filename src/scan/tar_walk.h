// The members of a tar as Python's tarfile reads them.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::scan {

inline constexpr uint64_t kTarBlockBytes = 512;

// Whether tarfile takes this block for a header: by a checksum of its own
// reading of octal numbers, signs, underscores, base 256 and all. Other
// readers may not.
bool IsTarHeader(std::span<const std::byte> block);

struct TarMember {
  std::string name;
  std::string link;     // Where it leads, of a link.
  char type = '0';      // As POSIX has them; of a folder '5'.
  uint64_t header = 0;  // Where the header block lies in the source.
  uint64_t offset = 0;  // Where the member's bytes lie.
  uint64_t size = 0;
  // It was written in a way that readers of tar may take differently; this
  // says how.
  std::string odd;
};

// Calls `each` for every member, until it fails. Ends where tarfile does.
// Fails with kCorrupt or kTruncated where the tar is damaged, which tarfile
// may take for its end, with kUnsupported for what is not followed, and if the
// source does.
Status WalkTar(const ByteSource& source,
               const std::function<Status(const TarMember& member)>& each);

}  // namespace haulway::scan
