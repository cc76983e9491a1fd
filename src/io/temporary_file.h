// Names of temporary files, and where they are made.
//
// A temporary is called ".NAME.PID-NUMBER.haulway-tmp". It is a file that is
// being written, or one that a save has taken out of the way. The process that
// uses it holds a lock on it (flock), so that a file without a lock is the
// leftover of a process that died.

#pragma once

#include <string>
#include <string_view>

namespace haulway {

// Returns the folder in which a path lies, with its slash; "." for a name.
std::string FolderOfPath(const std::string& path);

// Returns a temporary name in the folder of `path`.
std::string TemporaryName(const std::string& path, int number);

// Locks a new temporary. Returns false if a sweep took it for a leftover before
// it was locked: then it has lost its name, or will.
bool LockTemporary(int fd);

// Removes all temporaries of dead processes of this user in the folder of
// `path`, whatever their names. Locks of a network file system may not reach
// other machines, so there only those of `path` itself go at once, and others
// when they are a day old.
void SweepTemporaries(const std::string& path);

// Returns the name of a temporary in the folder of `path` that belongs to this
// path, or, if it ends in a slash, to any; "" if there is none.
std::string FindTemporary(const std::string& path);

// Returns whether TemporaryName() of some process could have made the last part
// of a name.
bool IsTemporary(std::string_view name);

// Returns the folder for files without a name: TMPDIR, or /tmp.
std::string TemporaryFolder();

}  // namespace haulway
