// Determines the format of a file.

#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// Returns the format of `source`, with one read. Fails with kUnsupported if it
// is none, and, under kStrict, with kCorrupt if the bytes match a second format
// too.
Result<const FormatEntry*> DetectFormat(const ByteSource& source,
                                        Strictness strictness);

// Returns whether `format` is that of shard indexes, which are not a checkpoint
// format of their own.
bool IsOfShards(const FormatEntry& format);

// Returns the kind of files, of other programs, whose names end like `path`:
// "npz"; empty if not known.
std::string_view ForeignBySuffix(std::string_view path);
// Returns what a file without a known format is, and what to do with it: "a
// pointer of Git LFS: fetch the file itself"; "" if its first bytes do not
// tell.
std::string_view MistakenFor(std::span<const std::byte> head,
                             std::string_view name);

// Returns the only format that can be written under a name, if its scheme has
// only one there.
std::optional<Format> OnlyFormatOf(std::string_view uri);

// As FormatToWrite(), but fails with kInvalidArgument for an unknown suffix.
// The message lists the known ones.
Result<Format> FormatOfEnding(std::string_view path);

}  // namespace haulway
