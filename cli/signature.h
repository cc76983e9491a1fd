// Options that say who must have signed a model.

#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "command.h"
#include "haulway/signing.h"

namespace haulway::cli {

// Adds --signature and the options beside it, for verbs that open a model.
// HAULWAY_LOAD_PUBLIC_KEY and the other variables set what the command line
// does not.
void AddSignature(CLI::App& app);

// Adds the same options but --signature-scope, for `verify`: the variables
// do not count.
void AddSignature(CLI::App& app, SignatureOptions* options);

// Makes the verb ask for what the command line and the environment say. Call it
// before OpenModel(), in verbs with AddSignature().
void TakeSignature();

// Makes paths of --ignore-paths, which begin in the current folder, absolute.
void MakeAbsolute(std::vector<std::string>* paths);

// The signed model that OpenModel() opened last; null if none was asked for.
std::shared_ptr<SignedModel>& OpenedSigned();

// Compares the files of the opened model with its signature: all that were
// opened, or all if --signature-scope says so, or `usual` does. With kAuto for
// `usual`, files are compared as they are read.
Status CompareSigned(SignatureScope usual, int threads = 0);

// Fails with kInvalidArgument if a mapping is asked for and a signature is:
// returns the way to read files, and sets `*io` to what the engine takes.
Result<IoMode> IoOfSigned(IoMode* io);

// Returns kUsage for kInvalidArgument, after printing it: of options that
// contradict one another, and of keys that are none.
int FailSigned(const Options& options, const Status& status);

}  // namespace haulway::cli
