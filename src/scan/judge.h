// Judges bytes by their content, independent of the container.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"
#include "scan/file_names.h"
#include "scan/inflate.h"
#include "scan/pickle_names.h"
#include "scan/pickle_tracer.h"
#include "zip/zip_reader.h"

namespace haulway::scan {

// Facts about bytes that are known before they are read.
struct Place {
  enum class Role : uint8_t {
    kFile,    // Any reader may be given the bytes.
    kPickle,  // A reader takes them for a pickle, so damage is reported.
    kData,    // Normally the numbers of a tensor.
    kScript,  // TorchScript code.
  };
  // The path within archives, e.g. "a/b" for member "b" of archive "a"; "" for
  // the file itself.
  std::string member;
  // The name by which programs find the bytes: that of the file or of the
  // member; "" if there is none.
  std::string name;
  // In the file, or in the inflated data that holds the bytes.
  uint64_t offset = 0;
  Role role = Role::kFile;
  int depth = 0;
  bool whole = true;  // False if only the first part of the bytes is here.
};

// Returns the name of `name` within `place`.
std::string Joined(const Place& place, std::string_view name);

// A Judge fills a report.
class Judge {
 public:
  // Requires: `options` and `report` outlive this.
  Judge(const OpenOptions& options, ScanReport* report);

  // Adds all findings about `source`. Fails only if the source cannot be read.
  Status Content(const std::shared_ptr<const ByteSource>& source,
                 const Place& place);

 private:
  // Reports what follows from the name alone.
  Status NameSays(const ByteSource& source, const Place& place);
  // Reports why bytes in no known checkpoint format are not known to be data,
  // unless they are proven to be data.
  Status Foreign(const ByteSource& source, const Place& place);
  // Judges the bytes as the format that `head` indicates. Returns false if
  // `head` indicates none.
  Result<bool> Container(const std::shared_ptr<const ByteSource>& source,
                         std::span<const std::byte> head, const Place& place);
  Status Zip(const std::shared_ptr<const ByteSource>& source,
             const Place& place);
  Result<bool> ZipRow(const std::shared_ptr<const ByteSource>& source,
                      const Place& place);
  Status ZipRecords(const zip::ZipReader& archive, const Place& place);
  Result<std::shared_ptr<const ByteSource>> HoldRecords(
      const zip::ZipReader& archive, size_t* held) const;
  Status ZipRecord(const std::shared_ptr<const ByteSource>& source,
                   const zip::Entry& entry, Place place);
  // Returns the bytes of a record: all of a stored one, the first `longest`
  // bytes of a deflated one. Returns null, after reporting the reason, if they
  // cannot be read.
  Result<std::shared_ptr<const ByteSource>> RecordBytes(
      const std::shared_ptr<const ByteSource>& source, const zip::Entry& entry,
      uint64_t longest, Place* place);
  Result<bool> IsCutPickle(const ByteSource& source) const;
  Status ScriptCode(const ByteSource& source, const Place& place);
  Status ProgramText(const ByteSource& source, const Place& place);
  Status CheckCrc(const ByteSource& source, const zip::Entry& entry,
                  const Place& place);
  Status Tar(const std::shared_ptr<const ByteSource>& source,
             const Place& place);
  Status TorchTar(const std::shared_ptr<const ByteSource>& source,
                  const Place& place);
  Status Legacy(const std::shared_ptr<const ByteSource>& source,
                const Place& place);
  Status Arrays(const ByteSource& source, uint64_t begin, const Place& place);
  Status Compressed(const std::shared_ptr<const ByteSource>& source,
                    Deflated form, const Place& place);
  // Judges consecutive pickles from `begin` on, as long as they are complete.
  // `other`: the bytes are known to be in another format. Returns true if the
  // bytes are settled: they are pickles to the end, or not a complete pickle
  // and the reason is reported.
  Result<bool> Pickles(const ByteSource& source, uint64_t begin,
                       const Place& place, bool other);
  Status Remembered(PickleRow* row, const TraceOptions& options,
                    const Trace& trace, uint64_t at, const Place& place);
  Status Rest(const ByteSource& source, uint64_t at, const Place& place);
  // Adds a pickle and its findings to the report. `begin` is its offset in
  // `source`, `name` its name.
  void Add(Trace trace, uint64_t begin, std::string name, const Place& place);

  void Say(Verdict verdict, Code code, std::string message,
           std::optional<uint64_t> byte, std::string_view member);
  void Unknown(std::string message, const Place& place,
               Code code = Code::kUnsupported);
  void Unsafe(std::string message, const Place& place);
  // Reports damage in the bytes. Returns the status itself if the source
  // failed.
  Status Note(const Status& status, const Place& place);

  const OpenOptions& options_;
  ScanReport* const report_;
  PickleNames names_;
  bool script_ = false;    // True within a TorchScript archive.
  bool is_torch_ = false;  // True within an archive that torch wrote.
  bool has_keys_ = false;  // True within an archive of arrays.
  uint64_t inflated_ = 0;  // Total bytes inflated.
  size_t listed_ = 0;      // Number of names in the report.
};

}  // namespace haulway::scan
