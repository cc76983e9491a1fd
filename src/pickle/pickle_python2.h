// The names that protocol 2 has for what Python 3 moved or renamed.

#pragma once

#include <string_view>

#include "pickle/pickle_globals.h"

namespace haulway {

// The name CPython writes for a global in a pickle of protocol 2 (with its
// fix_imports, the default): `builtins.set` is `__builtin__.set`. The inverse
// of RenameGlobal() for all that can be read back. Views of static text or of
// the arguments.
GlobalName Python2Name(std::string_view module, std::string_view name);

}  // namespace haulway
