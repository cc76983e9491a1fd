// Converts names that Python 3 moved or renamed to those of protocol 2.

#pragma once

#include <string_view>

#include "pickle/pickle_globals.h"

namespace haulway {

// Returns the name that CPython writes for a global at protocol 2 (with
// fix_imports, the default): `builtins.set` becomes `__builtin__.set`. The
// inverse of RenameGlobal() for every name that can be read back. Views of
// static text or of the arguments.
GlobalName Python2Name(std::string_view module, std::string_view name);

}  // namespace haulway
