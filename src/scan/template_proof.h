// Checks Jinja templates. Tokenizers use them to turn a chat into a prompt.

#pragma once

#include <optional>
#include <string_view>

#include "scan/text_proof.h"

namespace haulway::scan {

// Returns nullopt if `text` is proven only to assemble text, even in Jinja
// without a sandbox: no name in it leads from the messages of a chat to
// Python's modules. Otherwise returns why not.
std::optional<Doubt> DoubtOfTemplate(std::string_view text);

}  // namespace haulway::scan
