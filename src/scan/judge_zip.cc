// Judges the records of zip archives: from torch.save(), TorchScript,
// torch.export, torch.package, NumPy and others.
//
// Design: the names of the records show which readers would open the archive.
// Each record is judged by what these readers do with it: a pickle is traced,
// TorchScript and torch.export programs are checked for what they call, nested
// archives are opened, and other records are judged as files of their own. The
// inflated size is limited per record and in total; if a record is not inflated
// to its end, the report says so.
//
// Alternative not taken: judge by the record's name alone. torch ignores case
// in names, while NumPy treats names that differ in case as two. If readers
// disagree about a record, that is the finding.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/ascii.h"
#include "base/checked.h"
#include "base/digest.h"
#include "base/is_of_source.h"
#include "base/text.h"
#include "scan/byte_window.h"
#include "scan/held_ranges.h"
#include "scan/judge.h"
#include "scan/text_proof.h"
#include "scan/torchscript_text.h"
#include "scan/zip_find.h"

namespace haulway::scan {

namespace {

using Role = Place::Role;

// Bytes of a deflated tensor that are inflated at first, and the smallest limit
// on what a record may inflate to.
constexpr uint64_t kFirstLook = 256 * kKiB;
// Largest record without tensor data that is prefetched whole, and the limit on
// all bytes prefetched at a time.
constexpr uint64_t kMostOfRecord = 256 * kKiB;
constexpr uint64_t kMostAhead = 16 * kMiB;
// Limit on deflated bytes in memory, and on their inflated size.
constexpr uint64_t kMostHeld = kGiB;
// Limit on inflated bytes, for all archives in a file together.
constexpr uint64_t kMostInflated = 4 * kGiB;

std::string_view Base(std::string_view name) {
  return name.substr(name.rfind('/') + 1);
}

bool IsNumber(std::string_view text) {
  return !text.empty() &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Returns whether torch writes tensor data to records with this name. `name` is
// relative to the archive's top folder.
bool IsStorage(std::string_view name) {
  const std::string_view base = Base(name);
  const std::string_view folder = name.substr(0, name.size() - base.size());
  if (folder.ends_with("/data/") || folder.ends_with("/constants/") ||
      folder.ends_with("/tensors/")) {
    return IsNumber(base);
  }
  constexpr std::string_view kStorage = ".storage";
  return folder.ends_with("/.data/") && base.ends_with(kStorage) &&
         IsNumber(base.substr(0, base.size() - kStorage.size()));
}

// Returns the role of record `name`. torch ignores case in names.
Role RoleOf(std::string_view name, bool is_torch) {
  if (name.ends_with(".pkl") || name.ends_with(".pickle") ||
      name.ends_with(".debug_pkl")) {
    return Role::kPickle;
  }
  return is_torch && IsStorage(name) ? Role::kData : Role::kFile;
}

bool IsScriptCode(std::string_view name) {
  return name.ends_with(".py") &&
         (name.starts_with("code/") || name.find("/code/") != name.npos);
}

// Returns whether the record is part of a torch.export program, whose loader
// interprets its JSON.
bool IsProgram(std::string_view name) {
  return Base(name) == "archive_format" ||
         Base(name) == "serialized_exported_program.json" ||
         (name.find("models/") != name.npos && name.ends_with(".json"));
}

// Returns whether `word` is a symbol like "s12", "u0" or "zf3", or a number.
bool IsSymbol(std::string_view word) {
  constexpr std::string_view kKinds[] = {"", "s", "u", "z", "zf", "zuf"};
  const size_t digits = std::min(word.find_first_of("0123456789"), word.size());
  return digits < word.size() &&
         word.find_first_not_of("0123456789", digits) == word.npos &&
         std::ranges::find(kKinds, word.substr(0, digits)) != std::end(kKinds);
}

// Returns whether `text` consists only of the tokens of size expressions that
// torch and sympy write: symbols, numbers, operators and the words below.
bool IsPlainExpression(std::string_view text) {
  constexpr std::string_view kWords[] = {
      "Symbol",     "Integer",    "Rational",     "Add",
      "Mul",        "Pow",        "Max",          "Min",
      "Mod",        "Abs",        "Eq",           "Ne",
      "Lt",         "Le",         "Gt",           "Ge",
      "And",        "Or",         "Not",          "FloorDiv",
      "CleanDiv",   "PythonMod",  "CeilToInt",    "FloorToInt",
      "TruncToInt", "RoundToInt", "ToFloat",      "ModularIndexing",
      "Where",      "IntTrueDiv", "FloatTrueDiv", "PowByNatural",
      "FloatPow",   "floor",      "ceiling",      "True",
      "False",      "true",       "false",        "int_oo",
      "oo",         "integer",    "positive",     "nonnegative",
      "negative",   "nonzero",    "real",         "finite"};
  while (!text.empty()) {
    const bool quoted = text.front() == '\'';
    if (quoted) text.remove_prefix(1);
    size_t end = 0;
    while (end < text.size() && IsWord(text[end])) ++end;
    const std::string_view word = text.substr(0, end);
    if (quoted) {
      if (!IsSymbol(word) || end == text.size() || text[end] != '\'') {
        return false;
      }
      ++end;
    } else if (word.empty()) {
      if (std::string_view(" +-*/%(),<>=").find(text[0]) ==
          std::string_view::npos) {
        return false;
      }
      ++end;
    } else if (!IsSymbol(word) &&
               std::ranges::find(kWords, word) == std::end(kWords)) {
      return false;
    }
    text.remove_prefix(end);
  }
  return true;
}

bool HasPickle(const std::vector<zip::Entry>& entries) {
  return std::ranges::any_of(entries, [](const zip::Entry& entry) {
    return Lower(entry.name).ends_with(".pkl");
  });
}

bool IsArray(const zip::Entry& entry) { return entry.name.ends_with(".npy"); }

}  // namespace

Status Judge::Zip(const std::shared_ptr<const ByteSource>& source,
                  const Place& place) {
  if (!place.whole) {
    Unknown("an archive inflates to more than is looked into", place,
            Code::kLimit);
    return Status();
  }
  // Resolves all record offsets at once, which is one round trip to a server.
  const auto open =
      [&](Strictness strictness) -> Result<std::unique_ptr<zip::ZipReader>> {
    HAULWAY_ASSIGN(auto archive,
                   zip::ZipReader::Open(source, strictness, options_.limits,
                                        zip::NameRule::kKeys));
    // Names that differ only in case are one record to torch, and two to NumPy,
    // for which they are keys; whatever else a zip is may be unpacked.
    const auto& entries = archive->entries();
    if (HasPickle(entries) && strictness == options_.strictness) {
      HAULWAY_ASSIGN(archive,
                     zip::ZipReader::Open(source, strictness, options_.limits,
                                          zip::NameRule::kAnyCase));
    } else if (!std::ranges::all_of(entries, IsArray)) {
      HAULWAY_ASSIGN(archive,
                     zip::ZipReader::Open(source, strictness, options_.limits,
                                          zip::NameRule::kPaths));
    }
    HAULWAY_TRY(archive->ResolveOffsets());
    return archive;
  };
  auto archive = open(options_.strictness);
  if (!archive.ok() && !IsOfSource(archive.status())) {
    HAULWAY_ASSIGN(const bool row, ZipRow(source, place));
    if (row) return Status();
  }
  if (!archive.ok()) {
    // Where readers disagree, judge as much as can be read leniently.
    HAULWAY_TRY(Note(archive.status(), place));
    if (options_.strictness == Strictness::kStrict) {
      archive = open(Strictness::kLenient);
    }
    if (!archive.ok()) return Status();
  }
  return ZipRecords(**archive, place);
}

// Judges consecutive archives, as in files of distributed checkpoints, whose
// readers are given one archive at a time. Returns false, and reports nothing,
// if the file is not such a sequence.
Result<bool> Judge::ZipRow(const std::shared_ptr<const ByteSource>& source,
                           const Place& place) {
  HAULWAY_ASSIGN(const std::vector<uint64_t> ends, ZipsInARow(*source));
  if (ends.size() < 2) return false;
  std::vector<std::unique_ptr<zip::ZipReader>> archives;
  uint64_t begin = 0;
  for (const uint64_t end : ends) {
    HAULWAY_ASSIGN(auto slice, MakeSliceSource(source, begin, end - begin));
    auto archive = zip::ZipReader::Open(std::move(slice), options_.strictness,
                                        options_.limits);
    if (!archive.ok() || !(*archive)->ResolveOffsets().ok()) return false;
    archives.push_back(*std::move(archive));
    begin = end;
  }
  begin = 0;
  for (size_t i = 0; i < archives.size(); ++i) {
    Place inside = place;
    inside.member = Joined(place, fmt::format("archive {}", i));
    inside.offset = place.offset + begin;
    HAULWAY_TRY(ZipRecords(*archives[i], inside));
    begin = ends[i];
  }
  return true;
}

Status Judge::ZipRecords(const zip::ZipReader& archive, const Place& place) {
  bool script = false, program = false, served = false;
  bool package = false, is_torch = false;
  for (const zip::Entry& entry : archive.entries()) {
    const std::string name = Lower(entry.name);
    script = script || Base(name) == "constants.pkl";
    program = program || IsProgram(name);
    served = served || name == "mar-inf/manifest.json";
    package = package || name == ".data/extern_modules" ||
              name.ends_with("/.data/extern_modules");
    is_torch = is_torch || Base(name) == "data.pkl";
  }
  if (program) {
    Unknown("a program of torch.export, whose loader evaluates what is in it",
            place);
  }
  if (served) {
    Unknown("an archive of TorchServe, which runs the handler that it names",
            place);
  }
  // Modules of a package are imported, whatever else the archive is.
  const bool outside = std::exchange(script_, script && !package && !served);
  const bool torch_outside =
      std::exchange(is_torch_, is_torch || script || package);
  // Nobody unpacks an npz file: its names are keys.
  const bool keys_outside =
      std::exchange(has_keys_, std::ranges::all_of(archive.entries(), IsArray));
  uint64_t looked_at = 0;  // Exceeds the file size only if records overlap.
  Status status;
  const std::span<const zip::Entry> entries = archive.entries();
  size_t held = 0;  // Number of entries whose first bytes are prefetched.
  std::shared_ptr<const ByteSource> source;
  for (size_t i = 0; i < entries.size(); ++i) {
    const zip::Entry& entry = entries[i];
    if (i >= held) {
      auto ahead = HoldRecords(archive, &held);
      if (!ahead.ok()) {
        status = std::move(ahead).status();
        break;
      }
      source = *std::move(ahead);
    }
    if (entry.compressed_size > archive.source()->size() - looked_at) {
      Unknown("records overlap", place, Code::kCorrupt);
      break;
    }
    looked_at += entry.compressed_size;
    Place inside = place;
    inside.member = Joined(place, entry.name);
    inside.name = entry.name;
    inside.offset = place.offset + entry.payload_offset;
    ++inside.depth;
    status = ZipRecord(source, entry, std::move(inside));
    if (!status.ok()) break;
  }
  script_ = outside;
  is_torch_ = torch_outside;
  has_keys_ = keys_outside;
  return status;
}

// Returns the archive's source with the first bytes of the records from `*held`
// on prefetched. Moves `*held` past these records.
Result<std::shared_ptr<const ByteSource>> Judge::HoldRecords(
    const zip::ZipReader& archive, size_t* held) const {
  const uint64_t end = archive.source()->size();
  std::vector<ByteRange> ranges;
  const auto add = [&](uint64_t offset, uint64_t length) {
    ranges.push_back({offset, length});
    return length;
  };
  uint64_t total = 0;
  for (; *held < archive.entries().size() && total < kMostAhead; ++*held) {
    const zip::Entry& entry = archive.entries()[*held];
    const uint64_t size = entry.compressed_size;
    if (!RangeFits(entry.payload_offset, size, end)) continue;
    const bool is_data = entry.method == zip::kMethodStored &&
                         RoleOf(Lower(entry.name), is_torch_) == Role::kData;
    if (is_data) {
      total +=
          add(entry.payload_offset, std::min(size, ByteWindow::kFirstBytes));
    } else if (size <= kMostOfRecord) {
      total += add(entry.payload_offset, size);
    } else if (entry.method == zip::kMethodStored) {
      total += add(entry.payload_offset, ByteWindow::kFirstBytes);
      total +=
          add(entry.payload_offset + size - zip::kTailBytes, zip::kTailBytes);
    }
  }
  return HoldRanges(archive.source(), ranges);
}

Status Judge::ZipRecord(const std::shared_ptr<const ByteSource>& source,
                        const zip::Entry& entry, Place place) {
  if (entry.is_folder() && entry.size == 0) return Status();
  const std::string name = Lower(entry.name);
  if (!has_keys_ && LeavesFolder(name)) {
    Unsafe("it would be written outside of the folder it is unpacked into",
           place);
  }
  place.role = RoleOf(name, is_torch_);
  // Storages are many, and the first bytes normally show that they are not
  // pickles.
  HAULWAY_ASSIGN(
      auto bytes,
      RecordBytes(source, entry,
                  place.role == Role::kData ? kFirstLook : kMostHeld, &place));
  if (bytes != nullptr && place.role == Role::kData && !place.whole) {
    HAULWAY_ASSIGN(const bool goes_on, IsCutPickle(*bytes));
    if (goes_on) {
      HAULWAY_ASSIGN(bytes, RecordBytes(source, entry, kMostHeld, &place));
    }
  }
  if (bytes == nullptr) return Status();
  if (name.ends_with(".json")) HAULWAY_TRY(ProgramText(*bytes, place));
  if (script_ && IsScriptCode(name)) {
    place.role = Role::kScript;
    HAULWAY_TRY(ScriptCode(*bytes, place));
    return Pickles(*bytes, 0, place, /*other=*/false).status();
  }
  if (place.role == Role::kPickle) {
    HAULWAY_TRY(CheckCrc(*bytes, entry, place));
  }
  return Content(bytes, place);
}

// Returns whether `source` may be a pickle that ends only because the bytes
// end.
Result<bool> Judge::IsCutPickle(const ByteSource& source) const {
  HAULWAY_ASSIGN(const Trace trace,
                 TracePickle(source, 0, source.size(), {.names = &names_}));
  return trace.end == TraceEnd::kCut;
}

Result<std::shared_ptr<const ByteSource>> Judge::RecordBytes(
    const std::shared_ptr<const ByteSource>& source, const zip::Entry& entry,
    uint64_t longest, Place* place) {
  std::shared_ptr<const ByteSource> none;
  const uint64_t end = source->size();
  if ((entry.flags & zip::kFlagEncrypted) != 0) {
    Unknown("an encrypted record", *place);
    return none;
  }
  if (!RangeFits(entry.payload_offset, entry.compressed_size, end)) {
    Unknown("a record ends past the file", *place, Code::kTruncated);
    return none;
  }
  HAULWAY_ASSIGN(auto stored, MakeSliceSource(source, entry.payload_offset,
                                              entry.compressed_size));
  if (entry.method == zip::kMethodStored) return stored;
  if (entry.method != zip::kMethodDeflated) {
    Unknown(fmt::format("a record compressed by method {}", entry.method),
            *place);
    return none;
  }
  const uint64_t given = std::min(entry.compressed_size, kMostHeld);
  std::vector<std::byte> deflated(given);
  if (given > 0) HAULWAY_TRY(stored->ReadAt(0, deflated));
  const ParseLimits& limits = options_.limits;
  uint64_t most = 0;
  if (!CheckedMultiply(given, limits.max_metadata_inflate_ratio, &most)) {
    most = kMostHeld;
  }
  most = std::min(
      {std::max(most, kFirstLook), longest, limits.max_inflated_bytes});
  if (inflated_ >= kMostInflated) {
    Unknown("archives inflate to more than is looked into", *place,
            Code::kLimit);
    return none;
  }
  HAULWAY_ASSIGN(Inflated inflated, Inflate(deflated, Deflated::kRaw, most));
  inflated_ += inflated.bytes.size();
  place->whole = inflated.whole && inflated.bytes.size() == entry.size;
  if (inflated.damaged ||
      (inflated.whole && inflated.bytes.size() != entry.size)) {
    Unknown("a deflated record is damaged", *place, Code::kCorrupt);
  }
  place->offset = 0;
  auto owner =
      std::make_shared<std::vector<std::byte>>(std::move(inflated.bytes));
  return MakeBufferSource(Buffer(owner, *owner, /*writable=*/false),
                          std::string(source->name()));
}

Status Judge::CheckCrc(const ByteSource& source, const zip::Entry& entry,
                       const Place& place) {
  // torch.save() can omit the CRC, and then writes 0.
  if (entry.crc32 == 0 || !place.whole ||
      source.size() > options_.limits.max_pickle_bytes) {
    return Status();
  }
  uint32_t crc = 0;
  std::vector<std::byte> bytes;
  for (uint64_t at = 0; at < source.size(); at += bytes.size()) {
    bytes.resize(std::min<uint64_t>(kMiB, source.size() - at));
    HAULWAY_TRY(source.ReadAt(at, bytes));
    crc = Crc32(crc, bytes);
  }
  if (crc != entry.crc32) {
    Unknown("CRC-32 of a pickle is wrong", place, Code::kMismatch);
  }
  return Status();
}

// Judges TorchScript code. torch.jit.load() calls an object's own
// `__setstate__` to restore it, and TorchScript can write files.
Status Judge::ScriptCode(const ByteSource& source, const Place& place) {
  if (!place.whole || source.size() > kMostText) {
    Unknown("code of TorchScript that is too long to be looked into", place,
            Code::kLimit);
    return Status();
  }
  std::vector<std::byte> bytes(source.size());
  if (!bytes.empty()) HAULWAY_TRY(source.ReadAt(0, bytes));
  const size_t found = TextOf(bytes).find("__setstate__");
  if (found != std::string_view::npos) {
    Say(Verdict::kUnknown, Code::kUnsupported,
        fmt::format("__setstate__ of TorchScript, which runs when it is "
                    "loaded; at byte {}",
                    found),
        found, place.member);
  }
  if (const auto doubt = DoubtOfTorchScript(TextOf(bytes))) {
    Say(Verdict::kUnknown, Code::kUnsupported,
        fmt::format("{}; at byte {}", doubt->why, doubt->byte), doubt->byte,
        place.member);
  }
  return Status();
}

// Judges the JSON of a torch.export program. Its loader passes expressions to
// sympy, which evaluates them.
Status Judge::ProgramText(const ByteSource& source, const Place& place) {
  constexpr std::string_view kKey = "\"expr_str\"";
  if (!place.whole || source.size() > kMostText) {
    Unknown("JSON that is too long to be looked into", place, Code::kLimit);
    return Status();
  }
  std::vector<std::byte> bytes(source.size());
  if (!bytes.empty()) HAULWAY_TRY(source.ReadAt(0, bytes));
  const std::string_view text = TextOf(bytes);
  for (size_t at = text.find(kKey); at != text.npos;
       at = text.find(kKey, at + 1)) {
    size_t begin = text.find_first_not_of(" \t\r\n:", at + kKey.size());
    if (begin == text.npos || text[begin] != '"') continue;
    ++begin;
    const size_t end = text.find('"', begin);
    const std::string_view expression = text.substr(begin, end - begin);
    if (end != text.npos && IsPlainExpression(expression)) continue;
    Say(Verdict::kUnsafe, Code::kUnsafe,
        fmt::format("expression {} would be evaluated; at byte {}",
                    Quote(expression), begin),
        begin, place.member);
    return Status();
  }
  return Status();
}

}  // namespace haulway::scan
