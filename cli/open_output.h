// Opens what verbs write.

#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway::cli {

// Adds --overwrite, for verbs that write checkpoints to URLs.
CLI::Option* AddOverwrite(CLI::App& app);

// Fails if `out`, "-", is a terminal: it would show bytes of a file as text.
Status CheckOutput(const std::string& out);

// Opens a file or URL to write, as the options for URLs say. Fails as
// CheckOutput() does.
Result<std::unique_ptr<ByteSink>> OpenOutput(const std::string& out,
                                             FileSinkOptions file = {});

}  // namespace haulway::cli
