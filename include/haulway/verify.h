// Checking a file without loading it: whether it is whole, and whether it would
// run code in those who read it.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/index.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

struct RemoteOptions;  // open.h

// Bytes of the file that were not checked, and why.
struct Unchecked {
  std::string what;
  uint64_t offset;
  uint64_t bytes;
  bool needs_key = false;  // Could be checked with the key of the file.
};

struct VerifyReport {
  std::string file;
  Format format = Format::kTorch;
  bool ok = true;
  uint64_t checked_bytes = 0;  // Whose checksum was computed and compared.
  uint64_t file_bytes = 0;
  // Of encrypted files, whether it is known who wrote their metadata:
  // "checked", "not checked", for want of the key, or "none"; else empty.
  std::string authentication;
  std::vector<Unchecked> unchecked;
  std::vector<Finding> findings;
  // What is wrong and changes nothing for readers: the total_size of an index.
  std::vector<std::string> notes;
};

struct VerifyOptions {
  OpenOptions open;
  int threads = 0;
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

// Checks structure, every checksum and every cross-check. A file that is
// faulty gives a report with findings; only a source that cannot be read
// gives an error, and kCancelled where `cancel` was set.
HAULWAY_EXPORT Result<VerifyReport> Verify(
    std::shared_ptr<const ByteSource> source,
    const VerifyOptions& options = {});

// Verify() of a file that was come upon in a folder (ListFiles()): nullopt if
// it is no checkpoint, nor has a name that ends as those of checkpoints do, or
// is at fault and has another program's ending. Of an index of shards, only
// whether they agree with it is looked at: they lie in the folder, too.
HAULWAY_EXPORT Result<std::optional<VerifyReport>> VerifyFound(
    std::shared_ptr<const ByteSource> source,
    const VerifyOptions& options = {});

// A scan judges a file for the readers that people use: pickle, torch.load()
// with weights_only=False, torch.jit.load(), torch.export.load(),
// torch.package, joblib, numpy with allow_pickle=True, and what opens a zip
// or a tar by Python's zipfile and tarfile; and the programs that run files by
// their content or their names. It runs nothing and imports nothing.

// The worse, the greater.
enum class Verdict : uint8_t {
  kSafe,     // Proven: no such reader runs or imports what is not allowed.
  kUnknown,  // There is no such proof.
  kUnsafe,   // Some reader would, or two would take it for different things.
};

// "SAFE", "UNKNOWN", "UNSAFE".
HAULWAY_EXPORT std::string_view Name(Verdict verdict);

struct ScannedGlobal {
  std::string module;   // As Python 3 would import it.
  std::string name;     // Of it, with dots if the pickle has them.
  std::string written;  // "module.name" as it stands in the file.
  bool allowed;
  uint64_t byte;  // Of the opcode that names it, from the pickle's first.
};

struct ScannedPickle {
  std::string member;   // "archive/data.pkl"; "" if it is the file itself.
  uint64_t offset = 0;  // In the file, or in what it was inflated to.
  uint64_t bytes = 0;
  int protocol = 0;
  std::vector<ScannedGlobal> globals;  // Every mention, in order.
  // How often each opcode stands in it; only those that do, by their byte.
  std::vector<std::pair<uint8_t, uint64_t>> opcodes;
};

struct ScanReport {
  std::string file;
  Verdict verdict = Verdict::kSafe;
  std::string reason;            // Of the verdict, in a sentence.
  std::optional<uint64_t> byte;  // Where that lies, if it lies somewhere.
  std::vector<ScannedPickle> pickles;
  // All that keeps the file from being SAFE.
  std::vector<Finding> findings;

  bool safe() const { return verdict == Verdict::kSafe; }
};

// Uses the options `limits`, `strictness` and `allowed_globals`, and the name
// of `source` unless it is "memory". Fails only if the source does.
HAULWAY_EXPORT Result<ScanReport> Scan(std::shared_ptr<const ByteSource> source,
                                       const OpenOptions& options = {});

// Scans what a name leads to, in the order of names: the file, or every file
// of a folder and of those in it. There, what is no regular file or link to
// one, or cannot be read, is reported as kUnknown with the reason, and never
// waited for; links to folders are not followed. An index of shards
// (`*.index.json`) brings its shards with it. Fails if there is no file or
// folder of that name, and with kNotFound if the folder holds no file; `each`
// may fail, which ends it.
HAULWAY_EXPORT Status
ScanPath(const std::string& path, const OpenOptions& options,
         const std::function<Status(ScanReport report)>& each);
// The same of what is reached as `remote` says.
HAULWAY_EXPORT Status
ScanPath(const std::string& path, const OpenOptions& options,
         const std::function<Status(ScanReport report)>& each,
         const RemoteOptions& remote);

}  // namespace haulway
