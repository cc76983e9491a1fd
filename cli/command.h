// What the verbs of the command line share: their options and exit codes.

#pragma once

#include <atomic>
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

struct Options {
  std::vector<std::string> files;
  std::vector<std::string> include, exclude;
  bool json = false, bytes = false, quiet = false, verbose = false;
  bool natural = false, no_progress = false, verify = false;
  OpenOptions open;
  KeyOptions key;
  bool raw = false;
  std::string tensor, slice;        // Of cat.
  std::vector<std::string> slices;  // Of plan: NAME=SLICE.
  std::string prefix;               // Of names.
  std::optional<ShardOptions> shard;
  std::string out;
  uint64_t alignment = 64;  // This and the next three: of repack.
  bool no_crc = false, compact = false, no_sync = false;
  int threads = 0;
  int repeat = 1;
  IoMode io = IoMode::kAuto;
  std::string action;                                   // Of arena.
  std::vector<std::string> append, rename, set, unset;  // Of edit.
  bool move = false;
  bool authenticate = false, no_authenticate = false;  // Of encrypt.
  std::string format, dtype, proof, ties = "keep";     // Of convert.
  uint64_t shard_bytes = 0, memory_budget = 0;         // The same; 0: as usual.
};

// Each returns an exit code and has printed everything, errors included.
int Ls(const Options& options);
int Info(const Options& options);
int CatTensor(const Options& options);
int VerifyFiles(const Options& options);
int ScanFiles(const Options& options);
int LoadFile(const Options& options);
int PlanFile(const Options& options);
int RepackFile(const Options& options);
int ShowArenas(const Options& options);
int Encrypt(const Options& options);
int Decrypt(const Options& options);
int EditFile(const Options& options);
int ConvertFile(const Options& options);

// A number with k, M, G, T, or Ki, Mi, Gi, Ti behind it, and perhaps a B.
std::optional<uint64_t> ParseSize(const std::string& text);

// Reads the key that the options name, if any.
Status ReadKey(const KeyOptions& options, EncryptionKey* key);

// What --include, --exclude and --prefix choose.
NameOptions NamesOf(const Options& options);

// Prints the error as the options ask; returns its exit code.
int Fail(const Options& options, const Status& status);

// What a name leads to, mapped if it is a file.
Result<std::shared_ptr<const ByteSource>> OpenInput(const std::string& path);

// What there is in a folder, by path.
using FolderLister = Result<std::vector<std::string>> (*)(std::string_view);
// Folders become what lies in them. Fails with kNotFound where that is nothing.
Result<std::vector<std::string>> ExpandInputs(
    const std::vector<std::string>& paths, FolderLister list);

// Runs `one` on each input; `heading` is true if there are several. Returns the
// code of the worst: a failure, then a finding; no match if nothing matched.
using FileVerb = int (*)(const Options& options, const std::string& file,
                         bool heading);
int ForEachFile(const Options& options, FileVerb one,
                FolderLister list = ListCheckpoints);

// Set by the handler of SIGINT, for calls that can be cancelled.
extern std::atomic<bool> interrupted;

}  // namespace haulway::cli
