// Defines verbs of the command line, and what they share: options, exit codes,
// and the ways to name files.

#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
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
  kUnread = 5,  // Only of scan, whose kFailed means UNKNOWN.
  kInterrupted = 130
};

// Where to find the key. At most one is set.
struct KeyOptions {
  std::string keyfile, passphrase_file, key_env;
};

// Options that several verbs share. Each verb derives its own from it.
struct Options {
  std::vector<std::string> files;
  std::vector<std::string> join;  // More files of the first one's checkpoint.
  bool json = false, bytes = false;
  OpenOptions open;
  KeyOptions key;
  std::vector<std::string> lora;  // As given; `open` has them parsed.
  std::vector<std::string> include, exclude;
  std::string prefix;
  int threads = 0;
  uint64_t memory_budget = 256 * kMiB;
  bool no_progress = false;
  // Whether the environment may ask for a signature of the model.
  bool may_be_signed = true;
};

// A Runner is a verb that was added to the command line: its options, and the
// function that runs it. The function returns an exit code, and has printed
// everything, including errors.
struct Runner {
  std::shared_ptr<Options> options;
  std::function<int()> run;
};

// A Verb is everything that the command knows about a verb. It is defined at
// the end of the file that implements it, and listed in CMakeLists.txt.
struct Verb {
  const char* name;
  const char* about;
  const char* examples;  // One per line.
  // Adds the verb's options to `app`, its part of the command line.
  Runner (*add)(CLI::App& app);
  bool cancels = false;  // The verb ends early when `interrupted` is set.
  const char* alias = nullptr;
  bool tells_unused_names = true;  // After the verb has run.
};

void AddJson(CLI::App& app, Options& options);
// Returns the options of a new verb, and adds --json.
template <class OwnOptions>
std::shared_ptr<OwnOptions> MakeOptions(CLI::App& app) {
  auto options = std::make_shared<OwnOptions>();
  AddJson(app, *options);
  return options;
}
// Adds --bytes, for verbs that print sizes.
void AddBytes(CLI::App& app, Options& options);
// Adds --lenient, for verbs that open checkpoints. AddFile() and AddFiles() add
// it too.
void AddLenient(CLI::App& app, Options& options);
// Add the argument FILE, one or several.
void AddFile(CLI::App& app, Options& options,
             const char* about =
                 "A file, a model's folder, a URL, or - for standard input");
void AddFiles(CLI::App& app, Options& options);
void AddOut(CLI::App& app, std::string* out, const char* about);
// Refuses --json if `out` is "-", because both write to standard output. Both
// arguments must live as long as `app`.
void RefuseJsonBeside(CLI::App& app, const Options& options,
                      const std::string& out);
// Adds the options for access to URLs. AddFile() and AddFiles() add them too.
void AddRemote(CLI::App& app);
// Returns the options for access to URLs. They are global, because a process
// runs a single verb.
RemoteOptions& Remote();
// Returns the options that choose what a name means, for all inputs of the
// verb. They are global, too.
SourceOptions& Sources();
// Adds --dequantize, --lora and --rules, for verbs that read tensors.
void AddDequantize(CLI::App& app, Options& options);
// Adds --raw, for verbs that cast.
void AddRaw(CLI::App& app, Options& options);
// Adds --variant and --join, for verbs whose FILE is a model.
void AddNaming(CLI::App& app, Options& options);
// Adds the argument FILE of such a verb: AddFile() and AddNaming().
void AddModel(CLI::App& app, Options& options);
// Adds --exclude with this help.
void AddExclude(CLI::App& app, Options& options, const char* about);
// Adds --include, --exclude and --prefix.
void AddFilters(CLI::App& app, Options& options);
void AddKey(CLI::App& app, Options& options, bool required = false);
void AddAllow(CLI::App& app, Options& options);
// Says which names of --allow are in no pickle that the verb opened: most
// likely they are misspelled. Standard input cannot be looked at again.
void TellUnusedNames(const Options& options);
// The names of what OpenInput() and OpenModel() opened.
std::set<std::string>& OpenedNames();
// Checks a numeric option. Returns why `text` is not a number of 1 or more, or
// "".
std::string CheckPositive(const std::string& text);
// Makes an option take one of these words only.
CLI::Option* OneOf(CLI::Option* option, std::vector<std::string> words);
// Sets and returns the words that shells complete for the value of an option.
CLI::Option* Offer(CLI::Option* option, std::vector<std::string> words);
std::vector<std::string> OfferedFor(const CLI::Option& option);
// Adds --dtype, for verbs that cast.
void AddDType(CLI::App& app, std::string* dtype);
// Adds --to, with a format to write a file or a directory in.
void AddTo(CLI::App& app, std::string* format, const char* about);
// Checks the name of a format to write a file in. Returns why it is not valid,
// or "".
std::string CheckFormatToWrite(const std::string& name);
// Returns why `path` cannot be written, or "": some verbs write only files, not
// standard output.
std::string CheckFileToWrite(const std::string& path);
// Returns why `text` is not KEY=VALUE, or "".
std::string CheckPair(const std::string& text);
void AddThreads(CLI::App& app, Options& options);
void AddMemoryBudget(CLI::App& app, Options& options);
void AddProgress(CLI::App& app, Options& options);
// Adds an option that can be repeated, with one value each time.
CLI::Option* AddList(CLI::App& app, const std::string& name,
                     std::vector<std::string>& list, const std::string& about);
// Returns the bytes of a number with an optional suffix: k, M, G, T or Ki, Mi,
// Gi, Ti, and optionally B.
std::optional<uint64_t> ParseSize(const std::string& text);
// Adds an option whose value is a size as in ParseSize(), at least `least`.
void AddSize(CLI::App& app, const std::string& name, uint64_t* bytes,
             const std::string& about, uint64_t least = 1);

// Reads the key that the options name, if they name one.
Status ReadKey(const KeyOptions& options, EncryptionKey* key);

// Returns the filter of --include, --exclude and --prefix.
NameOptions NamesOf(const Options& options);

// Prints the error as the options say. Returns its exit code.
int Fail(const Options& options, const Status& status);

// Opens an input with the options of Remote(). Bytes read from a mapping stay
// in memory, so verbs that read much use kPread.
Result<std::shared_ptr<const ByteSource>> OpenInput(const std::string& path,
                                                    IoMode io = IoMode::kMmap);
// Opens an input for its bytes; fails with kInvalidArgument for a folder.
Result<std::shared_ptr<const ByteSource>> OpenFileInput(
    const std::string& path);
// Opens a model: an input, and the files to join it with.
Result<std::shared_ptr<const ByteSource>> OpenModel(const Options& options,
                                                    const std::string& file,
                                                    IoMode io = IoMode::kMmap);

// Opens the checkpoint of an input; of an index of shards, only those that have
// a name that --include, --exclude and --prefix concern.
Result<std::shared_ptr<const Checkpoint>> OpenChosen(
    std::shared_ptr<const ByteSource> source, const OpenOptions& open,
    const Options& options);

// Opens a checkpoint. If its object needs code, says so on standard error.
Result<std::shared_ptr<const Checkpoint>> OpenCheckpoint(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);

// Writes a text to a path or URL, completely or not at all.
Status WriteText(const std::string& out, std::string_view text);

// Prints lines about the file `out` to standard output or, if that receives the
// file, to standard error.
void Report(const std::string& out, std::string_view lines);

// Lists the contents of a folder as names.
using FolderLister = Result<std::vector<std::string>> (*)(
    std::string_view folder, const RemoteOptions& remote);
// Replaces folders by their contents. Fails with kNotFound if a folder is
// empty.
Result<std::vector<std::string>> ExpandInputs(
    const std::vector<std::string>& paths, FolderLister list);

// Runs `one` on each input; `heading` is true if there are several. Returns the
// worst exit code: a failure, then a finding. Returns no-match if nothing
// matched.
using FileVerb = std::function<int(const std::string& file, bool heading)>;
int ForEachFile(const Options& options, const FileVerb& one,
                FolderLister list = ListCheckpoints);

// Set by the SIGINT handler, for calls that can be cancelled.
extern std::atomic<bool> interrupted;

// Splits KEY=VALUE. Requires: there is a '='.
inline std::pair<std::string, std::string> SplitPair(const std::string& text) {
  const size_t at = text.find('=');
  return {text.substr(0, at), text.substr(at + 1)};
}

}  // namespace haulway::cli
