// Judges bytes by their content, whatever they are in.

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

// What is known of bytes before they are looked at.
struct Place {
  enum class Role : uint8_t {
    kFile,    // Any reader may be given them.
    kPickle,  // A reader takes them for a pickle: a damaged one is noted.
    kData,    // Numbers of a tensor, as a rule.
    kScript,  // Code of TorchScript.
  };
  // The member of an archive, e.g. "a/b" in "x.zip" in the file; "" for the
  // file itself.
  std::string member;
  // What programs find the bytes by: the name of the file or of the member; ""
  // if they have none.
  std::string name;
  uint64_t offset = 0;  // In the file, or in what they were inflated from.
  Role role = Role::kFile;
  int depth = 0;      // Depth of nesting.
  bool whole = true;  // There is no more than these bytes.
};

// The name of what stands within `place`.
std::string Joined(const Place& place, std::string_view name);

// A Judge fills a report.
class Judge {
 public:
  // Requires: `options` and `report` outlive this.
  Judge(const OpenOptions& options, ScanReport* report);

  // Adds all that there is to say of `source`. Fails only if that cannot be
  // read.
  Status Content(const std::shared_ptr<const ByteSource>& source,
                 const Place& place);

 private:
  // Says what the name alone says.
  Status NameSays(const ByteSource& source, const Place& place);
  // Says why bytes that no reader of checkpoints knows are not known to be
  // data, unless they are proven to be.
  Status Foreign(const ByteSource& source, const Place& place);
  // Looks at what the first bytes say it is; false if they say nothing.
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
  // The bytes of a record, or the first `longest` of a deflated one; null, and
  // said, if they cannot be had.
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
  Status OtherFormat(const std::shared_ptr<const ByteSource>& source,
                     const Place& place);
  // Pickles one after another from `begin` on, as long as they are whole.
  // `other`: the bytes are known to be something else. True if there is no more
  // to say of the bytes: they are pickles to the last, or are no whole pickle
  // and it was said why.
  Result<bool> Pickles(const ByteSource& source, uint64_t begin,
                       const Place& place, bool other);
  Status Remembered(PickleRow* row, const TraceOptions& options,
                    const Trace& trace, uint64_t at, const Place& place);
  Status Rest(const ByteSource& source, uint64_t at, const Place& place);
  // Adds one to the report, and all that it says; `begin` and `name` are where
  // it stands in `source`, and what it is called.
  void Add(Trace trace, uint64_t begin, std::string name, const Place& place);

  void Say(Verdict verdict, Code code, std::string message,
           std::optional<uint64_t> byte, std::string_view member);
  void Unknown(std::string message, const Place& place,
               Code code = Code::kUnsupported);
  void Unsafe(std::string message, const Place& place);
  // What is wrong with bytes; or returns the status if their source failed.
  Status Note(const Status& status, const Place& place);

  const OpenOptions& options_;
  ScanReport* const report_;
  PickleNames names_;
  bool script_ = false;    // Within an archive of TorchScript.
  bool is_torch_ = false;  // Within an archive that torch wrote.
  uint64_t inflated_ = 0;  // Bytes in all.
  size_t listed_ = 0;      // Names in the report.
};

}  // namespace haulway::scan
