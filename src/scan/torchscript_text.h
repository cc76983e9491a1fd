// Checks TorchScript code, which Python could import as a module too.

#pragma once

#include <optional>
#include <string_view>

#include "scan/text_proof.h"

namespace haulway::scan {

// Returns nullopt if `text` only declares classes and functions, in the form in
// which torch writes TorchScript code: importing it as a Python module calls
// nothing and imports nothing. Does not check what the functions do when
// called.
std::optional<Doubt> DoubtOfTorchScript(std::string_view text);

}  // namespace haulway::scan
