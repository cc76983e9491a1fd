// Design: any bytes are first traced as a pickle from byte 0, because a reader
// that takes them for a pickle executes opcodes until it fails. Then the
// signatures tell which other readers would open the bytes, and the contents
// that these readers find are judged the same way. A file that two readers
// interpret differently is UNSAFE even if neither finds anything bad.
//
// judge_foreign.cc judges bytes that no reader here knows: they are SAFE only
// if proven to be data. File names count there, and for programs that choose
// files by name.
//
// Alternative not taken: go by the first signature that matches. That is how
// files bypass scanners. The limits bound only what is listed, not what is
// checked: beyond a limit the verdict is UNKNOWN, with the reason.

#include "scan/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/is_of_source.h"
#include "base/text.h"
#include "base/zstd.h"
#include "checkpoint/format_registry.h"
#include "haulway/format.h"
#include "haulway/tree.h"
#include "npy/npy_header.h"
#include "scan/byte_window.h"
#include "scan/file_names.h"
#include "scan/tar_walk.h"
#include "scan/template_proof.h"
#include "scan/zip_find.h"
#include "torch/torch_legacy.h"
#include "torch/torch_tar.h"

namespace haulway::scan {

namespace {

using Role = Place::Role;

// Maximum depth of nested archives.
constexpr int kDeepest = 8;
// Limits on what the report lists per file. Items that are not listed still
// count.
constexpr size_t kMostFindings = 1'000;
constexpr size_t kMostPickles = 20'000;
constexpr size_t kMostListed = 200'000;
// Limit on consecutive pickles. A file with more is not traced to its end.
constexpr int kMostInARow = 1'000'000;

constexpr std::string_view kZipRecord = "PK\x03\x04";
constexpr std::string_view kZipEnd = "PK\x05\x06";
constexpr std::string_view kGzip = "\x1F\x8B";
// MAGIC_PREFIX in NumPy's format.py.
constexpr std::string_view kArray = "\x93NUMPY";
constexpr std::string_view kHdf5 = "\x89HDF\r\n\x1A\n";

struct Signature {
  std::string_view bytes;
  std::string_view what;
};
constexpr Signature kNotLookedInto[] = {
    {"BZh", "bzip2"},
    {std::string_view("\xFD"
                      "7zXZ\0",
                      6),
     "xz"},
    // joblib checks only two bytes.
    {std::string_view("\x5D\0", 2), "lzma"},
    {"\x04\x22\x4D\x18", "lz4"},
    {"7z\xBC\xAF\x27\x1C", "a 7z archive"},
    {"Rar!\x1A\x07", "a rar archive"},
    {kHdf5, "HDF5"},
    {"PYTORCH1", "the preview format of PyTorch 1.0"},
    {std::string_view("\xFF\x06\0\0sNaPpY", 10), "snappy"},
    {"\x1F\x9D", "compress"},
    {"\x7F"
     "ELF",
     "a program"},
    {"MZ", "a program"},
    {"jartsr='", "a program"},
    {"\xCF\xFA\xED\xFE", "a program"},
    {"\xCE\xFA\xED\xFE", "a program"},
    {"\xFE\xED\xFA\xCF", "a program"},
    {"\xFE\xED\xFA\xCE", "a program"},
    {"\xCA\xFE\xBA\xBE", "a program"},
    {"!<arch>\n", "a library"},
    {"BC\xC0\xDE", "code of LLVM"},
    {std::string_view("\0asm", 4), "WebAssembly"},
    {"dex\n", "a program"},
    {"#!", "a script"},
    {"%PDF", "PDF"},
};

// Returns whether `head` begins with a zlib header (RFC 1950, section 2.2) for
// a 32 KiB window.
bool IsZlib(std::string_view head) {
  return head.size() >= 2 && head[0] == '\x78' &&
         ((head[0] << 8 | static_cast<unsigned char>(head[1])) % 31) == 0;
}

// Returns where the zlib stream begins in a file that joblib 0.9 or older
// compressed; every joblib reads these. Before the stream are "ZF", a number of
// 19 characters, and a space if Python 2 wrote it.
std::optional<size_t> OldJoblib(std::string_view head) {
  constexpr size_t kBegin = 21;
  if (!head.starts_with("ZF") || head.size() <= kBegin + 2) return {};
  const size_t begin = kBegin + (head[kBegin] == ' ' ? 1 : 0);
  if (!IsZlib(head.substr(begin))) return {};
  return begin;
}

// Returns whether `head` is an LZMA header that lzma.open() accepts
// (lzma-file-format.txt, 1.1): the context bits, a dictionary size that is a
// power of two or one and a half times one, the uncompressed length unless
// unknown, and the zero byte that begins the coded data.
bool IsLzma(std::string_view head) {
  constexpr size_t kHeader = 13;
  if (head.size() <= kHeader || head[kHeader] != '\0') return false;
  const auto number = [&](size_t at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(head[at + i]);
    }
    return value;
  };
  const uint64_t bits = number(0, 1);
  if (bits >= 225 || bits % 9 + bits / 9 % 5 > 4) return false;
  const uint64_t dictionary = number(1, 4), length = number(5, 8);
  const uint64_t least = dictionary & (~dictionary + 1);
  const bool plain = dictionary == UINT32_MAX || dictionary == least ||
                     dictionary == 3 * least;
  return plain && length != 0 &&
         (length == UINT64_MAX || length < uint64_t{1} << 38);
}

// Returns the format whose signature `head` begins with; nullopt if there is
// none. Haulway does not read these formats.
std::optional<std::string_view> Signed(std::string_view head) {
  for (const Signature& row : kNotLookedInto) {
    if (head.starts_with(row.bytes)) return row.what;
  }
  if (IsLzma(head)) return "lzma";
  return std::nullopt;
}

// Returns the message for a file in a format that Haulway does not read.
std::string NotLookedInto(std::string_view what) {
  const bool is_hdf5 = what == "HDF5";
  return fmt::format("{}, which is not looked into{}", what,
                     is_hdf5 ? "; modelscan looks into models of Keras" : "");
}

// Returns whether a file that begins like a tar also matches another format.
bool IsOfAnotherFormat(std::span<const std::byte> head) {
  return std::ranges::any_of(Formats(), [&](const FormatEntry& format) {
    return format.id != Format::kTorchTar && format.detect != nullptr &&
           format.detect(head);
  });
}

bool IsName(const NamedGlobal& global) {
  return !global.name.starts_with("extension ");
}

// Returns whether `trace` did something that numbers that happen to be opcodes
// are unlikely to do: it names a global that is not allowed, or uses an allowed
// one in a way that is not.
bool DoesWhatIsNotAllowed(const Trace& trace) {
  return std::ranges::any_of(trace.globals, [&](const NamedGlobal& global) {
    return (IsName(global) || trace.end == TraceEnd::kStop) &&
           (!global.allowed || !trace.faults.empty());
  });
}

// Returns why a template in the metadata of a checkpoint is not known to be
// data; nullopt if there is none, or each one is proven only to assemble text.
std::optional<std::string> DoubtOfMetadata(const CheckpointIndex& index) {
  if (!index.metadata.has_value()) return std::nullopt;
  for (const Fact& fact : *index.metadata) {
    if (!IsNameOfTemplate(fact.name)) continue;
    std::span<const std::string> texts;
    if (const auto* text = std::get_if<std::string>(&fact.value)) {
      texts = {text, 1};
    } else if (const auto* array = std::get_if<FactArray>(&fact.value)) {
      const auto* list = std::get_if<std::vector<std::string>>(array);
      if (list != nullptr) texts = *list;
    }
    for (const std::string& text : texts) {
      if (const auto doubt = DoubtOfTemplate(text)) {
        return fmt::format("{}; in metadata {}", doubt->why, Quote(fact.name));
      }
    }
  }
  return std::nullopt;
}

// Returns whether these bytes are likely to be meant as a pickle.
bool LooksLikePickle(std::span<const std::byte> head, const Trace& trace) {
  const bool protocol =
      head.size() >= 2 && head[0] == std::byte{0x80} && head[1] <= std::byte{5};
  return protocol || trace.global_count > 0;
}

}  // namespace

std::string Joined(const Place& place, std::string_view name) {
  return place.member.empty() ? std::string(name)
                              : fmt::format("{}/{}", place.member, name);
}

Judge::Judge(const OpenOptions& options, ScanReport* report)
    : options_(options), report_(report), names_(options.allowed_globals) {}

void Judge::Say(Verdict verdict, Code code, std::string message,
                std::optional<uint64_t> byte, std::string_view member) {
  if (!member.empty()) message += fmt::format("; in {}", Quote(member));
  if (verdict > report_->verdict) {
    report_->verdict = verdict;
    report_->reason = message;
    report_->byte = byte;
  }
  if (report_->findings.size() < kMostFindings) {
    report_->findings.push_back({code, std::move(message), byte});
  }
}

void Judge::Unknown(std::string message, const Place& place, Code code) {
  Say(Verdict::kUnknown, code, std::move(message), place.offset, place.member);
}

void Judge::Unsafe(std::string message, const Place& place) {
  Say(Verdict::kUnsafe, Code::kUnsafe, std::move(message), place.offset,
      place.member);
}

Status Judge::Note(const Status& status, const Place& place) {
  if (status.ok() || IsOfSource(status)) return status;
  Say(status.code() == Code::kUnsafe ? Verdict::kUnsafe : Verdict::kUnknown,
      status.code(), std::string(status.message()), status.byte(),
      place.member);
  return Status();
}

void Judge::Add(Trace trace, uint64_t begin, std::string name,
                const Place& place) {
  ScannedPickle pickle;
  pickle.member = std::move(name);
  pickle.offset = place.offset + begin;
  pickle.bytes = trace.length;
  pickle.protocol = trace.protocol;
  for (const Finding& fault : trace.faults) {
    Say(Verdict::kUnsafe, fault.code, fault.message, fault.byte, pickle.member);
  }
  if (trace.end == TraceEnd::kStop && !trace.doubt.empty()) {
    Unknown(std::move(trace.doubt), place);
  }
  bool classes = false;
  for (NamedGlobal& global : trace.globals) {
    classes = classes || global.module.starts_with("__torch__.torch.classes");
    if (listed_ >= kMostListed) break;
    ++listed_;
    pickle.globals.push_back({std::move(global.module), std::move(global.name),
                              std::move(global.written), global.allowed,
                              global.byte});
  }
  if (classes) {
    Unknown("classes of C++ read their own state", place);
  }
  for (size_t i = 0; i < trace.opcodes.size(); ++i) {
    if (trace.opcodes[i] == 0) continue;
    pickle.opcodes.emplace_back(static_cast<uint8_t>(i), trace.opcodes[i]);
  }
  if (report_->pickles.size() < kMostPickles || !trace.faults.empty()) {
    report_->pickles.push_back(std::move(pickle));
  }
}

Result<bool> Judge::Pickles(const ByteSource& source, uint64_t begin,
                            const Place& place, bool other) {
  PickleNames names = names_;
  if (script_) names.AllowTorchScript();
  TraceOptions options;
  options.names = &names;
  options.arrays = true;
  // No reader resolves persistent ids in the first pickle of a file.
  options.persistent_ids = place.role == Role::kPickle;
  uint64_t at = begin;
  PickleRow row(source, begin);
  for (int number = 0; at < source.size(); ++number) {
    const bool shares_memo = row.remembers();
    HAULWAY_ASSIGN(Trace trace,
                   shares_memo ? TracePickle(source, at, source.size(), options)
                               : row.Next(options));
    if (shares_memo) {
      HAULWAY_TRY(Remembered(&row, options, trace, at, place));
    }
    std::array<std::byte, 2> block{};
    const auto head =
        std::span(block).first(std::min<uint64_t>(2, source.size() - at));
    HAULWAY_TRY(source.ReadAt(at, head));
    const bool first = number == 0;
    const bool whole = trace.end == TraceEnd::kStop;
    const bool cut = trace.end == TraceEnd::kCut;
    const bool more = cut && !place.whole;
    // Numbers that happen to be opcodes name no globals.
    const bool is_data = other || place.role == Role::kData;
    const bool is_doubtful =
        trace.global_count > 0 &&
        (trace.end == TraceEnd::kUnclear || !trace.doubt.empty());
    if (is_data && !more && !is_doubtful && !DoesWhatIsNotAllowed(trace) &&
        trace.prose.empty()) {
      if (!whole) return false;
      // A program that reads on comes to the next pickle.
      at += trace.length;
      options.persistent_ids = true;
      if (number < kMostInARow) continue;
      Unknown("more pickles in a row than are followed", place, Code::kLimit);
      return true;
    }
    // TorchScript code begins with "class Linear(Module):".
    if (!trace.prose.empty() && place.role != Role::kScript) {
      Unknown(fmt::format("unpicklers take these bytes for a pickle that "
                          "imports {}, if there is such a file",
                          Quote(trace.prose)),
              place);
    }
    if (!first && !whole && !more && trace.faults.empty()) {
      if (!is_data) HAULWAY_TRY(Rest(source, at, place));
      return true;
    }
    const bool meant =
        first && (place.role == Role::kPickle || LooksLikePickle(head, trace));
    if (!whole && trace.faults.empty() && !meant && !more) {
      // Not a pickle: every reader fails before it runs anything.
      if (trace.end != TraceEnd::kUnclear) return false;
      Unknown(std::move(trace.why), place, Code::kLimit);
      return true;
    }
    const uint64_t next = at + trace.length;
    if (!whole) {
      Say(Verdict::kUnknown,
          trace.end == TraceEnd::kUnclear || more ? Code::kLimit
          : cut                                   ? Code::kTruncated
                                                  : Code::kCorrupt,
          more ? std::string("the pickle inflates to more than is looked into")
               : fmt::format("the pickle is damaged: {}", trace.why),
          at - begin + trace.length, place.member);
    }
    if (other && !trace.faults.empty()) {
      Unsafe("these bytes are a pickle as well as something else", place);
    }
    Add(std::move(trace), at,
        first ? place.member : Joined(place, fmt::format("pickle {}", number)),
        place);
    if (!whole) return true;
    if (number >= kMostInARow) {
      Unknown("more pickles in a row than are followed", place, Code::kLimit);
      return true;
    }
    at = next;
    // As torch.load() does for the fourth pickle.
    options.persistent_ids = true;
  }
  return source.size() > begin;
}

// Adds the findings that an Unpickler makes at `at` only if it kept the memo of
// the pickles before it; `trace` is the trace without that memo.
Status Judge::Remembered(PickleRow* row, const TraceOptions& options,
                         const Trace& trace, uint64_t at, const Place& place) {
  HAULWAY_ASSIGN(const Trace shared, row->Next(options));
  if (!shared.faults.empty() && trace.faults.empty()) {
    const Finding& fault = shared.faults.front();
    Say(Verdict::kUnsafe, fault.code,
        fmt::format("with the memo of the pickles before it, {}",
                    fault.message),
        fault.byte, place.member);
  } else if (shared.length != trace.length || shared.end != trace.end ||
             shared.doubt != trace.doubt) {
    Unknown(fmt::format("the pickle at byte {} depends on the memo of those "
                        "before it",
                        at),
            place);
  }
  return Status();
}

// Judges the bytes after the last of several consecutive pickles, for readers
// that read on.
Status Judge::Rest(const ByteSource& source, uint64_t at, const Place& place) {
  std::array<std::byte, kArray.size()> block;
  const auto head =
      std::span(block).first(std::min(kArray.size(), source.size() - at));
  HAULWAY_TRY(source.ReadAt(at, head));
  Place inside = place;
  ++inside.depth;
  if (TextOf(head) == kArray) return Arrays(source, at, inside);
  Unknown(fmt::format("{} bytes that are none follow the last pickle",
                      source.size() - at),
          place);
  return Status();
}

Status Judge::Content(const std::shared_ptr<const ByteSource>& source,
                      const Place& place) {
  if (place.depth > kDeepest) {
    Unknown("archives are nested too deeply to be looked into", place,
            Code::kLimit);
    return Status();
  }
  std::array<std::byte, kHeadBytes> block;
  const auto head =
      std::span(block).first(std::min<uint64_t>(source->size(), kHeadBytes));
  HAULWAY_TRY(source->ReadAt(0, head));
  const bool zip_head =
      TextOf(head).starts_with(kZipRecord) || TextOf(head).starts_with(kZipEnd);
  const bool tar_head = IsTarHeader(head);
  if (tar_head && IsOfAnotherFormat(head)) {
    Unsafe("a tar to some readers is something else to others", place);
  }
  if (const auto what = Signed(TextOf(head)); tar_head && what.has_value()) {
    Unknown(fmt::format("a tar to some readers, to others {}", *what), place);
  }
  HAULWAY_TRY(NameSays(*source, place));
  bool is_known = true;
  if (torch::IsLegacy(head)) {
    HAULWAY_TRY(Legacy(source, place));
  } else {
    HAULWAY_ASSIGN(const bool known, Container(source, head, place));
    HAULWAY_ASSIGN(const bool pickles, Pickles(*source, 0, place, known));
    is_known = known || pickles;
    if (!is_known && place.role != Role::kData) {
      HAULWAY_TRY(Foreign(*source, place));
    }
  }
  if (is_known && source->size() > 0 && IsNameOfProgramText(place.name)) {
    Unknown(
        "programs that go by the name read it as a text, and it is something "
        "else",
        place);
  }
  // The readers of zip and tar check this themselves.
  if (zip_head || tar_head) return Status();
  HAULWAY_ASSIGN(const auto zips, FindZips(*source));
  for (const uint64_t zip : zips) {
    Say(Verdict::kUnsafe, Code::kUnsafe,
        fmt::format("readers of zip find an archive at byte {} of what is "
                    "something else to others",
                    zip),
        zip, place.member);
  }
  return Status();
}

Result<bool> Judge::Container(const std::shared_ptr<const ByteSource>& source,
                              std::span<const std::byte> head,
                              const Place& place) {
  const std::string_view text = TextOf(head);
  if (text.starts_with(kZipRecord) || text.starts_with(kZipEnd)) {
    HAULWAY_TRY(Zip(source, place));
    return true;
  }
  if (IsTarHeader(head)) {
    HAULWAY_TRY(Tar(source, place));
    return true;
  }
  if (text.starts_with(kArray)) {
    HAULWAY_TRY(Arrays(*source, 0, place));
    return true;
  }
  if (text.starts_with(kGzip)) {
    HAULWAY_TRY(Compressed(source, Deflated::kGzip, place));
    return true;
  }
  if (BeginsAsZstdFrame(head)) {
    HAULWAY_TRY(Compressed(source, Deflated::kZstd, place));
    return true;
  }
  if (IsZlib(text)) {
    HAULWAY_TRY(Compressed(source, Deflated::kZlib, place));
    return true;
  }
  if (place.role == Role::kData) return false;
  if (const auto begin = OldJoblib(text)) {
    HAULWAY_ASSIGN(const auto deflated,
                   MakeSliceSource(source, *begin, source->size() - *begin));
    HAULWAY_TRY(Compressed(deflated, Deflated::kZlib, place));
    return true;
  }
  const auto format = DetectFormat(*source, Strictness::kLenient);
  if (!format.ok() && IsOfSource(format.status())) return format.status();
  if (format.ok() && (*format)->can.only_data) {
    const auto opened = (*format)->open(source, options_);
    if (opened.ok()) {
      if (auto doubt = DoubtOfMetadata((*opened)->index())) {
        Unknown(std::move(*doubt), place);
      }
      return true;
    }
    if (place.whole && !Signed(text).has_value()) {
      HAULWAY_TRY(Note(opened.status(), place));
      return true;
    }
  }
  if (const auto what = Signed(text)) {
    Unknown(NotLookedInto(*what), place);
    return true;
  }
  // HDF5 may begin at offset 512 and at any larger power of two.
  for (uint64_t at = 512; at + kHdf5.size() <= source->size(); at *= 2) {
    std::array<std::byte, kHdf5.size()> found;
    HAULWAY_TRY(source->ReadAt(at, found));
    if (TextOf(found) != kHdf5) continue;
    Unknown(NotLookedInto("HDF5"), place);
    return true;
  }
  return false;
}

// Judges the pickles of torch.save() before 1.6 and the storages after them.
// Another such group may follow, for programs that call torch.load() again.
Status Judge::Legacy(const std::shared_ptr<const ByteSource>& source,
                     const Place& place) {
  constexpr std::array<std::string_view, 5> kNames = {
      "magic", "protocol version", "sys_info", "object", "keys"};
  TraceOptions options;
  options.names = &names_;
  options.persistent_ids = true;
  uint64_t at = 0;
  for (int number = 0; at < source->size(); ++number) {
    const uint64_t start = at;
    for (const std::string_view part : kNames) {
      HAULWAY_ASSIGN(Trace trace,
                     TracePickle(*source, at, source->size(), options));
      const uint64_t begin = at;
      const bool whole = trace.end == TraceEnd::kStop;
      at += trace.length;
      const std::string name =
          Joined(place, number == 0 ? std::string(part)
                                    : fmt::format("{} {}", part, number));
      if (!whole) {
        Say(Verdict::kUnknown,
            trace.end == TraceEnd::kCut ? Code::kTruncated : Code::kCorrupt,
            fmt::format("the pickle is damaged: {}", trace.why), begin, name);
      }
      Add(std::move(trace), begin, name, place);
      if (!whole) return Status();
    }
    const auto end = torch::EndOfLegacy(source, start, options_);
    if (!end.ok()) return Note(end.status(), place);
    at = *end;
    if (number >= kMostInARow) {
      Unknown("more objects in a row than are followed", place, Code::kLimit);
      return Status();
    }
    // Anything may follow. torch.load() reads it as a pickle, but only if the
    // program calls it again.
    if (at < source->size()) {
      std::array<std::byte, kHeadBytes> block;
      const auto head = std::span(block).first(
          std::min<uint64_t>(source->size() - at, kHeadBytes));
      HAULWAY_TRY(source->ReadAt(at, head));
      if (!torch::IsLegacy(head)) {
        HAULWAY_ASSIGN(const bool pickles,
                       Pickles(*source, at, place, /*other=*/false));
        if (!pickles) {
          Say(Verdict::kUnknown, Code::kUnsupported,
              "bytes behind the last object are no pickle", at, place.member);
        }
        return Status();
      }
    }
  }
  return Status();
}

// Judges consecutive arrays from `begin` on, as numpy.save() appends them to an
// open file. After the header of an array of objects comes a pickle (NumPy's
// format.py).
Status Judge::Arrays(const ByteSource& source, uint64_t begin,
                     const Place& place) {
  if (place.depth > kDeepest) {
    Unknown("arrays and pickles take turns too often to be looked into", place,
            Code::kLimit);
    return Status();
  }
  Place inside = place;
  inside.role = Role::kPickle;
  for (uint64_t at = begin; at < source.size();) {
    const uint64_t bytes = source.size() - at;
    std::array<std::byte, npy::kPrefixBytes> block;
    const auto start = std::span(block).first(std::min(bytes, block.size()));
    HAULWAY_TRY(source.ReadAt(at, start));
    // The bytes after the arrays are not an array.
    if (at > begin && !TextOf(start).starts_with(kArray)) {
      return Pickles(source, at, inside, /*other=*/false).status();
    }
    const auto prefix = npy::ParsePrefix(start, bytes, options_.limits);
    if (!prefix.ok()) return Note(prefix.status(), place);
    std::vector<std::byte> header(prefix->header_bytes);
    HAULWAY_TRY(source.ReadAt(at + prefix->prefix_bytes, header));
    TreeArena arena;
    const auto array = npy::ParseHeader(
        *prefix, header,
        place.whole ? bytes - prefix->data_offset() : uint64_t{INT64_MAX},
        Strictness::kLenient, options_.limits, &arena);
    at += prefix->data_offset();
    if (!array.ok()) HAULWAY_TRY(Note(array.status(), place));
    // The array holds objects, or may hold them.
    if (!array.ok() || !array->stored_bytes.has_value()) {
      return Pickles(source, at, inside, /*other=*/false).status();
    }
    if (*array->stored_bytes > source.size() - at) {
      if (place.whole) {
        Unknown("an array ends early", place, Code::kTruncated);
      }
      return Status();
    }
    at += *array->stored_bytes;
  }
  return Status();
}

Status Judge::Compressed(const std::shared_ptr<const ByteSource>& source,
                         Deflated form, const Place& place) {
  constexpr uint64_t kLeast = 256 * kKiB;
  uint64_t most = kLeast;
  if (source->size() < kGiB) {
    most = std::max(
        most,
        std::min(source->size() * options_.limits.max_metadata_inflate_ratio,
                 kGiB));
  }
  most = std::min(most, options_.limits.max_inflated_bytes);
  const uint64_t given = std::min(source->size(), kGiB);
  std::vector<std::byte> deflated(given);
  HAULWAY_TRY(source->ReadAt(0, deflated));
  HAULWAY_ASSIGN(Inflated inflated, Inflate(deflated, form, most));
  deflated = {};
  // Numbers that happen to begin with this signature fail to inflate soon.
  if (!inflated.whole && (place.role != Role::kData || !inflated.damaged)) {
    Unknown(inflated.damaged ? "compressed bytes are damaged"
                             : "it inflates to more than is looked into",
            place, inflated.damaged ? Code::kCorrupt : Code::kLimit);
  }
  auto owner =
      std::make_shared<std::vector<std::byte>>(std::move(inflated.bytes));
  Place inside = place;
  inside.offset = 0;
  ++inside.depth;
  inside.whole = inflated.whole;
  inside.name = WithoutCompression(place.name);
  return Content(MakeBufferSource(Buffer(owner, *owner, /*writable=*/false),
                                  std::string(source->name())),
                 inside);
}

Status Judge::Tar(const std::shared_ptr<const ByteSource>& source,
                  const Place& place) {
  std::vector<uint64_t> zips;  // Offsets of members that are zips.
  int parts = 0;               // Number of members that a torch checkpoint has.
  uint64_t count = 0;
  std::array<std::byte, kHeadBytes> block;
  HAULWAY_TRY(source->ReadAt(0, block));
  const bool of_torch = torch::IsTar(block);
  const auto each = [&](const TarMember& member) -> Status {
    if (++count > options_.limits.max_entries) {
      return Status(Code::kLimit, "too many members of a tar")
          .At(member.header);
    }
    Place inside = place;
    inside.member = Joined(place, member.name);
    inside.name = member.name;
    inside.offset = place.offset + member.offset;
    ++inside.depth;
    if (!member.odd.empty()) {
      Unsafe(fmt::format("{}, which readers take differently", member.odd),
             inside);
    }
    if (LeavesFolder(member.name) || LeavesFolder(member.link)) {
      Unsafe("it would be written outside of the folder it is unpacked into",
             inside);
    }
    if (member.type == '3' || member.type == '4' || member.type == '6') {
      Unsafe("it would be unpacked as a device", inside);
    }
    if (member.type >= '1' && member.type <= '6') return Status();
    const int parts_before = parts;
    if (member.name == "storages" || member.name == "pickle" ||
        member.name == "tensors" || member.name == "sys_info") {
      ++parts;
    }
    HAULWAY_ASSIGN(auto slice,
                   MakeSliceSource(source, member.offset, member.size));
    if (of_torch && parts > parts_before) {
      // TorchTar() follows what torch reads. Programs that are given the member
      // read on.
      inside.role = Role::kPickle;
      return Pickles(*slice, 0, inside, /*other=*/true).status();
    }
    ByteWindow window(*slice, slice->size());
    HAULWAY_ASSIGN(const auto head, window.Peek(0, 4));
    if (TextOf(head).starts_with(kZipRecord)) zips.push_back(member.offset);
    return Content(slice, inside);
  };
  HAULWAY_TRY(Note(WalkTar(*source, each), place));
  if (parts >= (of_torch ? 1 : 2)) HAULWAY_TRY(TorchTar(source, place));
  HAULWAY_ASSIGN(const auto found, FindZips(*source));
  for (const uint64_t zip : found) {
    if (std::ranges::find(zips, zip) != zips.end()) continue;
    Say(Verdict::kUnsafe, Code::kUnsafe,
        fmt::format("readers of zip find an archive at byte {} of a tar", zip),
        zip, place.member);
  }
  return Status();
}

// The positions of the pickles in such a file depend on the contents of other
// pickles.
Status Judge::TorchTar(const std::shared_ptr<const ByteSource>& source,
                       const Place& place) {
  std::vector<torch::TarPickle> pickles;
  const Status status = torch::FindTarPickles(source, options_, &pickles);
  TraceOptions options;
  options.names = &names_;
  options.persistent_ids = true;
  for (const torch::TarPickle& pickle : pickles) {
    HAULWAY_ASSIGN(Trace trace, TracePickle(*source, pickle.offset,
                                            source->size(), options));
    Add(std::move(trace), pickle.offset, Joined(place, pickle.name), place);
  }
  return Note(status, place);
}

}  // namespace haulway::scan
