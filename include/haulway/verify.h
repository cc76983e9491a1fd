// Checking a file without loading it: whether it is intact, and whether it
// would run code in programs that read it.
//
// Verify() reads every byte and compares it with the checksums of the format,
// and what must agree with what. Scan() judges the file for other programs.
// Both report what they find, and fail only if the file cannot be read.

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

#include "haulway/fields.h"
#include "haulway/index.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

struct RemoteOptions;  // open.h

inline constexpr FieldTable kFindingFields{

    Field("code", &Finding::code, "code of the fault, as of an error"),
    Field("message", &Finding::message, "the fault, and its place"),
    Field("byte", &Finding::byte, "offset of the fault, if known"),
};
constexpr const auto& FieldsOf(const Finding&) { return kFindingFields; }

// Bytes of the file that were not checked, and the reason.
struct Unchecked {
  std::string what;
  uint64_t offset;
  uint64_t bytes;
  bool needs_key = false;  // Could be checked with the file's key.
};

inline constexpr FieldTable kUncheckedFields{

    Field("what", &Unchecked::what, "the bytes, and why they were not checked"),
    Field("offset", &Unchecked::offset, "offset in the file"),
    Field("bytes", &Unchecked::bytes, "number of bytes"),
    Field("needs_key", &Unchecked::needs_key,
          "true if the file's key would allow the check"),
};
constexpr const auto& FieldsOf(const Unchecked&) { return kUncheckedFields; }

struct VerifyReport {
  std::string file;
  Format format = Format::kTorch;
  bool ok = true;
  uint64_t checked_bytes = 0;  // Their checksum was computed and compared.
  uint64_t file_bytes = 0;
  // For encrypted files, whether the origin of their metadata is proven:
  // "checked", "not checked" (without the key) or "none"; otherwise empty.
  std::string authentication;
  std::vector<Unchecked> unchecked;
  std::vector<Finding> findings;
  // A wrong total_size of an index, an object that needs code: no fault of the
  // bytes.
  std::vector<std::string> notes;
  // Whether the tensors were compared with a manifest, which the caller does.
  bool by_manifest = false;

  // Returns what the bytes were checked against: "manifest", "checksums" or,
  // if the file has no checksum, only the "structure".
  std::string_view checked() const {
    if (by_manifest) return "manifest";
    return checked_bytes == 0 ? "structure" : "checksums";
  }
};

// Returns a sentence that says which code the object of a checkpoint would
// need, and how to learn more; nullopt if it needs none.
HAULWAY_EXPORT std::optional<std::string> NoteOfCode(
    const CheckpointIndex& index);

inline constexpr FieldTable kVerifyReportFields{

    Field("file", &VerifyReport::file, "the file", Spelling::kPath),
    Field("format", &VerifyReport::format, "the format"),
    Field("ok", &VerifyReport::ok, "true if nothing is wrong"),
    Field("checked", &VerifyReport::checked,
          "what the bytes were checked against: \"manifest\", \"checksums\" or "
          "only the \"structure\""),
    Field("checked_bytes", &VerifyReport::checked_bytes,
          "bytes whose checksum was computed and compared"),
    Field("file_bytes", &VerifyReport::file_bytes, "size of the file"),
    Field("authentication", &VerifyReport::authentication,
          "for encrypted files, whether the origin of their metadata is "
          "proven: \"checked\", \"not checked\" (without the key) or \"none\"",
          Spelling::kTextOrNone),
    Field("unchecked", &VerifyReport::unchecked, "bytes that were not checked"),
    Field("findings", &VerifyReport::findings, "faults"),
    Field("notes", &VerifyReport::notes,
          "faults that change nothing for readers"),
};
constexpr const auto& FieldsOf(const VerifyReport&) {
  return kVerifyReportFields;
}

struct VerifyOptions {
  OpenOptions open;
  int threads = 0;  // 0: as many as this process may use.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

// Checks structure, every checksum and every cross-check. A damaged file gives
// a report with findings. Fails only if the source cannot be read, and with
// kCancelled if `cancel` is set.
HAULWAY_EXPORT Result<VerifyReport> Verify(
    std::shared_ptr<const ByteSource> source,
    const VerifyOptions& options = {});

// Verify() for a file found in a folder with ListFiles(). Returns nullopt if
// the file is not a checkpoint and does not have a checkpoint's suffix, or if
// it is damaged and has the suffix of another program. For an index of shards,
// checks only that the shards agree with the index, because the shards lie in
// the folder as well.
HAULWAY_EXPORT Result<std::optional<VerifyReport>> VerifyFound(
    std::shared_ptr<const ByteSource> source,
    const VerifyOptions& options = {});

// A scan judges a file for all common readers: pickle, torch.load() with
// weights_only=False, torch.jit.load(), torch.export.load(), torch.package,
// joblib, numpy with allow_pickle=True, programs that open a zip or a tar with
// Python's zipfile and tarfile, and programs that run files because of their
// content or name. A scan runs nothing and imports nothing.

// In order of severity.
enum class Verdict : uint8_t {
  kSafe,     // Proven: no reader runs or imports anything not allowed.
  kUnknown,  // There is no such proof.
  kUnsafe,   // Some reader would, or two readers disagree about the content.
};

// "SAFE", "UNKNOWN", "UNSAFE".
HAULWAY_EXPORT std::string_view Name(Verdict verdict);

struct ScannedGlobal {
  std::string module;   // As Python 3 would import it.
  std::string name;     // The attribute, with dots if the pickle has them.
  std::string written;  // "module.name" as spelled in the file.
  bool allowed;
  uint64_t byte;  // Offset in the pickle of the opcode that names it.
};

inline constexpr FieldTable kScannedGlobalFields{

    Field("module", &ScannedGlobal::module,
          "module, as Python 3 would import it"),
    Field("name", &ScannedGlobal::name, "attribute of the module"),
    Field("written", &ScannedGlobal::written,
          "module and name as spelled in the file"),
    Field("allowed", &ScannedGlobal::allowed,
          "true if a pickle may contain the name"),
    Field("byte", &ScannedGlobal::byte,
          "offset in the pickle of the opcode that names it"),
};
constexpr const auto& FieldsOf(const ScannedGlobal&) {
  return kScannedGlobalFields;
}

// How often each opcode occurs, by opcode; only opcodes that occur.
using OpcodeCounts = std::vector<std::pair<uint8_t, uint64_t>>;

struct ScannedPickle {
  std::string member;   // "archive/data.pkl"; "" if the file is the pickle.
  uint64_t offset = 0;  // In the file, or in the inflated member.
  uint64_t bytes = 0;
  int protocol = 0;
  std::vector<ScannedGlobal> globals;  // Every mention, in order.
  OpcodeCounts opcodes;
};

inline constexpr FieldTable kScannedPickleFields{

    Field("member", &ScannedPickle::member,
          "name of the archive's member; empty if the file is the pickle"),
    Field("offset", &ScannedPickle::offset,
          "offset in the file, or in the inflated member"),
    Field("bytes", &ScannedPickle::bytes, "size of the pickle"),
    Field("protocol", &ScannedPickle::protocol, "pickle protocol"),
    Field("globals", &ScannedPickle::globals,
          "every mention of a global, in order"),
    Field("opcodes", &ScannedPickle::opcodes,
          "how often each opcode occurs, by name"),
};
constexpr const auto& FieldsOf(const ScannedPickle&) {
  return kScannedPickleFields;
}

struct ScanReport {
  std::string file;
  Verdict verdict = Verdict::kSafe;
  std::string reason;            // The reason for the verdict, one sentence.
  std::optional<uint64_t> byte;  // Offset of the cause, if known.
  bool readable = true;  // False if it could not be read; kUnknown then.
  std::vector<ScannedPickle> pickles;
  // Everything that prevents the verdict SAFE.
  std::vector<Finding> findings;

  bool safe() const { return verdict == Verdict::kSafe; }
};

inline constexpr FieldTable kScanReportFields{

    Field("file", &ScanReport::file, "the file", Spelling::kPath),
    Field("verdict", &ScanReport::verdict,
          "\"SAFE\", \"UNKNOWN\" or \"UNSAFE\""),
    Field("safe", &ScanReport::safe, "true if the verdict is SAFE"),
    Field("reason", &ScanReport::reason,
          "the reason for the verdict, one sentence"),
    Field("byte", &ScanReport::byte, "offset of the cause, if known"),
    Field("readable", &ScanReport::readable,
          "false if the file could not be read"),
    Field("pickles", &ScanReport::pickles, "the pickles in the file"),
    Field("findings", &ScanReport::findings,
          "everything that prevents the verdict SAFE"),
};
constexpr const auto& FieldsOf(const ScanReport&) { return kScanReportFields; }

// Scans a source. Uses the options `limits`, `strictness` and
// `allowed_globals`, and the name of `source` unless it is "memory". Fails only
// if the source does.
HAULWAY_EXPORT Result<ScanReport> Scan(std::shared_ptr<const ByteSource> source,
                                       const OpenOptions& options = {});

// Scans what a path or URL names: the file, or every file in a folder and its
// subfolders, in the order of names. In a folder, anything that is not a
// regular file or a link to one, or that cannot be read, is reported as
// kUnknown with the reason; the scan never waits for it. Links to folders are
// not followed, and folders called .git are passed over. An index of shards
// (`*.index.json`) includes its shards. Fails if there is no such file or
// folder, with kNotFound if the folder holds no file, and with any error that
// `each` returns, which ends the scan.
HAULWAY_EXPORT Status
ScanPath(const std::string& path, const OpenOptions& options,
         const std::function<Status(ScanReport report)>& each);
// The same for a URL that is reached as `remote` says. In a folder, scans only
// files for which `wanted` returns true; it gets the path within the folder.
HAULWAY_EXPORT Status
ScanPath(const std::string& path, const OpenOptions& options,
         const std::function<Status(ScanReport report)>& each,
         const RemoteOptions& remote,
         const std::function<bool(std::string_view name)>& wanted = nullptr);

}  // namespace haulway
