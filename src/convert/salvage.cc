// Design: a truncated file is read through a source that is as long as the
// original. Past the cut it has zeros, and the structures that a reader
// requires. So every reader works unchanged, and the storages that end past the
// cut are lost.
//
// - GGUF and Tensorizer files list their contents at the start.
// - So do safetensors files, whose entries are independent of one another: one
//   that is wrong costs its tensor only.
// - A zip is walked by its local headers. Sizes that follow a payload are
//   searched: a descriptor has the distance to the start of its payload. A
//   directory is made of the complete records, and of the storages that the
//   pickle names but that were not written: their records are zeros.
//
// Alternative not taken: teach readers to work without the missing parts. That
// would add a second way of reading to each.

#include "convert/salvage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/digest.h"
#include "base/encoder.h"
#include "haulway/archive.h"
#include "haulway/format.h"
#include "haulway/options.h"
#include "pickle/pickle_vm.h"
#include "safetensors/damaged_header.h"
#include "safetensors/safetensors_reader.h"
#include "torch/torch_storages.h"
#include "zip/zip_format.h"

namespace haulway::convert {

namespace {

constexpr uint64_t kSearchBytes = 4 * kMiB;
// Padded size. No file is this long.
constexpr uint64_t kPadding = uint64_t{1} << 46;
// Limit on the size of a made-up directory, without the names in the file.
constexpr uint64_t kMostMadeUp = 64 * kMiB;
constexpr uint32_t kHeaderSignature = 0x04034B50;      // APPNOTE 4.3.7.
constexpr uint32_t kDescriptorSignature = 0x08074B50;  // APPNOTE 4.3.9.3.
constexpr uint32_t kEntrySignature = 0x02014B50;       // APPNOTE 4.3.12.
constexpr uint32_t kIn64 = 0xFFFFFFFF;                 // APPNOTE 4.3.9.2.

template <class T>
T Get(std::span<const std::byte> bytes, size_t at) {
  T value = 0;
  if (at + sizeof(T) <= bytes.size()) {
    std::memcpy(&value, bytes.data() + at, sizeof(T));
  }
  return value;
}

// A PaddedSource has the bytes of another source, then zeros, with some bytes
// in between replaced.
class PaddedSource : public ByteSource {
 public:
  PaddedSource(std::shared_ptr<const ByteSource> source, uint64_t size)
      : source_(std::move(source)), size_(size) {}

  // Replaces zeros. Requires: `offset` is past the end of the source, and the
  // bytes overlap no others.
  void Put(uint64_t offset, std::vector<std::byte> bytes) {
    size_ = std::max(size_, offset + bytes.size());
    patches_[offset] = std::move(bytes);
  }

  std::string_view name() const override { return source_->name(); }
  uint64_t size() const override { return size_; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    if (!RangeFits(offset, out.size(), size_)) {
      return Status(Code::kTruncated, "read ends past the source").At(offset);
    }
    const uint64_t held = source_->size();
    const uint64_t there =
        offset < held ? std::min<uint64_t>(out.size(), held - offset) : 0;
    if (there != 0) HAULWAY_TRY(source_->ReadAt(offset, out.first(there)));
    if (there == out.size()) return Status();
    std::memset(out.data() + there, 0, out.size() - there);
    auto patch = patches_.upper_bound(offset);
    if (patch != patches_.begin()) --patch;
    for (; patch != patches_.end() && patch->first < offset + out.size();
         ++patch) {
      const uint64_t begin = std::max(offset, patch->first);
      const uint64_t end = std::min<uint64_t>(
          offset + out.size(), patch->first + patch->second.size());
      if (begin >= end) continue;
      std::memcpy(out.data() + (begin - offset),
                  patch->second.data() + (begin - patch->first), end - begin);
    }
    return Status();
  }

 private:
  const std::shared_ptr<const ByteSource> source_;
  uint64_t size_;
  std::map<uint64_t, std::vector<std::byte>> patches_;
};

// A record as its local header describes it.
struct Record {
  std::string name;
  uint64_t offset = 0;
  uint64_t stored = 0;
  uint64_t size = 0;
  uint32_t crc32 = 0;
  // Version, flags, method, time: copied from the header.
  std::array<std::byte, 8> head{};
  std::array<std::byte, 2> date{};
};

// A RecordWalk walks the records of a zip from its start.
class RecordWalk {
 public:
  explicit RecordWalk(const ByteSource& source) : source_(source) {}

  // Returns where the last complete record ends.
  uint64_t end() const { return at_; }

  Result<std::vector<Record>> Run() {
    std::vector<Record> records;
    while (true) {
      HAULWAY_ASSIGN(std::optional<Record> record, Next());
      if (!record.has_value()) return records;
      records.push_back(*std::move(record));
    }
  }

 private:
  // Returns the next record; nullopt if no complete one follows.
  Result<std::optional<Record>> Next() {
    std::array<std::byte, zip::kLocalHeaderBytes> head;
    if (!RangeFits(at_, head.size(), source_.size())) return None();
    HAULWAY_TRY(source_.ReadAt(at_, head));
    if (Get<uint32_t>(head, 0) != kHeaderSignature) return None();
    Record record;
    record.offset = at_;
    std::copy_n(head.begin() + 4, 8, record.head.begin());
    std::copy_n(head.begin() + 12, 2, record.date.begin());
    record.crc32 = Get<uint32_t>(head, 14);
    record.stored = Get<uint32_t>(head, 18);
    record.size = Get<uint32_t>(head, 22);
    const uint64_t name_bytes = Get<uint16_t>(head, 26);
    const uint64_t extra_bytes = Get<uint16_t>(head, 28);
    std::vector<std::byte> rest(name_bytes + extra_bytes);
    if (!RangeFits(at_ + head.size(), rest.size(), source_.size())) {
      return None();
    }
    HAULWAY_TRY(source_.ReadAt(at_ + head.size(), rest));
    record.name.assign(reinterpret_cast<const char*>(rest.data()), name_bytes);
    TakeSizes64(std::span(rest).subspan(name_bytes), &record);
    const uint64_t payload = at_ + head.size() + rest.size();
    const bool is_described =
        (Get<uint16_t>(head, 6) & zip::kFlagDescriptor) != 0;
    uint64_t end = 0;
    if (is_described && record.stored == 0) {
      HAULWAY_ASSIGN(const std::optional<uint64_t> found,
                     FindDescriptor(payload, &record));
      if (!found.has_value()) return None();
      end = *found;
    } else {
      if (!RangeFits(payload, record.stored, source_.size())) return None();
      end = payload + record.stored;
      if (is_described) {
        HAULWAY_ASSIGN(const uint64_t bytes, TakeDescriptor(end, &record));
        end += bytes;
      }
    }
    at_ = end;
    return std::optional(std::move(record));
  }

  static Result<std::optional<Record>> None() {
    return std::optional<Record>();
  }

  // Takes the sizes from the zip64 extra field (APPNOTE 4.5.3) if the 32-bit
  // fields refer to it.
  static void TakeSizes64(std::span<const std::byte> extra, Record* record) {
    while (extra.size() >= 4) {
      const auto id = Get<uint16_t>(extra, 0);
      const size_t length =
          std::min<size_t>(Get<uint16_t>(extra, 2), extra.size() - 4);
      const auto field = extra.subspan(4, length);
      if (id == 1) {
        size_t at = 0;
        if (record->size == kIn64 && at + 8 <= length) {
          record->size = Get<uint64_t>(field, at);
          at += 8;
        }
        if (record->stored == kIn64 && at + 8 <= length) {
          record->stored = Get<uint64_t>(field, at);
        }
      }
      extra = extra.subspan(4 + length);
    }
  }

  // Returns the length of the descriptor at `offset` of a record whose sizes
  // are known: with or without a signature, 64-bit or 32-bit; 0 if there is
  // none.
  Result<uint64_t> TakeDescriptor(uint64_t offset, Record* record) {
    std::array<std::byte, zip::kLongestDescriptor> bytes{};
    const uint64_t held =
        std::min<uint64_t>(bytes.size(), source_.size() - offset);
    HAULWAY_TRY(source_.ReadAt(offset, std::span(bytes).first(held)));
    const size_t head = Get<uint32_t>(bytes, 0) == kDescriptorSignature ? 4 : 0;
    const auto crc32 = Get<uint32_t>(bytes, head);
    const auto fields = std::span(bytes).subspan(head + 4);
    uint64_t length = 0;
    if (Get<uint64_t>(fields, 0) == record->stored &&
        Get<uint64_t>(fields, 8) == record->size) {
      length = head + 20;
    } else if (Get<uint32_t>(fields, 0) == record->stored &&
               Get<uint32_t>(fields, 4) == record->size) {
      length = head + 12;
    }
    if (length == 0 || length > held) return uint64_t{0};
    record->crc32 = crc32;
    return length;
  }

  // Searches the descriptor of a payload. Returns where it ends, and takes its
  // values.
  Result<std::optional<uint64_t>> FindDescriptor(uint64_t payload,
                                                 Record* record) {
    constexpr uint64_t kOverlap = zip::kLongestDescriptor;
    std::vector<std::byte> bytes;
    for (uint64_t from = payload; from < source_.size();
         from += kSearchBytes - kOverlap) {
      bytes.resize(std::min(kSearchBytes, source_.size() - from));
      HAULWAY_TRY(source_.ReadAt(from, bytes));
      for (size_t i = 0; i + 16 <= bytes.size(); ++i) {
        const void* const next = memmem(bytes.data() + i, bytes.size() - i,
                                        &kDescriptorSignature, 4);
        if (next == nullptr) break;
        i = static_cast<size_t>(static_cast<const std::byte*>(next) -
                                bytes.data());
        const auto at = std::span(bytes).subspan(i);
        // A descriptor that crosses the window's end is complete in the next
        // one.
        const bool is_last = from + bytes.size() == source_.size();
        if (at.size() < (is_last ? 16 : kOverlap)) break;
        const uint64_t distance = from + i - payload;
        const bool is_stored =
            Get<uint16_t>(record->head, 4) == zip::kMethodStored;
        if (at.size() >= 24 && Get<uint64_t>(at, 8) == distance &&
            (!is_stored || Get<uint64_t>(at, 16) == distance)) {
          record->size = Get<uint64_t>(at, 16);
          record->stored = distance;
          record->crc32 = Get<uint32_t>(at, 4);
          return std::optional(from + i + 24);
        }
        if (Get<uint32_t>(at, 8) == distance &&
            (!is_stored || Get<uint32_t>(at, 12) == distance)) {
          record->size = Get<uint32_t>(at, 12);
          record->stored = distance;
          record->crc32 = Get<uint32_t>(at, 4);
          return std::optional(from + i + 16);
        }
      }
    }
    return std::optional<uint64_t>();
  }

  const ByteSource& source_;
  uint64_t at_ = 0;
};

// Encodes a directory of the records, and the end records.
std::vector<std::byte> DirectoryOf(std::span<const Record> records,
                                   uint64_t offset) {
  size_t bytes = zip::kZip64EndBytes + zip::kZip64LocatorBytes + zip::kEndBytes;
  constexpr uint64_t kExtraBytes = 28;  // All three numbers in 64 bits.
  for (const Record& record : records) {
    bytes += zip::kDirectoryEntryBytes + record.name.size() + kExtraBytes;
  }
  std::vector<std::byte> out(bytes);
  ByteEncoder encode(out);
  for (const Record& record : records) {
    const bool is_big = record.size >= kIn64 || record.stored >= kIn64 ||
                        record.offset >= kIn64;
    encode.U32(kEntrySignature);
    encode.U16(45);  // Made by a version that knows zip64 (APPNOTE 4.4.3.2).
    encode.Bytes(record.head);
    encode.Bytes(record.date);
    encode.U32(record.crc32);
    encode.U32(is_big ? kIn64 : record.stored);
    encode.U32(is_big ? kIn64 : record.size);
    encode.U16(record.name.size());
    encode.U16(is_big ? kExtraBytes : 0);
    encode.Fill(10, 0);  // No comment, disk 0, no attributes.
    encode.U32(is_big ? kIn64 : record.offset);
    encode.Text(record.name);
    if (!is_big) continue;
    encode.U16(1);
    encode.U16(kExtraBytes - 4);
    encode.U64(record.size);
    encode.U64(record.stored);
    encode.U64(record.offset);
  }
  const uint64_t directory_bytes = encode.position();
  zip::EncodeEndRecords({.entries = records.size(),
                         .directory_offset = offset,
                         .directory_bytes = directory_bytes,
                         .end_offset = offset + directory_bytes},
                        zip::Zip64Versions{}, &encode);
  out.resize(encode.position());
  return out;
}

// Encodes the local header of a made-up record.
std::vector<std::byte> LocalHeaderOf(Record* record) {
  std::vector<std::byte> out(zip::kLocalHeaderBytes + record->name.size() + 20);
  ByteEncoder encode(out);
  encode.U32(kHeaderSignature);
  record->head = {std::byte{45}};  // No flags, stored.
  encode.Bytes(record->head);
  encode.Bytes(record->date);
  encode.U32(record->crc32);
  encode.U32(kIn64);
  encode.U32(kIn64);
  encode.U16(record->name.size());
  encode.U16(20);
  encode.Text(record->name);
  encode.U16(1);
  encode.U16(16);
  encode.U64(record->size);
  encode.U64(record->stored);
  return out;
}

// Collects every storage that the tree names, by key.
void FindStorages(const Value& root, TreeArena* arena,
                  std::map<std::string, uint64_t>* sizes) {
  std::set<const void*> visited;
  std::vector<Value> pending = {root};
  const auto add = [&](std::span<const Value> values) {
    pending.insert(pending.end(), values.begin(), values.end());
  };
  while (!pending.empty()) {
    const Value value = pending.back();
    pending.pop_back();
    if (value.is(Kind::kPersistent)) {
      if (!visited.insert(value.identity()).second) continue;
      const auto id =
          torch::ParseStorageId(value.persistent_id(), false, arena);
      if (id.ok()) sizes->emplace(id->key, id->nbytes);
      continue;
    }
    const bool is_object = value.is(Kind::kObject);
    const bool is_sequence = value.is(Kind::kList) || value.is(Kind::kTuple);
    if (!is_object && !is_sequence && !value.is_mapping()) continue;
    if (!visited.insert(value.identity()).second) continue;
    if (is_sequence) add(value.sequence().items());
    if (value.is_mapping()) {
      for (const MappingItem& item : value.mapping().items()) {
        pending.push_back(item.value);
      }
    }
    if (is_object) {
      const Object& object = value.object();
      pending.insert(pending.end(), {object.args, object.state});
      if (object.extras == nullptr) continue;
      add(object.extras->appended.items());
      for (const MappingItem& item : object.extras->items.items()) {
        pending.push_back(item.value);
      }
    }
  }
}

class ZipSalvage {
 public:
  ZipSalvage(std::shared_ptr<const ByteSource> source,
             const OpenOptions& options)
      : source_(std::move(source)), options_(options) {}

  Result<std::shared_ptr<const ByteSource>> Run() {
    RecordWalk walk(*source_);
    HAULWAY_ASSIGN(records_, walk.Run());
    HAULWAY_TRY(NoteEnd(walk.end()));
    if (records_.empty()) {
      return Status(Code::kTruncated, "no record of the archive is whole");
    }
    const size_t slash = records_.front().name.find('/');
    if (slash == std::string::npos) return Finish();
    folder_ = records_.front().name.substr(0, slash + 1);
    if (!Has("version")) Add("version", "3\n");
    HAULWAY_TRY(AddMissingStorages());
    return Finish();
  }

  const std::optional<uint64_t>& unknown_from() const { return unknown_from_; }

 private:
  // Notes where an incomplete part begins. Nothing is missing if the directory
  // begins there.
  Status NoteEnd(uint64_t end) {
    std::array<std::byte, 4> next{};
    if (RangeFits(end, next.size(), source_->size())) {
      HAULWAY_TRY(source_->ReadAt(end, next));
    }
    if (Get<uint32_t>(next, 0) != kEntrySignature) unknown_from_ = end;
    return Status();
  }

  bool Has(std::string_view name) const {
    return std::ranges::any_of(records_, [&](const Record& record) {
      return record.name == folder_ + std::string(name);
    });
  }

  void Add(std::string_view name, std::string_view text) {
    Record record{.name = folder_ + std::string(name)};
    record.stored = record.size = text.size();
    record.crc32 = Crc32(0, std::as_bytes(std::span(text)));
    std::vector<std::byte> bytes = Place(&record);
    const auto payload = std::as_bytes(std::span(text));
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    made_.emplace_back(record.offset, std::move(bytes));
    records_.push_back(std::move(record));
  }

  std::vector<std::byte> Place(Record* record) {
    record->offset = end_;
    std::vector<std::byte> header = LocalHeaderOf(record);
    end_ += header.size() + record->stored;
    return header;
  }

  Status AddMissingStorages() {
    const auto pickled =
        std::ranges::find(records_, folder_ + "data.pkl", &Record::name);
    if (pickled == records_.end()) return Status();
    unknown_from_.reset();  // The pickle names all storages.
    // Read it through a directory of the complete records.
    HAULWAY_ASSIGN(const auto whole, Finish());
    ArchiveOptions lenient;
    lenient.strictness = Strictness::kLenient;
    lenient.limits = options_.limits;
    lenient.limits.max_inflate_ratio =
        options_.limits.max_metadata_inflate_ratio;
    HAULWAY_ASSIGN(const auto archive, ArchiveReader::Open(whole, lenient));
    HAULWAY_ASSIGN(const Buffer bytes, archive->Read("data.pkl"));
    TreeArena arena;
    PickleOptions pickle;
    const GlobalTable table(options_.allowed_globals);
    pickle.globals = &table;
    pickle.limits = options_.limits;
    pickle.keep_opaque = true;
    HAULWAY_ASSIGN(const PickleResult parsed,
                   ParsePickle(bytes.bytes(), arena, pickle));
    std::map<std::string, uint64_t> sizes;
    FindStorages(parsed.root, &arena, &sizes);
    std::set<std::string_view> there;
    for (const Record& record : records_) there.insert(record.name);
    std::vector<Record> missing;
    uint64_t all = end_;
    for (const auto& [key, size] : sizes) {
      if (!CheckedAdd(all, size, &all) || all > kPadding) {
        return Status(Code::kCorrupt, "storages are larger than any file");
      }
      Record record{.name = fmt::format("{}data/{}", folder_, key)};
      if (there.contains(record.name)) continue;
      HAULWAY_TRY(zip::CheckName(record.name));
      record.stored = record.size = size;
      missing.push_back(std::move(record));
    }
    for (Record& record : missing) {
      made_.emplace_back(end_, std::vector<std::byte>());
      made_.back().second = Place(&record);
      records_.push_back(std::move(record));
    }
    return Status();
  }

  Result<std::shared_ptr<const ByteSource>> Finish() {
    auto padded = std::make_shared<PaddedSource>(source_, end_);
    for (const auto& [offset, bytes] : made_) padded->Put(offset, bytes);
    padded->Put(end_, DirectoryOf(records_, end_));
    return std::shared_ptr<const ByteSource>(std::move(padded));
  }

  const std::shared_ptr<const ByteSource> source_;
  const OpenOptions& options_;
  std::vector<Record> records_;
  std::string folder_;
  std::optional<uint64_t> unknown_from_;
  // End of all bytes, including the made-up ones.
  uint64_t end_ = source_->size();
  std::vector<std::pair<uint64_t, std::vector<std::byte>>> made_;
};

Result<std::shared_ptr<const ByteSource>> Padded(
    std::shared_ptr<const ByteSource> source, std::span<const std::byte> head,
    const OpenOptions& options, std::optional<uint64_t>* unknown_from) {
  if (Get<uint32_t>(head, 0) == kHeaderSignature) {
    ZipSalvage zip(std::move(source), options);
    HAULWAY_ASSIGN(auto padded, zip.Run());
    *unknown_from = zip.unknown_from();
    return padded;
  }
  for (const FormatEntry& format : Formats()) {
    if (format.detect == nullptr || !format.detect(head)) continue;
    if (format.whole_bytes == nullptr) continue;
    HAULWAY_ASSIGN(uint64_t size, format.whole_bytes(*source, options.limits));
    size = std::min(size, source->size() + kPadding);
    return std::shared_ptr<const ByteSource>(
        std::make_shared<const PaddedSource>(std::move(source), size));
  }
  return Status(Code::kUnsupported,
                "files of this format cannot be read in parts");
}

}  // namespace

Result<Salvaged> Salvage(std::shared_ptr<const ByteSource> source,
                         const OpenOptions& options) {
  Salvaged salvaged;
  salvaged.bytes = source->size();
  OpenOptions open = options;
  open.strictness = Strictness::kLenient;
  // All metadata must be in the existing bytes, however long the source claims
  // to be.
  ParseLimits& limits = open.limits;
  limits.max_directory_bytes =
      std::min(limits.max_directory_bytes, salvaged.bytes + kMostMadeUp);
  limits.max_tensors = std::min(limits.max_tensors, salvaged.bytes);
  std::vector<std::byte> head(std::min<uint64_t>(kHeadBytes, source->size()));
  HAULWAY_TRY(source->ReadAt(0, head));
  if (safetensors::IsSafetensors(head)) {
    std::vector<safetensors::WrongEntry> wrong;
    const auto padded = std::make_shared<const PaddedSource>(
        std::move(source), salvaged.bytes + kPadding);
    HAULWAY_ASSIGN(auto reader, safetensors::OpenDamaged(padded, salvaged.bytes,
                                                         open, &wrong));
    salvaged.checkpoint = std::make_shared<Checkpoint>(std::move(reader));
    for (safetensors::WrongEntry& one : wrong) {
      if (one.is_metadata) {
        salvaged.left_out.push_back({std::move(one.name), std::move(one.why)});
      } else {
        salvaged.wrong.push_back({std::move(one.name), std::move(one.why)});
      }
    }
  } else {
    HAULWAY_ASSIGN(auto padded, Padded(std::move(source), head, options,
                                       &salvaged.unknown_from));
    HAULWAY_ASSIGN(salvaged.checkpoint,
                   Checkpoint::Open(std::move(padded), open));
  }
  // If no storage is complete, the metadata may be zeros too.
  const auto& storages = salvaged.checkpoint->index().storages;
  if (std::ranges::all_of(storages, [&](const StorageInfo& storage) {
        return storage.frame_end > salvaged.bytes;
      })) {
    return Status(Code::kTruncated, "no tensor is whole");
  }
  return salvaged;
}

}  // namespace haulway::convert
