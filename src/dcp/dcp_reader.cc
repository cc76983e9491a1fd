// Design: the metadata lists the tensors and their chunks, so the index is
// built without reading a data file. ChunkSource assembles the tensors when
// they are read. Objects are small archives of torch.save(); its reader reads
// them on opening, and the planner's paths place them in the state dict. The
// storages of tensors within objects follow those of the directory.
//
// Safetensors data files have no `.metadata`. Their headers, which other code
// reads, have the same facts, and chunks are not wrapped in archives.
//
// File names come only from the metadata, so no server is asked for a listing.
// The files of ranks that saved without a coordinator are counted up until one
// is missing.

#include "dcp/dcp_reader.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/digest.h"
#include "base/is_of_source.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "dcp/dcp_archive.h"
#include "dcp/dcp_directory.h"
#include "dcp/dcp_layers.h"
#include "dcp/dcp_tree.h"
#include "format/flat_reader.h"
#include "haulway/dcp.h"
#include "torch/torch_reader.h"

namespace haulway::dcp {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;

constexpr std::string_view kExtraFile = "meta.pt";
constexpr std::string_view kExtraName = "meta";
constexpr std::string_view kMegatronFile = "metadata.json";
constexpr size_t kMostRanks = 1'000'000;
// Prefix of DCP_SHARDING_INFO and similar keys in the headers of safetensors
// files.
constexpr std::string_view kPlacePrefix = "DCP_";
constexpr uint64_t kDigestBytes = 1 * kMiB;

// Returns the number in `.../__7.metadata`.
std::optional<uint64_t> RankOf(std::string_view name) {
  name.remove_prefix(name.rfind('/') + 1);
  if (!name.starts_with("__") || !name.ends_with(".metadata")) {
    return std::nullopt;
  }
  name.remove_prefix(2);
  name.remove_suffix(std::string_view(".metadata").size());
  uint64_t rank = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data(), end, rank);
  if (error != std::errc() || stop != end) return std::nullopt;
  return rank;
}

// Returns the extensions that transformed items, each once.
std::vector<std::string> TransformsOf(const Metadata& metadata) {
  std::vector<std::string> names;
  const auto add = [&](const StoredItem& item) {
    for (const std::string_view name : item.transforms) {
      if (std::ranges::find(names, name) == names.end()) {
        names.emplace_back(name);
      }
    }
  };
  for (const Chunk& chunk : metadata.chunks) add(chunk.item);
  for (const StoredObject& object : metadata.objects) add(object.item);
  return names;
}

// Returns the chunks whose data, one after another, is the tensor's data;
// nullopt if there is no such order.
std::optional<std::vector<uint32_t>> AsSequence(const Metadata& metadata,
                                                const StoredTensor& tensor) {
  std::vector<uint32_t> rows;
  for (uint32_t c = 0; c < tensor.chunk_count; ++c) {
    const uint32_t row = tensor.first_chunk + c;
    if (BytesOf(tensor, metadata.chunks[row]) != 0) rows.push_back(row);
  }
  // The tensor is cut along one dimension, and all dimensions before it have
  // size 1.
  size_t cut = 0;
  while (cut < tensor.shape.size() && tensor.shape[cut] == 1) ++cut;
  for (const uint32_t row : rows) {
    for (size_t d = cut + 1; d < tensor.shape.size(); ++d) {
      if (metadata.chunks[row].sizes[d] != tensor.shape[d]) {
        return std::nullopt;
      }
    }
  }
  if (cut < tensor.shape.size()) {
    std::ranges::sort(rows, {}, [&](uint32_t row) {
      return metadata.chunks[row].offsets[cut];
    });
  }
  return rows;
}

}  // namespace

Result<Metadata> DirectoryReader::ReadOne(const ByteSource& file) {
  HAULWAY_ASSIGN(auto read, dcp::ReadMetadata(file, options_));
  Metadata metadata = std::move(read->metadata);
  files_read_.push_back(std::move(read));
  return metadata;
}

Status DirectoryReader::ReadMetadata() {
  const auto rank = RankOf(beside_->name());
  if (!rank.has_value()) {
    HAULWAY_ASSIGN(metadata_, ReadOne(*beside_));
    return Status();
  }
  std::vector<Metadata> all;
  for (; all.size() < kMostRanks; ++ranks_) {
    const std::string name = fmt::format("__{}.metadata", ranks_);
    const auto file = ranks_ == *rank ? Result<SourcePtr>(beside_)
                                      : beside_->OpenNeighbour(name);
    if (!file.ok() && file.status().code() == Code::kNotFound &&
        ranks_ > *rank) {
      break;
    }
    if (!file.ok()) return file.status().In(Quote(name));
    auto one = ReadOne(**file);
    if (!one.ok()) return std::move(one).status().In(Quote(name));
    all.push_back(*std::move(one));
  }
  HAULWAY_ASSIGN(metadata_, JoinRanks(std::move(all)));
  return Status();
}

Status DirectoryReader::CheckFiles() const {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder =
      fs::canonical(fs::path(beside_->name()).parent_path().empty()
                        ? fs::path(".")
                        : fs::path(beside_->name()).parent_path(),
                    error);
  std::vector<uint64_t> sizes(files_->count());
  for (uint32_t i = 0; i < files_->count(); ++i) {
    HAULWAY_ASSIGN(const SourcePtr file, files_->Open(i));
    sizes[i] = file->size();
    if (error || options_.strictness != Strictness::kStrict) continue;
    std::error_code ignored;
    const fs::path path = fs::canonical(fs::path(file->name()), ignored);
    if (ignored) continue;
    const auto [end, rest] =
        std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
    if (end != folder.end()) {
      return Status(Code::kCorrupt,
                    "data file is a link that leads out of the directory")
          .In(fmt::format("data file {}", Quote(files_->name(i))));
    }
  }
  for (const StoredTensor& tensor : metadata_.tensors) {
    for (const Chunk& chunk : metadata_.ChunksOf(tensor)) {
      const StoredItem& item = chunk.item;
      if (item.file == kNoFile ||
          RangeFits(item.offset, item.length, sizes[item.file])) {
        continue;
      }
      return Status(Code::kTruncated,
                    fmt::format("{} ends past its file: expected {} bytes from "
                                "{} on, the file has {}",
                                dcp::PlaceOf(chunk), item.length, item.offset,
                                sizes[item.file]))
          .At(item.offset)
          .In(Quote(tensor.name))
          .In(fmt::format("data file {}", Quote(files_->name(item.file))));
    }
  }
  return Status();
}

Status DirectoryReader::OpenExtra() {
  const auto is_extra = [&](const StoredEntry& entry) {
    const std::string_view name = metadata_.NameOf(entry);
    return name == kExtraName ||
           name.starts_with(fmt::format("{}.", kExtraName));
  };
  if (std::ranges::any_of(metadata_.entries, is_extra)) return Status();
  const auto file = beside_->OpenNeighbour(kExtraFile);
  if (!file.ok() && (file.status().code() == Code::kNotFound ||
                     file.status().code() == Code::kUnsupported)) {
    return Status();
  }
  if (!file.ok()) return file.status().In(Quote(kExtraFile));
  const StoredItem item{files_->Add(kExtraFile, *file), 0, (*file)->size()};
  metadata_.entries.push_back(
      {false, static_cast<uint32_t>(metadata_.objects.size()), {}});
  metadata_.objects.push_back({kExtraName, item});
  return Status();
}

Status DirectoryReader::Init(std::shared_ptr<const MetadataFile> read) {
  index_.format = Format::kTorchDcp;
  if (read != nullptr) {
    metadata_ = read->metadata;
    files_read_.push_back(std::move(read));
  } else {
    HAULWAY_TRY(ReadMetadata());
    HAULWAY_TRY(CheckLayout(metadata_));
  }
  if (options_.split_layers) {
    HAULWAY_ASSIGN(is_layer_, SplitLayers(&metadata_, &arena_));
  }
  files_.emplace(beside_, metadata_.files);
  if (!IsServer(*beside_)) {
    HAULWAY_TRY(CheckFiles());
    HAULWAY_TRY(OpenExtra());
  }
  std::vector<std::string> transforms = TransformsOf(metadata_);
  HAULWAY_ASSIGN(objects_, OpenObjects(&*files_, options_, &metadata_));
  HAULWAY_TRY(JoinChunks());
  for (OpenedObject& object : objects_) HAULWAY_TRY(AddObject(&object));
  HAULWAY_TRY(BuildRoot());
  index_.facts.push_back({"objects", uint64_t{metadata_.objects.size()}});
  if (ranks_ != 0) index_.facts.push_back({"ranks", ranks_});
  if (!transforms.empty()) {
    index_.facts.push_back({"transforms", FactArray(std::move(transforms))});
  }
  return ReadMegatron();
}

// Adds the facts in Megatron's `metadata.json`, if there is one.
Status DirectoryReader::ReadMegatron() {
  constexpr uint64_t kLongest = 64 * kKiB;
  if (IsServer(*beside_) && !metadata_.has_plans) return Status();
  const auto file = beside_->OpenNeighbour(kMegatronFile);
  if (!file.ok() || (*file)->size() > kLongest || (*file)->size() == 0) {
    return Status();
  }
  std::string text((*file)->size(), '\0');
  HAULWAY_TRY((*file)->ReadAt(0, std::as_writable_bytes(std::span(text))));
  simdjson::dom::parser parser;
  simdjson::dom::object facts;
  if (parser.parse(text).get_object().get(facts) ||
      facts["sharded_backend"].error() != simdjson::SUCCESS) {
    return Status();
  }
  index_.facts.push_back({"megatron", FactJson{simdjson::minify(facts)}});
  return Status();
}

Status DirectoryReader::InitShards(std::vector<ShardFile> files,
                                   std::unique_ptr<const MetadataFile> read) {
  index_.format = Format::kSafetensorsDcp;
  index_.flat = true;
  shards_ = std::move(files);
  metadata_ = read->metadata;
  files_read_.push_back(std::move(read));
  HAULWAY_TRY(CheckLayout(metadata_));
  files_.emplace(beside_, std::vector<std::string_view>());
  for (const ShardFile& file : shards_) {
    files_->Add(file.name, file.reader->source());
  }
  index_.metadata.emplace();
  for (const ShardFile& file : shards_) AddMetadata(file);
  HAULWAY_TRY(JoinChunks());
  index_.facts.push_back(
      {std::string(kShapesStatedFact), metadata_.states_shapes});
  return Status();
}

// Adds the file's metadata, other than the places of its chunks, that no
// earlier file stated.
void DirectoryReader::AddMetadata(const ShardFile& file) {
  const auto& metadata = file.reader->index().metadata;
  if (!metadata.has_value()) return;
  for (const Fact& fact : *metadata) {
    if (fact.name.starts_with(kPlacePrefix)) continue;
    if (std::ranges::find(*index_.metadata, fact.name, &Fact::name) ==
        index_.metadata->end()) {
      index_.metadata->push_back(fact);
    }
  }
}

// Builds the source and the index of the tensors.
Status DirectoryReader::JoinChunks() {
  chunks_ = std::make_shared<ChunkSource>(metadata_, *files_, options_.limits,
                                          std::string(beside_->name()));
  source_ = chunks_;
  HAULWAY_TRY(AddTensors());
  index_.offsets_computed = true;
  uint64_t chunks = 0;
  for (const Chunk& chunk : metadata_.chunks) {
    if (chunk.item.file != kNoFile) ++chunks;
  }
  index_.facts = {
      {"version", metadata_.version.empty()
                      ? FactValue(std::monostate())
                      : FactValue(std::string(metadata_.version))},
      {"data_files",
       uint64_t{std::max(metadata_.files.size(), shards_.size())}},
      {"chunks", chunks},
  };
  return Status();
}

bool DirectoryReader::IsLayer(uint32_t tensor) const {
  return !is_layer_.empty() && is_layer_[tensor];
}

Status DirectoryReader::AddTensors() {
  const size_t count = metadata_.tensors.size();
  index_.tensors.reserve(count);
  index_.storages.reserve(count);
  index_.entries.reserve(metadata_.entries.size());
  for (uint32_t i = 0; i < count; ++i) {
    const StoredTensor& tensor = metadata_.tensors[i];
    HAULWAY_TRY(AppendTensor({.name = tensor.name,
                              .dtype = tensor.dtype,
                              .shape = tensor.shape.subspan(IsLayer(i) ? 1 : 0),
                              .offset = chunks_->StartOf(i),
                              .nbytes = tensor.nbytes},
                             &index_, &arena_));
    index_.tensors.back().requires_grad = tensor.requires_grad;
    index_.entries.push_back({tensor.name, i});
  }
  return Status();
}

Status DirectoryReader::AddObject(OpenedObject* object) {
  const CheckpointIndex& one = object->reader->index();
  const auto first_tensor = static_cast<uint32_t>(index_.tensors.size());
  const auto first_storage = static_cast<uint32_t>(index_.storages.size());
  first_storages_.push_back(first_storage);
  if (index_.object_status.ok() && !one.object_status.ok()) {
    index_.object_status = Status(one.object_status).In(Quote(object->name));
  }
  ShiftRows(one.root, first_tensor, first_storage);
  if (one.tensors.empty()) return Status();
  AppendRows(one, chunks_->AddItem(object->item), &index_);
  for (const Entry& entry : one.entries) {
    const std::string name =
        entry.name.empty() ? std::string(object->name)
                           : fmt::format("{}.{}", object->name, entry.name);
    const auto is_same = [&](const Entry& other) { return other.name == name; };
    if (std::ranges::any_of(index_.entries, is_same)) {
      return Status(Code::kCorrupt,
                    fmt::format("tensor {} stands twice", Quote(name)));
    }
    index_.entries.push_back({arena_.Copy(name), first_tensor + entry.tensor});
  }
  return Status();
}

Status DirectoryReader::BuildRoot() {
  std::vector<Leaf> leaves;
  leaves.reserve(metadata_.entries.size());
  for (const StoredEntry& entry : metadata_.entries) {
    Leaf& leaf = leaves.emplace_back();
    leaf.name = metadata_.NameOf(entry);
    leaf.path = entry.path;
    if (entry.is_tensor) {
      auto* object = arena_.New<Object>();
      object->tensor = entry.row;
      leaf.value = Value::Of(object);
    } else {
      leaf.value = objects_[entry.row].reader->index().root;
    }
  }
  HAULWAY_ASSIGN(index_.root, BuildStateDict(leaves, &arena_));
  return Status();
}

std::optional<DirectoryReader::InObject> DirectoryReader::ObjectOf(
    uint32_t storage) const {
  if (storage < metadata_.tensors.size()) return std::nullopt;
  const auto after = std::ranges::upper_bound(first_storages_, storage);
  const auto object = static_cast<size_t>(after - first_storages_.begin()) - 1;
  return InObject{*objects_[object].reader, storage - first_storages_[object]};
}

Result<uint32_t> DirectoryReader::StatedCrc32(uint32_t tensor,
                                              uint32_t chunk) const {
  HAULWAY_ASSIGN(const ChunkPlace place, PlaceOf(tensor, chunk));
  const StoredItem& item = metadata_.chunks[chunk].item;
  HAULWAY_ASSIGN(const SourcePtr file, files_->Open(item.file));
  const uint64_t after = place.offset + place.nbytes;
  std::array<std::byte, kDescriptorBytes> bytes;
  const auto descriptor = std::span(bytes).first(
      std::min(kDescriptorBytes, item.offset + item.length - after));
  Status status = file->ReadAt(after, descriptor);
  if (status.ok()) {
    auto crc32 = ParseDescriptor(descriptor, place.nbytes);
    if (crc32.ok()) return crc32;
    status = std::move(crc32).status().At(after);
  }
  return std::move(status)
      .In(dcp::PlaceOf(metadata_.chunks[chunk]))
      .In(fmt::format("data file {}", Quote(files_->name(item.file))));
}

// Returns whether extensions transformed data of a tensor.
bool DirectoryReader::IsTransformed(const StoredTensor& tensor) const {
  return std::ranges::any_of(
      metadata_.ChunksOf(tensor),
      [](const Chunk& chunk) { return !chunk.item.transforms.empty(); });
}

Status DirectoryReader::CheckChunks(uint32_t tensor) const {
  const StoredTensor& stored = metadata_.tensors[tensor];
  std::vector<std::byte> piece;
  for (uint32_t c = 0; c < stored.chunk_count; ++c) {
    const uint32_t row = stored.first_chunk + c;
    if (BytesOf(stored, metadata_.chunks[row]) == 0) continue;
    // Reading a transformed chunk compares its CRC-32.
    if (!metadata_.chunks[row].item.transforms.empty()) continue;
    HAULWAY_ASSIGN(const uint32_t stated, StatedCrc32(tensor, row));
    HAULWAY_ASSIGN(const ChunkPlace place, PlaceOf(tensor, row));
    HAULWAY_ASSIGN(const SourcePtr file, files_->Open(place.file));
    uint32_t crc32 = 0;
    for (uint64_t at = 0; at < place.nbytes; at += piece.size()) {
      piece.resize(std::min(kDigestBytes, place.nbytes - at));
      HAULWAY_TRY(file->ReadAt(place.offset + at, piece));
      crc32 = Crc32(crc32, piece);
    }
    if (crc32 == stated) continue;
    return Status(Code::kMismatch,
                  fmt::format("CRC-32 of the chunk's data differs: expected "
                              "{:08x}, found {:08x}",
                              stated, crc32))
        .At(place.offset)
        .In(dcp::PlaceOf(metadata_.chunks[row]))
        .In(fmt::format("data file {}", Quote(files_->name(place.file))));
  }
  return Status();
}

// Returns the digest of a tensor. If its chunks follow one another, it is
// combined from theirs. Otherwise, or if the data of a chunk is reordered,
// chunks are compared one by one.
Result<std::vector<PayloadDigest>> DirectoryReader::Digests(
    uint32_t storage, std::span<const std::byte> before,
    std::span<const std::byte> after) const {
  std::vector<PayloadDigest> digests;
  if (!metadata_.has_archives) return digests;
  if (const auto place = ObjectOf(storage); place.has_value()) {
    if (!place->reader.has_digests()) return digests;
    return place->reader.Digests(place->row, before, after);
  }
  const StoredTensor& tensor = metadata_.tensors[storage];
  const auto rows = AsSequence(metadata_, tensor);
  bool is_sequence = rows.has_value() && !IsTransformed(tensor);
  uint32_t crc32 = 0;
  for (size_t i = 0; is_sequence && i < rows->size(); ++i) {
    const uint32_t row = (*rows)[i];
    HAULWAY_ASSIGN(const uint32_t stated, StatedCrc32(storage, row));
    crc32 = Crc32Join(crc32, stated, BytesOf(tensor, metadata_.chunks[row]));
    is_sequence = !chunks_->IsReordered(row);
  }
  if (is_sequence) {
    digests.emplace_back().crc32 = crc32;
  } else {
    HAULWAY_TRY(CheckChunks(storage));
  }
  return digests;
}

Result<std::unique_ptr<const FormatReader>> OpenDirectory(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  HAULWAY_ASSIGN(auto reader,
                 DirectoryReader::Open(std::move(source), options));
  return std::unique_ptr<const FormatReader>(std::move(reader));
}

Result<std::unique_ptr<const FormatReader>> OpenShards(
    std::vector<ShardFile> files, std::unique_ptr<const MetadataFile> read,
    const OpenOptions& options) {
  HAULWAY_ASSIGN(auto reader, DirectoryReader::OpenShards(
                                  std::move(files), std::move(read), options));
  return std::unique_ptr<const FormatReader>(std::move(reader));
}

}  // namespace haulway::dcp

namespace haulway {

Result<std::unique_ptr<const dcp::MetadataFile>> ReadDcpMetadata(
    const ByteSource& source, const OpenOptions& options) {
  using Read = Result<std::unique_ptr<const dcp::MetadataFile>>;
  auto read = OrNoMemory([&]() -> Read {
    HAULWAY_ASSIGN(auto file, dcp::ReadMetadata(source, options));
    HAULWAY_TRY(dcp::CheckLayout(file->metadata));
    return std::unique_ptr<const dcp::MetadataFile>(std::move(file));
  });
  if (!read.ok()) return std::move(read).status().Of(source.name());
  return read;
}

Result<std::unique_ptr<const FormatReader>> OpenDcpDirectory(
    std::shared_ptr<const ByteSource> source,
    std::shared_ptr<const dcp::MetadataFile> read, const OpenOptions& options) {
  using Opened = Result<std::unique_ptr<const FormatReader>>;
  const std::string name(source->name());
  if (dcp::RankOf(name).has_value()) {
    return Status(Code::kUnsupported, "the file is of one of several ranks")
        .Of(name);
  }
  auto opened = OrNoMemory([&]() -> Opened {
    HAULWAY_ASSIGN(auto reader,
                   dcp::DirectoryReader::Open(std::move(source), options,
                                              std::move(read)));
    return std::unique_ptr<const FormatReader>(std::move(reader));
  });
  if (!opened.ok()) return std::move(opened).status().Of(name);
  return opened;
}

Result<std::vector<StoredChunk>> ListChunks(const FormatReader& reader) {
  const Format format = reader.index().format;
  if (format != Format::kTorchDcp && format != Format::kSafetensorsDcp) {
    return Status(Code::kInvalidArgument,
                  fmt::format("checkpoint is no directory of "
                              "torch.distributed.checkpoint"));
  }
  const auto& directory = static_cast<const dcp::DirectoryReader&>(reader);
  const dcp::Metadata& metadata = directory.metadata();
  std::vector<StoredChunk> chunks;
  for (uint32_t t = 0; t < metadata.tensors.size(); ++t) {
    const dcp::StoredTensor& tensor = metadata.tensors[t];
    for (uint32_t c = 0; c < tensor.chunk_count; ++c) {
      const uint32_t row = tensor.first_chunk + c;
      const dcp::Chunk& chunk = metadata.chunks[row];
      if (BytesOf(tensor, chunk) == 0) continue;
      HAULWAY_ASSIGN(const dcp::ChunkPlace place, directory.PlaceOf(t, row));
      if (directory.IsReordered(row)) {
        return Status(Code::kUnsupported, "the chunk's data are not row-major")
            .In(dcp::PlaceOf(chunk))
            .In(Quote(tensor.name));
      }
      chunks.push_back({tensor.name, chunk.offsets, chunk.sizes,
                        directory.files().name(place.file), place.offset,
                        place.nbytes});
    }
  }
  return chunks;
}

}  // namespace haulway
