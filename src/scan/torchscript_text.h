// Code of TorchScript, which Python could import as well.

#pragma once

#include <optional>
#include <string_view>

#include "scan/text_proof.h"

namespace haulway::scan {

// Nullopt if `text` only declares classes and functions, as torch writes the
// code of TorchScript: then importing it as a module of Python calls nothing
// and imports nothing. What the functions do when they are called is not looked
// at.
std::optional<Doubt> DoubtOfTorchScript(std::string_view text);

}  // namespace haulway::scan
