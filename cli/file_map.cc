// Design: the index has the places of storages and their frames; an archive
// lists its other members. The bytes between these are a header, a hole or
// another structure of the format, distinguished by their place and by whether
// they are zeros. So this code knows no format, except that some are archives.
//
// The page cache is queried before the index is read, because reading fills the
// cache. It is queried per cell, with as many cells as a screen shows.
// Alternative not taken: a bit per page would be most of the output for a large
// file.
//
// For the page, rows become columns: a column of equal values is a single
// value, offsets are differences, names state the length of the prefix shared
// with the previous name, and tensors with the same dtype and shape share a
// row. 100,000 tensors take 4 MB; an object per tensor would take 25.

#include "file_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "command.h"
#include "haulway/archive.h"
#include "haulway/dtype.h"

namespace haulway::cli {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kCells = 2048;
constexpr uint64_t kLooked = 64 * kKiB;
// Size of a zip64 data descriptor, which may follow a member.
constexpr uint64_t kDescriptor = 24;

std::string_view NameOf(MapRange::Kind kind) {
  switch (kind) {
    case MapRange::Kind::kHeader:
      return "header";
    case MapRange::Kind::kRecord:
      return "record";
    case MapRange::Kind::kStructure:
      return "structure";
    default:
      return "hole";
  }
}

std::string_view NameOf(Encoding encoding) {
  switch (encoding) {
    case Encoding::kDeflate:
      return "deflate";
    case Encoding::kEncrypted:
      return "encrypted";
    case Encoding::kZeros:
      return "zeros";
    case Encoding::kDelta:
      return "delta";
    default:
      return "raw";
  }
}

// Returns the files that the source consists of: one, or the index's parts.
std::vector<ByteRange> FilesOf(const CheckpointIndex& index, uint64_t bytes) {
  std::vector<ByteRange> files;
  for (const Part& part : index.parts) {
    files.push_back({part.offset, part.bytes});
  }
  if (files.empty()) files.push_back({0, bytes});
  return files;
}

void LookAtCache(const ByteSource& source, FileMap* map) {
  map->cached.clear();
  if (!source.Look({}).local_file) return;
  const uint64_t bytes = source.size();
  map->cell_bytes =
      std::max(kPage, (bytes / kCells + kPage - 1) / kPage * kPage);
  for (uint64_t at = 0; at < bytes; at += map->cell_bytes) {
    const ByteRange cell{at, std::min(map->cell_bytes, bytes - at)};
    const double share = source.Look({&cell, 1}).resident;
    // 0 and 100 % are shown only if nothing or everything is cached.
    const double percent = share <= 0   ? 0
                           : share >= 1 ? 100
                                        : std::clamp(100 * share, 1.0, 99.0);
    map->cached.push_back(static_cast<uint8_t>(percent));
  }
}

// Returns the members of an archive that are not storages; none if the file is
// not an archive.
std::vector<MapRange> RecordsOf(const std::shared_ptr<const ByteSource>& source,
                                const ByteRange& file,
                                const OpenOptions& options,
                                const std::vector<MapRange>& storages) {
  std::vector<MapRange> records;
  auto slice = MakeSliceSource(source, file.offset, file.length);
  if (!slice.ok()) return records;
  const auto archive = ArchiveReader::Open(
      *std::move(slice),
      {.strictness = options.strictness, .limits = options.limits});
  if (!archive.ok()) return records;
  for (const RecordInfo& record : (*archive)->records()) {
    const uint64_t begin = file.offset + record.header_offset;
    const auto at =
        std::ranges::lower_bound(storages, begin, {}, &MapRange::begin);
    if (at != storages.end() && at->begin == begin) continue;
    const auto data = (*archive)->DataOffset(record.name);
    if (!data.ok()) continue;
    records.push_back({MapRange::Kind::kRecord, begin,
                       file.offset + *data + record.compressed_size,
                       std::string(record.name)});
  }
  return records;
}

Result<bool> IsZeros(const ByteSource& source, uint64_t begin, uint64_t end) {
  std::vector<std::byte> bytes;
  const auto look = [&](uint64_t from, uint64_t to) -> Result<bool> {
    bytes.resize(to - from);
    HAULWAY_TRY(source.ReadAt(from, bytes));
    return std::ranges::all_of(bytes,
                               [](std::byte b) { return b == std::byte{0}; });
  };
  const uint64_t first = std::min(end, begin + kLooked);
  HAULWAY_ASSIGN(const bool begins, look(begin, first));
  if (!begins || first == end) return begins;
  return look(std::max(first, end - kLooked), end);
}

// Adds the ranges of a file that are not in a storage.
Status AddRanges(const std::shared_ptr<const ByteSource>& source,
                 const ByteRange& file, const OpenOptions& options,
                 const std::vector<MapRange>& storages,
                 std::vector<MapRange>* out) {
  std::vector<MapRange> known = RecordsOf(source, file, options, storages);
  std::ranges::copy_if(storages, std::back_inserter(known),
                       [&](const MapRange& one) {
                         return one.begin >= file.offset &&
                                one.begin - file.offset < file.length;
                       });
  std::ranges::stable_sort(known, {}, &MapRange::begin);
  const uint64_t end = file.offset + file.length;
  known.push_back({MapRange::Kind::kHole, end, end});
  // On a server, every check for zeros would be a request.
  const bool looks = !source->Look({}).is_server();
  uint64_t at = file.offset;
  for (MapRange& one : known) {
    if (one.begin > at) {
      MapRange gap{MapRange::Kind::kStructure, at, one.begin};
      const bool after_record = !out->empty() && out->back().end == at &&
                                out->back().kind == MapRange::Kind::kRecord;
      if (after_record && one.begin - at <= kDescriptor) {
        out->back().end = one.begin;
      } else if (at == file.offset) {
        gap.kind = MapRange::Kind::kHeader;
        out->push_back(std::move(gap));
      } else {
        bool zeros = false;
        if (looks) {
          HAULWAY_ASSIGN(zeros, IsZeros(*source, at, one.begin));
        }
        if (zeros) gap.kind = MapRange::Kind::kHole;
        out->push_back(std::move(gap));
      }
    }
    at = std::max(at, one.end);
    if (one.kind == MapRange::Kind::kRecord) out->push_back(std::move(one));
  }
  return Status();
}

// Reads the digests in the frames of payloads. A digest that cannot be read
// without a key is left out.
void ReadDigests(FileMap* map) {
  const CheckpointIndex& index = map->checkpoint->index();
  const FormatReader& reader = map->checkpoint->reader();
  for (size_t i = 0; i < index.storages.size(); ++i) {
    map->crc32[i] = index.storages[i].crc32;
  }
  const ByteSource& source = map->checkpoint->source();
  if (!reader.has_digests() || source.Look({}).is_server()) return;
  std::vector<std::byte> before, after;
  for (uint32_t i = 0; i < index.storages.size(); ++i) {
    const StorageInfo& storage = index.storages[i];
    const uint64_t end = storage.offset + storage.stored_bytes;
    before.resize(storage.offset - storage.frame_offset);
    after.resize(storage.frame_end - end);
    if (!source.ReadAt(storage.frame_offset, before).ok() ||
        !source.ReadAt(end, after).ok()) {
      continue;
    }
    const auto digests = reader.Digests(i, before, after);
    if (!digests.ok() || digests->empty()) continue;
    map->sha256[i] = digests->front().sha256;
    if (!map->crc32[i].has_value()) map->crc32[i] = digests->front().crc32;
  }
}

// The byte range of a tensor's elements in its storage, as in memory.
struct Reach {
  uint64_t begin = 0;
  uint64_t bytes = 0;
};
Reach ReachOf(const CheckpointIndex& index, const TensorInfo& tensor) {
  if (tensor.storage == kNoStorage || tensor.kind == TensorKind::kMeta ||
      tensor.nbytes == 0) {
    return {};
  }
  const uint64_t item = ItemBytes(tensor.dtype);
  const uint64_t all = index.storages[tensor.storage].nbytes;
  const uint64_t begin = std::min(all, tensor.storage_offset * item);
  uint64_t last = 0;
  bool is_dense = true;
  uint64_t next = 1;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    if (i >= tensor.strides.size()) continue;
    const auto size = static_cast<uint64_t>(tensor.shape[i]);
    const auto stride = static_cast<uint64_t>(tensor.strides[i]);
    last += (size - 1) * stride;
    is_dense = is_dense && (size == 1 || stride == next);
    next *= size;
  }
  const uint64_t bytes = is_dense ? tensor.nbytes : (last + 1) * item;
  return {begin, std::min(bytes, all - begin)};
}

// Returns the largest alignment that an element in the storage needs.
std::vector<uint64_t> Alignments(const CheckpointIndex& index) {
  std::vector<uint64_t> units(index.storages.size(), 1);
  for (const TensorInfo& tensor : index.tensors) {
    if (tensor.storage == kNoStorage) continue;
    uint64_t& unit = units[tensor.storage];
    unit = std::max<uint64_t>(unit, Describe(tensor.dtype).swap_bytes);
  }
  return units;
}

std::string NoteOn(const TensorInfo& tensor, const Reach& reach) {
  if (tensor.kind == TensorKind::kMeta) return "meta: a shape without data";
  std::string note;
  const auto add = [&note](std::string_view text) {
    note += note.empty() ? "" : ", ";
    note += text;
  };
  if (tensor.kind == TensorKind::kStorage) add("a storage in its own right");
  if (reach.bytes != tensor.nbytes) {
    add(fmt::format("strides {}", Shape(tensor.strides)));
  }
  if (tensor.conjugate) add("to be conjugated");
  if (tensor.negative) add("to be negated");
  return note;
}

// --- Columns.

template <class Value>
void AddValue(const Value& value, Json* json) {
  if constexpr (std::is_convertible_v<Value, std::string_view>) {
    json->Text(value);
  } else if constexpr (std::is_same_v<Value, int64_t>) {
    json->Raw(std::to_string(value));
  } else {
    json->Value(value);
  }
}

template <class Value>
void AddColumn(std::string_view name, const std::vector<Value>& values,
               Json* json) {
  json->Key(name);
  const bool is_one =
      !values.empty() && std::ranges::all_of(values, [&](const Value& value) {
        return value == values.front();
      });
  if (is_one) return AddValue(values.front(), json);
  json->Begin('[');
  for (const Value& value : values) AddValue(value, json);
  json->End(']');
}

// Returns the length of the common prefix of two names, counting only ASCII,
// whose bytes are characters in JavaScript too.
size_t InCommon(std::string_view a, std::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  size_t i = 0;
  while (i < most && a[i] == b[i] && static_cast<uint8_t>(a[i]) < 0x80) ++i;
  return i;
}

std::string Base64(std::span<const std::byte> bytes) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t k = 0; k < 3; ++k) {
      const bool is_there = i + k < bytes.size();
      three =
          three << 8 | (is_there ? std::to_integer<uint32_t>(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      const bool is_there = i + k <= bytes.size();
      out += is_there ? kLetters[three >> (18 - 6 * k) & 63] : '=';
    }
  }
  return out;
}

void PackStorages(const FileMap& map, Json* json) {
  const CheckpointIndex& index = map.checkpoint->index();
  const std::vector<uint64_t> alignments = Alignments(index);
  // A storage named like its first tensor does not need its own name.
  std::vector<std::string_view> first(index.storages.size());
  for (const Entry& entry : index.entries) {
    const uint32_t row = index.tensors[entry.tensor].storage;
    if (row != kNoStorage && first[row].empty()) first[row] = entry.name;
  }
  std::vector<int64_t> gap, stored, before, after, unit;
  std::vector<std::optional<uint64_t>> memory, crc32;
  std::vector<std::string_view> key, encoding;
  std::vector<std::byte> digests;
  uint64_t at = 0;
  for (const uint32_t row : map.places) {
    const StorageInfo& storage = index.storages[row];
    const uint64_t end = storage.offset + storage.stored_bytes;
    gap.push_back(static_cast<int64_t>(storage.frame_offset - at));
    before.push_back(
        static_cast<int64_t>(storage.offset - storage.frame_offset));
    stored.push_back(static_cast<int64_t>(storage.stored_bytes));
    after.push_back(static_cast<int64_t>(storage.frame_end - end));
    at = storage.frame_end;
    unit.push_back(static_cast<int64_t>(alignments[row]));
    memory.push_back(storage.nbytes == storage.stored_bytes
                         ? std::nullopt
                         : std::optional(storage.nbytes));
    crc32.push_back(map.crc32[row]);
    key.push_back(storage.key == first[row] ? "" : storage.key);
    encoding.push_back(NameOf(storage.encoding));
    const auto digest = map.sha256[row].value_or(std::array<std::byte, 32>{});
    digests.insert(digests.end(), digest.begin(), digest.end());
  }
  json->Key("storages").Begin('{').Key("count").Number(map.places.size());
  AddColumn("gap", gap, json);
  AddColumn("before", before, json);
  AddColumn("stored", stored, json);
  AddColumn("after", after, json);
  AddColumn("memory", memory, json);
  AddColumn("encoding", encoding, json);
  AddColumn("unit", unit, json);
  AddColumn("crc32", crc32, json);
  AddColumn("key", key, json);
  if (std::ranges::any_of(map.sha256,
                          [](const auto& one) { return one.has_value(); })) {
    json->Key("sha256").Text(Base64(digests));
  }
  json->End('}');
}

void PackTensors(const FileMap& map, Json* json) {
  const CheckpointIndex& index = map.checkpoint->index();
  std::vector<int64_t> place(index.storages.size());
  for (size_t i = 0; i < map.places.size(); ++i) {
    place[map.places[i]] = static_cast<int64_t>(i);
  }
  std::vector<int64_t> kept, kind, storage, offset;
  std::vector<std::string_view> rest;
  std::map<std::string, int64_t> rows;
  std::vector<std::string_view> kinds;
  std::string_view last_name;
  int64_t last_place = -1;
  for (const Entry& entry : index.entries) {
    const TensorInfo& tensor = index.tensors[entry.tensor];
    const size_t common = InCommon(last_name, entry.name);
    kept.push_back(static_cast<int64_t>(common));
    rest.push_back(entry.name.substr(common));
    last_name = entry.name;
    // A tensor without a storage refers to the place after the last one.
    const int64_t own = tensor.storage == kNoStorage
                            ? static_cast<int64_t>(map.places.size())
                            : place[tensor.storage];
    storage.push_back(own - last_place);
    last_place = own;
    const Reach reach = ReachOf(index, tensor);
    offset.push_back(static_cast<int64_t>(reach.begin));
    Json row;
    row.Begin('[').Text(Name(tensor.dtype));
    row.Numbers(ElementShape(tensor.dtype, tensor.shape));
    row.Number(tensor.nbytes).Number(reach.bytes);
    row.Text(NoteOn(tensor, reach)).End(']');
    const auto [at, is_new] =
        rows.emplace(row.text(), static_cast<int64_t>(rows.size()));
    if (is_new) kinds.push_back(at->first);
    kind.push_back(at->second);
  }
  json->Key("tensors").Begin('{').Key("count").Number(index.entries.size());
  json->Key("kinds").Begin('[');
  for (const std::string_view row : kinds) json->Raw(row);
  json->End(']');
  AddColumn("kept", kept, json);
  AddColumn("rest", rest, json);
  AddColumn("kind", kind, json);
  AddColumn("storage", storage, json);
  AddColumn("offset", offset, json);
  json->End('}');
}

void AddCache(const FileMap& map, std::string_view cell, Json* json) {
  json->Key("cache");
  if (map.cached.empty()) {
    json->Raw("null");
    return;
  }
  const std::vector<int64_t> percent(map.cached.begin(), map.cached.end());
  json->Begin('{').Key(cell).Number(map.cell_bytes);
  json->Key("percent").Numbers(percent).End('}');
}

void AddFacts(const CheckpointIndex& index, Json* json) {
  for (const Fact& fact : index.facts) {
    json->Key(fact.name).Raw(FactText(fact.value, true));
  }
}

}  // namespace

Result<FileMap> MakeFileMap(std::shared_ptr<const ByteSource> source,
                            const OpenOptions& options) {
  FileMap map;
  LookAtCache(*source, &map);
  OpenOptions open = options;
  open.check_frames = true;
  HAULWAY_ASSIGN(map.checkpoint, OpenCheckpoint(std::move(source), open));
  const CheckpointIndex& index = map.checkpoint->index();
  const auto& whole = map.checkpoint->reader().source();
  map.bytes = whole->size();
  if (!index.parts.empty()) LookAtCache(*whole, &map);

  map.crc32.resize(index.storages.size());
  map.sha256.resize(index.storages.size());
  ReadDigests(&map);

  map.places.resize(index.storages.size());
  std::iota(map.places.begin(), map.places.end(), 0u);
  std::ranges::stable_sort(map.places, {}, [&](uint32_t row) {
    return index.storages[row].frame_offset;
  });
  std::vector<MapRange> storages;
  for (const uint32_t row : map.places) {
    const StorageInfo& storage = index.storages[row];
    if (storage.frame_end == storage.frame_offset) continue;
    storages.push_back(
        {MapRange::Kind::kHole, storage.frame_offset, storage.frame_end});
  }
  for (const ByteRange& file : FilesOf(index, map.bytes)) {
    HAULWAY_TRY(AddRanges(whole, file, open, storages, &map.ranges));
  }
  return map;
}

void AddFileMap(const FileMap& map, Json* json) {
  const CheckpointIndex& index = map.checkpoint->index();
  const std::vector<uint64_t> alignments = Alignments(index);
  json->Key("format").Text(Name(index.format));
  json->Key("bytes").Number(map.bytes).Key("container").Begin('{');
  AddFacts(index, json);
  json->End('}').Key("parts").Begin('[');
  for (const Part& part : index.parts) {
    json->Begin('{').Key("name").Text(part.name);
    json->Key("offset").Number(part.offset);
    json->Key("bytes").Number(part.bytes).End('}');
  }
  json->End(']').Key("storages").Begin('[');
  for (size_t i = 0; i < index.storages.size(); ++i) {
    const StorageInfo& storage = index.storages[i];
    json->Begin('{').Key("key").Text(storage.key);
    json->Key("offset").Number(storage.offset);
    json->Key("stored_bytes").Number(storage.stored_bytes);
    json->Key("nbytes").Number(storage.nbytes);
    json->Key("frame_offset").Number(storage.frame_offset);
    json->Key("frame_end").Number(storage.frame_end);
    json->Key("encoding").Text(NameOf(storage.encoding));
    json->Key("wants_alignment").Number(alignments[i]).Key("crc32");
    map.crc32[i].has_value() ? json->Text(fmt::format("{:08x}", *map.crc32[i]))
                             : json->Raw("null");
    json->Key("sha256");
    map.sha256[i].has_value() ? json->Text(Hex(*map.sha256[i]))
                              : json->Raw("null");
    json->End('}');
  }
  json->End(']').Key("tensors").Begin('[');
  for (const Entry& entry : index.entries) {
    const TensorInfo& tensor = index.tensors[entry.tensor];
    const Reach reach = ReachOf(index, tensor);
    json->Begin('{').Key("name").Text(entry.name);
    json->Key("dtype").Text(Name(tensor.dtype));
    json->Key("shape").Numbers(ElementShape(tensor.dtype, tensor.shape));
    json->Key("nbytes").Number(tensor.nbytes).Key("storage");
    tensor.storage == kNoStorage ? json->Raw("null")
                                 : json->Number(tensor.storage);
    json->Key("begin").Number(reach.begin);
    json->Key("reach").Number(reach.bytes).End('}');
  }
  json->End(']').Key("ranges").Begin('[');
  for (const MapRange& range : map.ranges) {
    json->Begin('{').Key("kind").Text(NameOf(range.kind));
    json->Key("offset").Number(range.begin);
    json->Key("bytes").Number(range.end - range.begin);
    json->Key("name").Text(range.name).End('}');
  }
  json->End(']');
  AddCache(map, "cell_bytes", json);
}

std::string PackFileMap(const FileMap& map, const std::string& file) {
  const CheckpointIndex& index = map.checkpoint->index();
  Json json;
  json.Begin('{').Key("file").Text(file);
  json.Key("made").Text("haulway " HAULWAY_VERSION);
  json.Key("format").Text(Name(index.format));
  json.Key("bytes").Number(map.bytes).Key("facts").Begin('[');
  for (const Fact& fact : index.facts) {
    json.Begin('[').Text(fact.name).Raw(FactText(fact.value, true)).End(']');
  }
  json.End(']').Key("parts").Begin('[');
  for (const Part& part : index.parts) {
    json.Begin('[').Text(part.name).Number(part.offset).End(']');
  }
  json.End(']').Key("ranges").Begin('[');
  for (const MapRange& range : map.ranges) {
    json.Begin('[').Text(NameOf(range.kind)).Number(range.begin);
    json.Number(range.end - range.begin).Text(range.name).End(']');
  }
  json.End(']');
  PackStorages(map, &json);
  PackTensors(map, &json);
  AddCache(map, "cell", &json);
  json.End('}');
  return json.text();
}

}  // namespace haulway::cli
