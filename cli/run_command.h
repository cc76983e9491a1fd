// The command line as a function, for installations without a separate program.

#pragma once

#include <string>
#include <string_view>

#include "haulway/checkpoint.h"

namespace haulway {

// Runs the command with its arguments, of which the first is its name, and
// returns the exit code. Handles SIGINT and SIGBUS, and writes to the standard
// streams. Call it once per process.
int RunCommand(int argc, char** argv);

// Returns what `haulway info --json` prints about a checkpoint called `file`.
std::string InfoJson(const Checkpoint& checkpoint, std::string_view file);

}  // namespace haulway
