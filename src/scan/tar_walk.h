// Walks the members of a tar as Python's tarfile reads them.

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

// Returns whether tarfile accepts this block as a header. tarfile compares the
// checksum by its own rules for octal numbers: signs, underscores, base 256.
// Other readers may not accept the block.
bool IsTarHeader(std::span<const std::byte> block);

struct TarMember {
  std::string name;
  std::string link;     // Target, if the member is a link.
  char type = '0';      // POSIX type flag; '5' is a folder.
  uint64_t header = 0;  // Offset of the header block in the source.
  uint64_t offset = 0;  // Offset of the member's bytes.
  uint64_t size = 0;
  // How the member's header is written in a way that tar readers interpret
  // differently; "" if it is not.
  std::string odd;
};

// Calls `each` for every member. Ends where tarfile does, or when `each` fails.
// Fails with kCorrupt or kTruncated if the tar is damaged (tarfile may take the
// damage for the end), with kUnsupported for features that are not followed,
// and if reading the source fails.
Status WalkTar(const ByteSource& source,
               const std::function<Status(const TarMember& member)>& each);

}  // namespace haulway::scan
