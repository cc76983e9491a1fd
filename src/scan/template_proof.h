// Templates of Jinja, by which tokenizers say how a chat becomes a prompt.

#pragma once

#include <optional>
#include <string_view>

#include "scan/text_proof.h"

namespace haulway::scan {

// Nullopt if `text` is shown to put texts together and no more, in a Jinja
// without a sandbox too: nothing that it names leads from the messages of a
// chat to the modules of Python.
std::optional<Doubt> DoubtOfTemplate(std::string_view text);

}  // namespace haulway::scan
