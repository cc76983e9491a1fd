// What a verb of the command line is, and what verbs share: options, exit
// codes, the ways to name files.

#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/load.h"
#include "haulway/open.h"
#include "haulway/select.h"

namespace haulway::cli {

enum Exit {
  kDone = 0,
  kFound = 1,
  kFailed = 2,
  kNoMatch = 3,
  kUsage = 4,
  kInterrupted = 130
};

// Where a key is; at most one is given.
struct KeyOptions {
  std::string keyfile, passphrase_file, key_env;
};

// What several verbs can be told. Each has its own, with what only it knows.
struct Options {
  std::vector<std::string> files;
  bool json = false, bytes = false;
  OpenOptions open;
  KeyOptions key;
  std::vector<std::string> include, exclude;
  std::string prefix;
  int threads = 0;
  uint64_t memory_budget = 256 * kMiB;
  bool no_progress = false;
};

// A Runner is a verb that was added to the command line: what it was told, and
// what runs it then. It returns an exit code and has printed everything, errors
// included.
struct Runner {
  std::shared_ptr<Options> options;
  std::function<int()> run;
};

// A Verb is all that the command knows of one: defined at the end of the file
// that runs it, and listed in CMakeLists.txt.
struct Verb {
  const char* name;
  const char* about;
  const char* examples;  // One a line.
  // Adds what it can be told to `app`, its part of the command line.
  Runner (*add)(CLI::App& app);
  bool cancels = false;  // It ends early when `interrupted` is set.
  const char* alias = nullptr;
};

void AddJson(CLI::App& app, Options& options);
// The options of a new verb, with --json.
template <class OwnOptions>
std::shared_ptr<OwnOptions> MakeOptions(CLI::App& app) {
  auto options = std::make_shared<OwnOptions>();
  AddJson(app, *options);
  return options;
}
// --bytes, of what prints sizes.
void AddBytes(CLI::App& app, Options& options);
// --lenient, of what opens checkpoints; AddFile() and AddFiles() add it, too.
void AddLenient(CLI::App& app, Options& options);
// FILE, one or many; where others follow it, it is one word.
void AddFile(CLI::App& app, Options& options,
             const char* about =
                 "A file, a model's folder, a URL, or - for standard input");
void AddFiles(CLI::App& app, Options& options);
void AddOut(CLI::App& app, std::string* out, const char* about);
// What tells how URLs are reached; AddFile() and AddFiles() add it, too.
void AddRemote(CLI::App& app);
// Where all verbs put that: one runs in a process.
RemoteOptions& Remote();
// --include, --exclude and --prefix.
void AddFilters(CLI::App& app, Options& options);
void AddKey(CLI::App& app, Options& options, bool required = false);
void AddAllow(CLI::App& app, Options& options);
// For options that are numbers: why `text` is none of 1 or more, or "".
std::string CheckPositive(const std::string& text);
// For options that are dtypes, or formats to write: why `name` is none, or "".
std::string CheckDType(const std::string& name);
std::string CheckFormatToWrite(const std::string& name);
// For options that are KEY=VALUE: why `text` is not such a pair, or "".
std::string CheckPair(const std::string& text);
void AddThreads(CLI::App& app, Options& options);
void AddMemoryBudget(CLI::App& app, Options& options);
void AddProgress(CLI::App& app, Options& options);
// An option that can be given again and again, each time one text.
CLI::Option* AddList(CLI::App& app, const std::string& name,
                     std::vector<std::string>& list, const std::string& about);
// Returns the bytes of a number with k, M, G, T or Ki, Mi, Gi, Ti, and perhaps
// B, after it.
std::optional<uint64_t> ParseSize(const std::string& text);
// A size as in --help: a number, perhaps with k, M, G, T or Ki, Mi, Gi, Ti and
// B; not below `least`.
void AddSize(CLI::App& app, const std::string& name, uint64_t* bytes,
             const std::string& about, uint64_t least = 1);

// Reads the key that the options name, if any.
Status ReadKey(const KeyOptions& options, EncryptionKey* key);

// What --include, --exclude and --prefix choose.
NameOptions NamesOf(const Options& options);

// Prints the error as the options ask; returns its exit code.
int Fail(const Options& options, const Status& status);

// What a name leads to, reached as Remote() says. What is read of a mapping
// stays in memory: kPread is for verbs that read much.
Result<std::shared_ptr<const ByteSource>> OpenInput(const std::string& path,
                                                    IoMode io = IoMode::kMmap);

// Writes a text to what a name leads to, all of it or nothing.
Status WriteText(const std::string& out, const std::string& text);

// What there is in a folder, by name.
using FolderLister = Result<std::vector<std::string>> (*)(
    std::string_view folder, const RemoteOptions& remote);
// Folders become what lies in them. Fails with kNotFound where that is nothing.
Result<std::vector<std::string>> ExpandInputs(
    const std::vector<std::string>& paths, FolderLister list);

// Runs `one` on each input; `heading` is true if there are several. Returns the
// code of the worst: a failure, then a finding; no match if nothing matched.
using FileVerb = std::function<int(const std::string& file, bool heading)>;
int ForEachFile(const Options& options, const FileVerb& one,
                FolderLister list = ListCheckpoints);

// Set by the handler of SIGINT, for calls that can be cancelled.
extern std::atomic<bool> interrupted;

}  // namespace haulway::cli
