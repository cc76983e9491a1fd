// Design: the small records (pickle, version, byte order, alignment) are read
// together with the bytes that the archive needs anyway, so opening takes two
// or three requests. The pickle is parsed to a tree, and Resolver
// (torch_tensors.cc) finds the tensors in it. Storages are rows whose payload
// offsets the zip reader computed; they are checked when they are read, or all
// at once on request.
//
// The same class reads TorchScript archives and packages, which differ only in
// where their pickles are. Their code is not run, and loading a package as an
// object is refused. Verifying opens strictly first and then leniently, to
// check as much as possible of a faulty file.

#include "torch/torch_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "base/is_of_source.h"
#include "base/text.h"
#include "haulway/machine.h"
#include "pickle/pickle_vm.h"
#include "torch/composed_tensors.h"
#include "torch/torch_storages.h"
#include "torch/torch_tensors.h"
#include "zip/archive_reader.h"
#include "zip/zip_verify.h"

namespace haulway::torch {

namespace {

constexpr std::string_view kPickle = "data.pkl";
constexpr std::string_view kScriptConstants = "constants.pkl";
constexpr std::string_view kPackageModules = ".data/extern_modules";
constexpr uint64_t kLargestAlignment = 65536;
constexpr std::string_view kAlignmentRecord = ".storage_alignment";
// Records that are read together with the archive's own metadata.
constexpr std::array<std::string_view, 4> kPrefetched = {
    kPickle, "byteorder", ".format_version", kAlignmentRecord};

std::string_view TextOf(const Buffer& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Returns whether a record may be one of the pickles of an archive, by its
// name.
bool MayBePickle(std::string_view name) {
  return name.ends_with(".pkl") || name.ends_with(".pickle") ||
         name.ends_with(".debug_pkl");
}

ArchiveOptions ArchiveOptionsOf(const OpenOptions& options) {
  ArchiveOptions archive;
  archive.strictness = options.strictness;
  archive.limits = options.limits;
  return archive;
}

class ZipCheckpoint : public FormatReader {
 public:
  static Result<std::unique_ptr<const FormatReader>> Open(
      std::shared_ptr<const zip::Archive> archive, const OpenOptions& options,
      bool of_process = false) {
    std::unique_ptr<ZipCheckpoint> reader(
        new ZipCheckpoint(std::move(archive), options, of_process));
    HAULWAY_TRY(reader->ReadIndex());
    return std::unique_ptr<const FormatReader>(std::move(reader));
  }

  const CheckpointIndex& index() const override { return index_; }
  const std::shared_ptr<const ByteSource>& source() const override {
    return archive_->zip().source();
  }
  Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                    std::span<const std::byte> after) const override {
    return archive_->zip().CheckFrame(*entries_[storage], before, after);
  }
  Status Decode(uint32_t storage, std::span<const std::byte>, uint64_t,
                std::span<const std::byte> stored,
                std::span<std::byte> out) const override {
    return archive_->zip().Inflate(*entries_[storage], stored, out);
  }

 private:
  ZipCheckpoint(std::shared_ptr<const zip::Archive> archive,
                const OpenOptions& options, bool of_process)
      : archive_(std::move(archive)),
        options_(options),
        of_process_(of_process) {}

  bool strict() const { return options_.strictness == Strictness::kStrict; }

  Status ReadIndex() {
    index_.offsets_computed = archive_->offsets_computed();
    if (options_.debug_offsets) HAULWAY_TRY(archive_->zip().CompareOffsets());
    const auto has = [&](std::string_view name) {
      return archive_->FindEntry(name) != nullptr;
    };
    if (has(kPickle)) {
      index_.format =
          has(kScriptConstants) ? Format::kTorchScript : Format::kTorch;
    } else if (has(kPackageModules)) {
      index_.format = Format::kTorchPackage;
    } else {
      return Status(Code::kUnsupported,
                    "zip archive is no checkpoint: it has no data.pkl");
    }
    HAULWAY_TRY(ReadSettings());
    HAULWAY_TRY(ReadTree());
    if (options_.check_frames) HAULWAY_TRY(CheckAllFrames());
    ListFacts();
    return Status();
  }

  Status ReadSettings() {
    const auto& records = archive_->prefetched();
    if (records[0].has_value()) pickles_.push_back(*records[0]);
    if (records[1].has_value()) byteorder_ = TextOf(*records[1]);
    if (records[2].has_value()) format_version_ = TextOf(*records[2]);
    if (records[3].has_value()) alignment_ = TextOf(*records[3]);
    if (records[1].has_value() && byteorder_ != "little" &&
        byteorder_ != "big") {
      return At("byteorder",
                Status(Code::kCorrupt,
                       fmt::format("byteorder is wrong: expected little or "
                                   "big, found {}",
                                   Quote(byteorder_))));
    }
    if (records[3].has_value() && (strict() || alignment_.empty())) {
      uint64_t number = 0;
      const char* end = alignment_.data() + alignment_.size();
      const auto [stop, error] =
          std::from_chars(alignment_.data(), end, number);
      // torch accepts any number when it writes, but the padding field limits
      // it.
      if (error != std::errc() || stop != end || number == 0 ||
          number > kLargestAlignment) {
        return At(kAlignmentRecord,
                  Status(Code::kCorrupt,
                         fmt::format("storage alignment is wrong: expected a "
                                     "number from 1 to {}, found {}",
                                     kLargestAlignment, Quote(alignment_))));
      }
      if (archive_->offsets_computed() && !AlignmentHolds(number)) {
        return At(kAlignmentRecord,
                  Status(Code::kCorrupt,
                         fmt::format("storage alignment {} is not that of the "
                                     "records",
                                     number)));
      }
    }
    return Status();
  }

  // Adds the position of a small record to a status.
  Status At(std::string_view record, Status status) const {
    const zip::Entry* entry = archive_->FindEntry(record);
    return entry == nullptr ? status
                            : std::move(status).At(entry->payload_offset);
  }

  bool AlignmentHolds(uint64_t alignment) const {
    for (const zip::Entry& entry : archive_->zip().entries()) {
      if (entry.payload_offset % alignment != 0) return false;
    }
    return true;
  }

  Status ReadTree() {
    GlobalTable table(options_.allowed_globals);
    PickleOptions pickle;
    pickle.limits = options_.limits;
    pickle.globals = &table;
    pickle.keep_opaque = !of_process_;
    if (of_process_) table.AllowProcesses();
    if (const zip::Entry* entry = archive_->FindEntry(kPickle)) {
      pickle.stored_bytes = stored_bytes_ = entry->compressed_size;
    }
    switch (index_.format) {
      case Format::kTorchScript:
        table.AllowTorchScript();
        [[fallthrough]];
      case Format::kTorch:
        return ReadTorch(pickle);
      default:
        return ReadPackage(pickle);
    }
  }

  Status ReadTorch(const PickleOptions& options) {
    const Buffer& bytes = pickles_[0];
    const std::string place =
        fmt::format("{}/{}", archive_->archive_name(), kPickle);
    auto parsed = ParsePickle(bytes.bytes(), arena_, options);
    if (!parsed.ok()) return std::move(parsed).status().In(place);
    if (strict() && parsed->consumed != bytes.size()) {
      return Status(Code::kCorrupt,
                    fmt::format("{} bytes follow the pickle: expected none",
                                bytes.size() - parsed->consumed))
          .At(parsed->consumed)
          .In(place);
    }
    pickle_protocol_ = parsed->protocol;
    index_.root = parsed->root;
    index_.object_status =
        std::move(parsed->unsafe).In(place).Of(source()->name());
    Status status = Resolve("data/", "");
    if (!status.ok()) return std::move(status).In(place);
    if (index_.format == Format::kTorchScript) {
      // Only torch.jit.load() makes the module; the object here is its weights.
      index_.flat = true;
      index_.root = Value();
    }
    return Status();
  }

  // Reads a package. Its many pickles contain classes that the package defines
  // in Python source, which is not run here, so they are read as data, whatever
  // they name. Scan() refuses to load a package as an object.
  Status ReadPackage(PickleOptions options) {
    options.scan = true;
    auto* mapping = arena_.New<Mapping>();
    std::vector<MappingItem> items;
    for (const RecordInfo& record : archive_->records()) {
      if (!MayBePickle(record.name)) continue;
      const zip::Entry* entry = archive_->FindEntry(record.name);
      HAULWAY_TRY(archive_->zip().CheckMetadataSize(*entry));
      HAULWAY_ASSIGN(Buffer bytes, AllocateBuffer(entry->size));
      if (entry->size != 0) {
        HAULWAY_TRY(archive_->ReadInto(record.name, bytes.mutable_bytes()));
      }
      options.stored_bytes = entry->compressed_size;
      stored_bytes_ += entry->compressed_size;
      HAULWAY_ASSIGN(PickleResult parsed,
                     ParsePickle(bytes.bytes(), arena_, options));
      pickles_.push_back(std::move(bytes));
      if (index_.object_status.ok()) {
        index_.object_status =
            std::move(parsed.unsafe).In(record.name).Of(source()->name());
      }
      if (!parsed.complete) continue;
      items.push_back({Value::Text(Kind::kString, record.name), parsed.root});
    }
    mapping->data = static_cast<MappingItem*>(
        arena_.Allocate(items.size() * sizeof(MappingItem)));
    std::copy(items.begin(), items.end(), mapping->data);
    mapping->size = mapping->capacity = static_cast<uint32_t>(items.size());
    index_.root = Value::Of(Kind::kDict, mapping);
    return Resolve(".data/", ".storage");
  }

  // Resolves the tensors. The record of a storage is named `folder` + key +
  // `suffix`.
  Status Resolve(std::string_view folder, std::string_view suffix) {
    StorageTable storages(&index_);
    storages.Reserve(archive_->zip().entries().size());
    entries_.reserve(archive_->zip().entries().size());
    uint64_t pickle_bytes = 0;
    for (const Buffer& pickle : pickles_) pickle_bytes += pickle.size();
    HAULWAY_TRY(ResolveTensors(
        options_.limits,
        TreeBudgetOf(options_.limits, pickle_bytes, stored_bytes_),
        [&](const Value& id) -> Result<StorageUse> {
          HAULWAY_ASSIGN(const StorageId parsed,
                         ParseStorageId(id, /*legacy=*/false, &arena_));
          HAULWAY_ASSIGN(const StorageUse use, storages.Use(parsed));
          if (use.row == entries_.size()) {
            HAULWAY_TRY(Place(folder, suffix, &index_.storages.back()));
          }
          return use;
        },
        &arena_, &index_, of_process_));
    return CheckOverlap();
  }

  // Lenient reading accepts overlapping records, and several names for one
  // record; but the loaded size must not be out of proportion to the file.
  Status CheckOverlap() const {
    uint64_t total = 0;
    for (const zip::Entry* entry : entries_) {
      const uint64_t bytes = entry->end - entry->header_offset;
      if (bytes > source()->size() - total) {
        return Status(Code::kCorrupt,
                      fmt::format("records of storages overlap: expected at "
                                  "most the {} bytes of the file in all",
                                  source()->size()))
            .At(entry->header_offset);
      }
      total += bytes;
    }
    return Status();
  }

  // Finds the record of a new storage by rules P07 and P08.
  Status Place(std::string_view folder, std::string_view suffix,
               StorageInfo* storage) {
    const std::string_view key = storage->key;
    if (key.find('/') != key.npos) {
      return Status(Code::kCorrupt,
                    fmt::format("storage key {} has a slash", Quote(key)));
    }
    const zip::Entry* entry =
        suffix.empty() || key.ends_with(suffix)
            ? archive_->FindEntryAfter(
                  entries_.empty() ? nullptr : entries_.back(), folder, key)
            : archive_->FindEntry(fmt::format("{}{}{}", folder, key, suffix));
    if (entry == nullptr) {
      return Status(Code::kCorrupt,
                    fmt::format("storage {} has no record '{}{}{}'", Quote(key),
                                folder, Escape(key), suffix));
    }
    if (entry->size != storage->nbytes) {
      return Status(Code::kCorrupt,
                    fmt::format("record size ({} bytes) does not match "
                                "expected size ({}) of storage {}",
                                entry->size, storage->nbytes, Quote(key)));
    }
    HAULWAY_TRY(archive_->zip().CheckSize(*entry));
    entries_.push_back(entry);
    storage->frame_offset = entry->header_offset;
    storage->offset = entry->payload_offset;
    storage->stored_bytes = entry->compressed_size;
    storage->frame_end = entry->end;
    if (entry->method == zip::kMethodDeflated) {
      storage->encoding = Encoding::kDeflate;
    }
    if (entry->crc32 != 0) storage->crc32 = entry->crc32;
    return Status();
  }

  // Sets which storages are byte-swapped. Elements of untyped storages have the
  // dtype of the tensors that view them.
  void SetSwaps() {
    const bool foreign = byteorder_ == "big" ||
                         (byteorder_.empty() && options_.big_endian_default);
    if (!foreign) return;
    for (StorageInfo& storage : index_.storages) {
      storage.swap_bytes = Describe(storage.dtype).swap_bytes;
    }
    for (const TensorInfo& tensor : index_.tensors) {
      if (tensor.storage == kNoStorage ||
          !index_.storages[tensor.storage].untyped) {
        continue;
      }
      index_.storages[tensor.storage].swap_bytes =
          Describe(tensor.dtype).swap_bytes;
    }
  }

  Status CheckAllFrames() {
    // If the offsets were read from the file, its local headers were checked
    // then.
    if (!archive_->offsets_computed()) return Status();
    constexpr size_t kTogether = 4096;
    const std::span<const zip::Entry* const> all(entries_);
    for (size_t i = 0; i < all.size(); i += kTogether) {
      HAULWAY_TRY(
          CheckFrames(all.subspan(i, std::min(kTogether, all.size() - i))));
    }
    return Status();
  }

  // Reads and checks frames with one vectored read.
  Status CheckFrames(std::span<const zip::Entry* const> entries) {
    uint64_t total = 0;
    for (const zip::Entry* entry : entries) {
      total += entry->end - entry->header_offset - entry->compressed_size;
    }
    std::vector<std::byte> bytes(total);
    std::vector<ReadRequest> requests;
    requests.reserve(2 * entries.size());
    uint64_t at = 0;
    const auto add = [&](uint64_t offset, uint64_t length) {
      requests.push_back({offset, std::span(bytes).subspan(at, length)});
      at += length;
    };
    for (const zip::Entry* entry : entries) {
      const uint64_t payload_end =
          entry->payload_offset + entry->compressed_size;
      add(entry->header_offset, entry->payload_offset - entry->header_offset);
      add(payload_end, entry->end - payload_end);
    }
    HAULWAY_TRY(source()->ReadMany(requests));
    for (size_t i = 0; i < entries.size(); ++i) {
      HAULWAY_TRY(archive_->zip().CheckFrame(*entries[i], requests[2 * i].out,
                                             requests[2 * i + 1].out));
    }
    return Status();
  }

  void ListFacts() {
    SetSwaps();
    uint64_t without_crc = 0;
    uint64_t deflated = 0;
    uint64_t records = 0;
    for (const zip::Entry& entry : archive_->zip().entries()) {
      if (!archive_->IsRecord(entry)) continue;
      ++records;
      if (entry.crc32 == 0 && entry.size > 0) ++without_crc;
      if (entry.method == zip::kMethodDeflated) ++deflated;
    }
    const auto text = [](std::string_view value) -> FactValue {
      if (value.empty()) return std::monostate();
      uint64_t number = 0;
      const char* end = value.data() + value.size();
      const auto [stop, error] = std::from_chars(value.data(), end, number);
      if (error == std::errc() && stop == end) return number;
      return std::string(value);
    };
    // The facts are moved one by one, because libstdc++ 12 leaves a variant in
    // an invalid state if copying runs out of memory.
    Fact facts[] = {
        {"archive_name", std::string(archive_->archive_name())},
        {"version", archive_->version()},
        {"format_version", text(format_version_)},
        {"byteorder", text(byteorder_)},
        {"alignment", text(alignment_)},
        {"serialization_id", std::string(archive_->serialization_id())},
        {"pickle_protocol", int64_t{pickle_protocol_}},
        {"records", records},
        {"records_deflated", deflated},
        {"records_without_crc", without_crc},
    };
    index_.facts.assign(std::move_iterator(std::begin(facts)),
                        std::move_iterator(std::end(facts)));
  }

  const std::shared_ptr<const zip::Archive> archive_;
  const OpenOptions options_;
  const bool of_process_;
  TreeArena arena_;
  std::vector<Buffer> pickles_;  // The tree's text refers to these.
  CheckpointIndex index_;
  std::vector<const zip::Entry*> entries_;  // Parallel to index_.storages.
  std::string byteorder_;
  std::string format_version_;
  std::string alignment_;
  int pickle_protocol_ = 0;
  uint64_t stored_bytes_ = 0;  // Bytes that the pickles take in the file.
};

template <class Report>
void AddFinding(const Status& status, bool* good, Report* report) {
  *good = false;
  report->findings.push_back(
      {status.code(), std::string(status.message()), status.byte()});
}

// Opens an archive for a report: strictly, and if that fails, leniently, to
// check as much as possible. Returns null if both fail.
template <class Report>
Result<std::shared_ptr<const zip::Archive>> OpenForReport(
    const std::shared_ptr<const ByteSource>& source, OpenOptions options,
    bool* good, Report* report) {
  auto archive =
      zip::Archive::Open(source, ArchiveOptionsOf(options), kPrefetched);
  if (archive.ok()) return archive;
  if (IsOfSource(archive.status())) return archive.status();
  AddFinding(archive.status(), good, report);
  if (options.strictness == Strictness::kStrict) {
    options.strictness = Strictness::kLenient;
    archive =
        zip::Archive::Open(source, ArchiveOptionsOf(options), kPrefetched);
    if (archive.ok()) return archive;
  }
  return std::shared_ptr<const zip::Archive>();
}

// Adds the name of a tensor to each finding in its storage.
void NameTensors(const CheckpointIndex& index, VerifyReport* report) {
  for (Finding& finding : report->findings) {
    if (!finding.byte.has_value()) continue;
    const auto entry =
        std::ranges::find_if(index.entries, [&](const Entry& one) {
          const uint32_t row = index.tensors[one.tensor].storage;
          return row != kNoStorage &&
                 index.storages[row].frame_offset <= *finding.byte &&
                 *finding.byte < index.storages[row].frame_end;
        });
    if (entry == index.entries.end()) continue;
    finding.message += fmt::format("; in tensor {}", Quote(entry->name));
  }
}

}  // namespace

bool IsZip(std::span<const std::byte> head) {
  constexpr std::string_view kSignature = "PK\x03\x04";
  return head.size() >= kSignature.size() &&
         std::memcmp(head.data(), kSignature.data(), kSignature.size()) == 0;
}

bool HoldsPickle(const ByteSource& source) {
  // Borrow the source for this call.
  const auto zip = zip::ZipReader::Open(
      std::shared_ptr<const ByteSource>(std::shared_ptr<const void>(), &source),
      Strictness::kLenient, {});
  if (!zip.ok()) return false;
  return std::ranges::any_of((*zip)->entries(), [](const zip::Entry& entry) {
    const size_t folder = entry.name.find('/');
    if (folder == entry.name.npos) return false;
    const std::string_view record = entry.name.substr(folder + 1);
    return record == kPickle || record == kPackageModules;
  });
}

Result<std::unique_ptr<const FormatReader>> OpenZip(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  HAULWAY_ASSIGN(auto archive,
                 zip::Archive::Open(std::move(source),
                                    ArchiveOptionsOf(options), kPrefetched));
  return ZipCheckpoint::Open(std::move(archive), options);
}

Result<std::unique_ptr<const FormatReader>> OpenOfProcess(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  HAULWAY_ASSIGN(auto archive,
                 zip::Archive::Open(std::move(source),
                                    ArchiveOptionsOf(options), kPrefetched));
  return ZipCheckpoint::Open(std::move(archive), options, /*of_process=*/true);
}

namespace {

Result<VerifyReport> VerifyArchive(
    const std::shared_ptr<const ByteSource>& source,
    const VerifyOptions& options, bool of_process) {
  VerifyReport report;
  report.file = source->name();
  report.file_bytes = source->size();
  HAULWAY_ASSIGN(const auto archive,
                 OpenForReport(source, options.open, &report.ok, &report));
  if (archive == nullptr) return report;
  const bool structure_ok = report.ok;
  HAULWAY_TRY(zip::VerifyRecords(
      archive->zip(), options.threads > 0 ? options.threads : UsableCpus(),
      options.progress, &report));
  if (!structure_ok) return report;
  // The pickle must agree with the records.
  const auto reader = ZipCheckpoint::Open(archive, options.open, of_process);
  if (reader.ok()) {
    report.format = (*reader)->index().format;
    NameTensors((*reader)->index(), &report);
    // If there are findings, damaged bytes were already reported.
    if (report.ok) HAULWAY_TRY(VerifyComposedTensors(**reader, &report));
  } else if (IsOfSource(reader.status())) {
    return reader.status();
  } else if (report.ok || reader.status().code() != Code::kMismatch) {
    AddFinding(reader.status(), &report.ok, &report);
  }
  return report;
}

}  // namespace

Result<VerifyReport> VerifyZip(std::shared_ptr<const ByteSource> source,
                               const VerifyOptions& options) {
  return VerifyArchive(source, options, /*of_process=*/false);
}

Result<VerifyReport> VerifyOfProcess(std::shared_ptr<const ByteSource> source,
                                     const VerifyOptions& options) {
  return VerifyArchive(source, options, /*of_process=*/true);
}

}  // namespace haulway::torch
