// Design: the pickle machine turns the bytes into a tree in which every class
// of the format is an opaque label. This code walks the tree as the classes
// would be filled: attributes by name, sizes as tuples. It refuses names that
// the machine allows elsewhere, so only the format's own names are accepted.
// Items are looked up by name and offset in one hash table.
//
// Alternative not taken: accept everything that torch.load() accepts. Python
// loads this file with the full pickle machine, and that is the security hole
// to avoid.

#include "dcp/dcp_metadata.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/name_index.h"
#include "base/text.h"
#include "dcp/dcp_item.h"
#include "pickle/pickle_vm.h"

namespace haulway::dcp {

namespace {

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kPlanner = "torch.distributed.checkpoint.planner";
constexpr std::string_view kMegatron =
    "megatron.core.dist_checkpointing.strategies.torch";

// The format's names.
enum class Name : uint8_t {
  kMetadata,
  kIndex,
  kChunk,
  kTensor,
  kBytes,
  kProperties,
  kStorageMeta,
  kMemoryFormat,
  kStorageInfo,
  kSize,
  kGetLayout,
  kGetAttribute,
  kPath,
  kDType,
  kPlan,   // What Megatron keeps of its plan of saving; not read.
  kOther,  // A name that the caller allowed.
};

struct NameRow {
  std::string_view module;
  std::string_view name;
  Name is;
};

constexpr NameRow kNames[] = {
    {kModule, "Metadata", Name::kMetadata},
    {kModule, "MetadataIndex", Name::kIndex},
    {kModule, "ChunkStorageMetadata", Name::kChunk},
    {kModule, "TensorStorageMetadata", Name::kTensor},
    {kModule, "BytesStorageMetadata", Name::kBytes},
    {kModule, "TensorProperties", Name::kProperties},
    {kModule, "StorageMeta", Name::kStorageMeta},
    {kModule, "_MEM_FORMAT_ENCODING", Name::kMemoryFormat},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo",
     Name::kStorageInfo},
    {kPlanner, "SavePlan", Name::kPlan},
    {kPlanner, "WriteItem", Name::kPlan},
    {kPlanner, "WriteItemType", Name::kPlan},
    {kPlanner, "TensorWriteData", Name::kPlan},
    {kMegatron, "MCoreMetadata", Name::kMetadata},
    {kMegatron, "MCoreSavePlan", Name::kPlan},
    {"torch", "Size", Name::kSize},
    {"torch.serialization", "_get_layout", Name::kGetLayout},
    // Python 3.11 pickles an enumeration member as getattr(CLASS, NAME).
    {"builtins", "getattr", Name::kGetAttribute},
    {"pathlib", "PosixPath", Name::kPath},
    {"pathlib", "PurePosixPath", Name::kPath},
    {"pathlib", "WindowsPath", Name::kPath},
    {"pathlib", "PureWindowsPath", Name::kPath},
    {"pathlib._local", "PosixPath", Name::kPath},
    {"pathlib._local", "PurePosixPath", Name::kPath},
    {"pathlib._local", "WindowsPath", Name::kPath},
    {"pathlib._local", "PureWindowsPath", Name::kPath},
};

constexpr std::array<std::string_view, 3> kMemoryFormats = {
    "TORCH_CONTIGUOUS_FORMAT", "TORCH_CHANNELS_LAST", "TORCH_PRESERVE_FORMAT"};

std::optional<Name> FindName(const Global& global) {
  for (const NameRow& row : kNames) {
    if (row.module == global.module && row.name == global.name) return row.is;
  }
  if (KindOf(global) == GlobalKind::kDType && global.module == "torch") {
    return Name::kDType;
  }
  return std::nullopt;
}

// Returns the names that the machine does not allow by default, and those of
// the caller.
std::vector<std::string> NamesToAllow(const OpenOptions& options) {
  std::vector<std::string> names = options.allowed_globals;
  for (const NameRow& row : kNames) {
    names.push_back(fmt::format("{}.{}", row.module, row.name));
  }
  return names;
}

bool IsPathDown(std::string_view path) {
  if (path.find('\0') != path.npos || path.find('\\') != path.npos) {
    return false;
  }
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == path.npos) return true;
    path.remove_prefix(slash + 1);
  }
}

Status Wrong(std::string_view what) { return Status(Code::kCorrupt, what); }

class Walker {
 public:
  Walker(const PickleResult& pickle, const OpenOptions& options,
         TreeArena* arena)
      : pickle_(pickle), limits_(options.limits), arena_(*arena) {
    for (const std::string& name : options.allowed_globals) {
      also_.push_back(name);
    }
  }

  Result<Metadata> Run() {
    HAULWAY_TRY(CheckNames());
    HAULWAY_ASSIGN(const Mapping* fields,
                   FieldsOf(pickle_.root, Name::kMetadata, "Metadata"));
    HAULWAY_TRY(ReadStateDict(fields->Find("state_dict_metadata")));
    HAULWAY_TRY(ReadStorage(fields->Find("storage_data")));
    HAULWAY_TRY(CheckStored());
    HAULWAY_TRY(ReadPaths(fields->Find("planner_data")));
    ReadStorageMeta(fields->Find("storage_meta"));
    metadata_.has_plans = fields->Find("all_local_plans") != nullptr;
    const Value* version = fields->Find("version");
    if (version != nullptr && version->is(Kind::kString)) {
      metadata_.version = version->text();
    }
    return std::move(metadata_);
  }

 private:
  Status CheckNames() {
    for (const GlobalMention& mention : pickle_.mentions) {
      const Global* global = mention.global;
      if (!names_.empty() && Is(global) != nullptr) continue;
      const std::string full =
          fmt::format("{}.{}", global->module, global->name);
      std::optional<Name> name = FindName(*global);
      if (!name.has_value() && std::ranges::find(also_, full) != also_.end()) {
        name = Name::kOther;
      }
      if (!name.has_value()) {
        return Status(Code::kUnsafe,
                      fmt::format("global {} is not allowed", Quote(full)))
            .At(mention.byte);
      }
      names_.push_back({global, *name});
    }
    return Status();
  }

  struct Known {
    const Global* global;
    Name name;
  };

  const Name* Is(const Global* global) const {
    const auto found = std::ranges::find(names_, global, &Known::global);
    return found == names_.end() ? nullptr : &found->name;
  }

  bool IsA(const Value& value, Name name) const {
    if (!value.is(Kind::kObject)) return false;
    const Global* callable = value.object().callable;
    const Name* found = callable == nullptr ? nullptr : Is(callable);
    return found != nullptr && *found == name;
  }

  // Returns an error for a value of the wrong kind, at its byte.
  static Status Not(const Value* value, std::string_view what) {
    Status status = Wrong(fmt::format("{} is not what it must be", what));
    if (value != nullptr && value->is(Kind::kObject)) {
      return std::move(status).At(value->object().byte);
    }
    return status;
  }

  // Returns the attributes of an object that was created empty and then filled.
  Result<const Mapping*> FieldsOf(const Value& value, Name name,
                                  std::string_view what) const {
    if (!IsA(value, name)) return Not(&value, what);
    const Object& object = value.object();
    if (!object.is_new || object.args.sequence().size != 0 ||
        object.extras != nullptr || !object.state.is(Kind::kDict)) {
      return Not(&value, what);
    }
    return &object.state.mapping();
  }

  // Reads a torch.Size of non-negative numbers.
  Result<std::span<const int64_t>> ReadSize(const Value* value,
                                            std::string_view what) {
    if (value == nullptr || !IsA(*value, Name::kSize)) return Not(value, what);
    const Object& object = value->object();
    const auto args = object.args.sequence().items();
    if (object.is_new || args.size() > 1 ||
        (args.size() == 1 && !args[0].is(Kind::kTuple))) {
      return Not(value, what);
    }
    std::span<const Value> items;
    if (args.size() == 1) items = args[0].sequence().items();
    return ReadNumbers(items, *value, what);
  }

  // Reads the non-negative numbers, one a dimension, that are a part of
  // `value`.
  Result<std::span<const int64_t>> ReadNumbers(std::span<const Value> items,
                                               const Value& value,
                                               std::string_view what) {
    if (items.size() > limits_.max_rank) {
      return Status(Code::kLimit,
                    fmt::format("{} of {} dimensions passes max_rank {}", what,
                                items.size(), limits_.max_rank))
          .At(value.object().byte);
    }
    auto* numbers =
        static_cast<int64_t*>(arena_.Allocate(items.size() * sizeof(int64_t)));
    for (size_t i = 0; i < items.size(); ++i) {
      if (!items[i].is(Kind::kInt) || items[i].integer() < 0) {
        return Not(&value, what);
      }
      numbers[i] = items[i].integer();
    }
    return std::span<const int64_t>(numbers, items.size());
  }

  Status CheckCount(uint64_t count) const {
    const uint64_t most = std::min<uint64_t>(limits_.max_tensors, kNoFile);
    if (count <= most) return Status();
    return Status(
        Code::kLimit,
        fmt::format("{} entries and chunks pass max_tensors {}", count, most));
  }

  Status ReadStateDict(const Value* value) {
    if (value == nullptr || !value->is(Kind::kDict)) {
      return Not(value, "state_dict_metadata");
    }
    const auto items = value->mapping().items();
    HAULWAY_TRY(CheckCount(items.size()));
    metadata_.entries.reserve(items.size());
    metadata_.tensors.reserve(items.size());
    metadata_.chunks.reserve(items.size());
    names_of_entries_.Reserve(items.size());
    for (const MappingItem& item : items) {
      if (!item.key.is(Kind::kString) || item.key.text().empty()) {
        return Wrong("name of an entry is no text");
      }
      const std::string_view name = item.key.text();
      if (!IsUtf8(name)) {
        return Wrong(fmt::format("name {} is not UTF-8", Quote(name)));
      }
      Status status = ReadEntry(name, item.value);
      if (!status.ok()) return std::move(status).In(Quote(name));
      names_of_entries_.Add(name,
                            static_cast<uint32_t>(metadata_.entries.size() - 1),
                            NameOfEntry{metadata_});
    }
    return Status();
  }

  struct NameOfEntry {
    const Metadata& metadata;
    std::string_view operator()(uint32_t i) const {
      return metadata.NameOf(metadata.entries[i]);
    }
  };

  Status ReadEntry(std::string_view name, const Value& value) {
    if (IsA(value, Name::kBytes)) {
      metadata_.entries.push_back(
          {false, static_cast<uint32_t>(metadata_.objects.size()), {}});
      metadata_.objects.push_back({name, {}});
      return Status();
    }
    HAULWAY_ASSIGN(const Mapping* fields,
                   FieldsOf(value, Name::kTensor, "entry"));
    StoredTensor tensor;
    tensor.name = name;
    HAULWAY_TRY(ReadProperties(fields->Find("properties"), &tensor));
    HAULWAY_ASSIGN(tensor.shape, ReadSize(fields->Find("size"), "size"));
    tensor.nbytes = ItemBytes(tensor.dtype);
    for (const int64_t size : tensor.shape) {
      if (!CheckedMultiply(tensor.nbytes, static_cast<uint64_t>(size),
                           &tensor.nbytes)) {
        return Wrong("shape is of more bytes than there can be");
      }
    }
    const Value* chunks = fields->Find("chunks");
    if (chunks == nullptr || !chunks->is(Kind::kList)) {
      return Not(chunks, "chunks");
    }
    tensor.first_chunk = static_cast<uint32_t>(metadata_.chunks.size());
    tensor.chunk_count = chunks->sequence().size;
    HAULWAY_TRY(CheckCount(uint64_t{tensor.first_chunk} + tensor.chunk_count));
    for (const Value& chunk : chunks->sequence().items()) {
      HAULWAY_TRY(ReadChunk(chunk, tensor));
    }
    metadata_.entries.push_back(
        {true, static_cast<uint32_t>(metadata_.tensors.size()), {}});
    metadata_.tensors.push_back(tensor);
    return Status();
  }

  // Reads (dtype, layout, requires_grad, memory format, pin_memory) and, since
  // torch 2.15, the strides or None. Only the first and the third are used; the
  // order of a chunk's elements is in the data.
  Status ReadProperties(const Value* value, StoredTensor* tensor) {
    if (value == nullptr || !IsA(*value, Name::kProperties)) {
      return Not(value, "properties");
    }
    const Value& state = value->object().state;
    if (!value->object().is_new || !state.is(Kind::kTuple)) {
      return Not(value, "properties");
    }
    const auto items = state.sequence().items();
    if (items.size() != 5 && items.size() != 6) {
      return Not(value, "properties");
    }
    if (!items[0].is(Kind::kGlobal) ||
        *Is(&items[0].global()) != Name::kDType || !items[2].is(Kind::kBool) ||
        !items[4].is(Kind::kBool)) {
      return Not(value, "properties");
    }
    HAULWAY_TRY(CheckLayoutName(items[1]));
    HAULWAY_ASSIGN(tensor->memory_format, ReadMemoryFormat(items[3]));
    tensor->dtype = DTypeOf(items[0].global());
    tensor->requires_grad = items[2].boolean();
    tensor->pin_memory = items[4].boolean();
    if (items.size() == 5 || items[5].is(Kind::kNone)) return Status();
    if (!items[5].is(Kind::kTuple)) return Not(value, "strides");
    HAULWAY_ASSIGN(tensor->strides,
                   ReadNumbers(items[5].sequence().items(), *value, "strides"));
    return Status();
  }

  Status CheckLayoutName(const Value& value) const {
    if (!IsA(value, Name::kGetLayout)) return Not(&value, "layout");
    const auto args = value.object().args.sequence().items();
    if (args.size() != 1 || !args[0].is(Kind::kString)) {
      return Not(&value, "layout");
    }
    if (args[0].text() == "torch.strided") return Status();
    return Status(Code::kUnsupported,
                  fmt::format("layout {}: expected torch.strided",
                              Quote(args[0].text())))
        .At(value.object().byte);
  }

  // Reads _MEM_FORMAT_ENCODING(0), or getattr(_MEM_FORMAT_ENCODING, NAME).
  Result<MemoryFormat> ReadMemoryFormat(const Value& value) const {
    std::span<const Value> args;
    if (value.is(Kind::kObject)) {
      args = value.object().args.sequence().items();
    }
    if (IsA(value, Name::kMemoryFormat)) {
      const bool is_known = args.size() == 1 && args[0].is(Kind::kInt) &&
                            args[0].integer() >= 0 && args[0].integer() <= 2;
      if (!is_known) return Not(&value, "memory format");
      return static_cast<MemoryFormat>(args[0].integer());
    }
    if (!IsA(value, Name::kGetAttribute)) return Not(&value, "memory format");
    const bool is_of_enum = args.size() == 2 && args[0].is(Kind::kGlobal) &&
                            *Is(&args[0].global()) == Name::kMemoryFormat &&
                            args[1].is(Kind::kString);
    if (is_of_enum) {
      const auto found = std::ranges::find(kMemoryFormats, args[1].text());
      if (found != kMemoryFormats.end()) {
        return static_cast<MemoryFormat>(found - kMemoryFormats.begin());
      }
    }
    return Status(Code::kUnsafe,
                  "getattr of something else than a memory "
                  "format is not allowed")
        .At(value.object().byte);
  }

  Status ReadChunk(const Value& value, const StoredTensor& tensor) {
    HAULWAY_ASSIGN(const Mapping* fields,
                   FieldsOf(value, Name::kChunk, "chunk"));
    Chunk chunk;
    HAULWAY_ASSIGN(chunk.offsets, ReadSize(fields->Find("offsets"), "offsets"));
    HAULWAY_ASSIGN(chunk.sizes, ReadSize(fields->Find("sizes"), "sizes"));
    const size_t rank = tensor.shape.size();
    if (chunk.offsets.size() != rank || chunk.sizes.size() != rank) {
      return Wrong(fmt::format("{} has another number of dimensions: expected "
                               "{}",
                               PlaceOf(chunk), rank))
          .At(value.object().byte);
    }
    for (size_t d = 0; d < rank; ++d) {
      if (chunk.offsets[d] <= tensor.shape[d] &&
          chunk.sizes[d] <= tensor.shape[d] - chunk.offsets[d]) {
        continue;
      }
      return Wrong(fmt::format("{} lies outside the tensor: expected within "
                               "[{}]",
                               PlaceOf(chunk), fmt::join(tensor.shape, ", ")))
          .At(value.object().byte);
    }
    metadata_.chunks.push_back(chunk);
    return Status();
  }

  Status ReadStorage(const Value* value) {
    if (value == nullptr || !value->is(Kind::kDict)) {
      return Not(value, "storage_data");
    }
    for (const MappingItem& item : value->mapping().items()) {
      HAULWAY_ASSIGN(const Mapping* key,
                     FieldsOf(item.key, Name::kIndex, "key of storage_data"));
      const Value* name = key->Find("fqn");
      if (name == nullptr || !name->is(Kind::kString)) {
        return Not(&item.key, "key of storage_data");
      }
      Status status = ReadItem(name->text(), *key, item);
      if (!status.ok()) return std::move(status).In(Quote(name->text()));
    }
    return Status();
  }

  Status ReadItem(std::string_view name, const Mapping& key,
                  const MappingItem& pair) {
    HAULWAY_ASSIGN(const StoredItem item, ReadInfo(pair.value));
    const uint32_t row = names_of_entries_.Find(name, NameOfEntry{metadata_});
    if (row == NameIndex::kNone) {
      return Wrong("storage_data has an item of no entry")
          .At(pair.key.object().byte);
    }
    const StoredEntry& entry = metadata_.entries[row];
    const Value* offset = key.Find("offset");
    const bool is_object = offset == nullptr || offset->is(Kind::kNone);
    if (is_object == entry.is_tensor) {
      return Wrong(is_object ? "item of a tensor has no offset"
                             : "item of an object has an offset")
          .At(pair.key.object().byte);
    }
    if (is_object) {
      return Put(item, pair.key, &metadata_.objects[entry.row].item);
    }
    HAULWAY_ASSIGN(const auto offsets, ReadSize(offset, "offset"));
    return PutChunk(item, pair.key, offsets, key.Find("index"),
                    metadata_.tensors[entry.row]);
  }

  static Status Put(const StoredItem& item, const Value& key, StoredItem* at) {
    if (at->file != kNoFile) {
      return Wrong("storage_data has two items of one place")
          .At(key.object().byte);
    }
    *at = item;
    return Status();
  }

  // Sets the item of the chunk at `offsets`. `hint` is normally the number of
  // the chunk.
  Status PutChunk(const StoredItem& item, const Value& key,
                  std::span<const int64_t> offsets, const Value* hint,
                  const StoredTensor& tensor) {
    const std::span<Chunk> chunks =
        std::span(metadata_.chunks)
            .subspan(tensor.first_chunk, tensor.chunk_count);
    const auto is_there = [&](const Chunk& chunk) {
      return std::ranges::equal(chunk.offsets, offsets);
    };
    if (hint != nullptr && hint->is(Kind::kInt) && hint->integer() >= 0 &&
        static_cast<uint64_t>(hint->integer()) < chunks.size()) {
      Chunk& chunk = chunks[static_cast<size_t>(hint->integer())];
      if (is_there(chunk) && chunk.item.file == kNoFile) {
        return Put(item, key, &chunk.item);
      }
    }
    // A wrong hint costs a search over the list. Limit the total.
    most_searched_ += chunks.size();
    if (most_searched_ > kMostSearched) {
      return Status(Code::kLimit,
                    fmt::format("chunks that are not where storage_data says "
                                "pass {} comparisons",
                                kMostSearched));
    }
    const auto found = std::ranges::find_if(chunks, is_there);
    if (found == chunks.end()) {
      return Wrong(fmt::format("storage_data has an item at [{}], where no "
                               "chunk is",
                               fmt::join(offsets, ", ")))
          .At(key.object().byte);
    }
    return Put(item, key, &found->item);
  }

  Result<StoredItem> ReadInfo(const Value& value) {
    HAULWAY_ASSIGN(const Mapping* fields, FieldsOf(value, Name::kStorageInfo,
                                                   "value of storage_data"));
    const Value* path = fields->Find("relative_path");
    const Value* offset = fields->Find("offset");
    const Value* length = fields->Find("length");
    if (path == nullptr || !path->is(Kind::kString) || offset == nullptr ||
        !offset->is(Kind::kInt) || offset->integer() < 0 || length == nullptr ||
        !length->is(Kind::kInt) || length->integer() <= 0) {
      return Not(&value, "value of storage_data");
    }
    StoredItem item;
    const Value* transforms = fields->Find("transform_descriptors");
    if (transforms != nullptr && !transforms->is(Kind::kNone)) {
      HAULWAY_ASSIGN(item.transforms, ReadTransforms(*transforms, value));
    }
    item.offset = static_cast<uint64_t>(offset->integer());
    item.length = static_cast<uint64_t>(length->integer());
    HAULWAY_ASSIGN(item.file, FileOf(path->text(), value.object().byte));
    return item;
  }

  // Reads the names of extensions. All items mostly have the same ones.
  Result<std::span<const std::string_view>> ReadTransforms(
      const Value& transforms, const Value& info) {
    if (!transforms.is_sequence()) return Not(&info, "transform_descriptors");
    const auto items = transforms.sequence().items();
    for (const Value& name : items) {
      if (!name.is(Kind::kString)) return Not(&info, "transform_descriptors");
    }
    if (std::ranges::equal(items, transforms_, {}, &Value::text)) {
      return transforms_;
    }
    auto* const names = static_cast<std::string_view*>(
        arena_.Allocate(items.size() * sizeof(std::string_view)));
    std::ranges::transform(items, names, &Value::text);
    transforms_ = {names, items.size()};
    Status status = CheckTransforms(transforms_);
    if (!status.ok()) return std::move(status).At(info.object().byte);
    return transforms_;
  }

  Result<uint32_t> FileOf(std::string_view path, uint64_t byte) {
    const auto name_of = [&](uint32_t i) { return metadata_.files[i]; };
    // Consecutive items are mostly in the same file.
    if (last_file_ < metadata_.files.size() &&
        metadata_.files[last_file_] == path) {
      return last_file_;
    }
    last_file_ = files_.Find(path, name_of);
    if (last_file_ != NameIndex::kNone) return last_file_;
    if (!IsPathDown(path) || !IsUtf8(path)) {
      return Wrong(fmt::format("file {} does not lie in the directory: "
                               "expected a path down",
                               Quote(path)))
          .At(byte);
    }
    last_file_ = static_cast<uint32_t>(metadata_.files.size());
    metadata_.files.push_back(path);
    files_.Add(path, last_file_, name_of);
    return last_file_;
  }

  // Checks that every object and chunk has an item. If several chunks without
  // elements have the same offset, only one of them needs an item.
  Status CheckStored() {
    for (const StoredObject& object : metadata_.objects) {
      if (object.item.file == kNoFile) {
        return Wrong("object is stored nowhere").In(Quote(object.name));
      }
    }
    for (const StoredTensor& tensor : metadata_.tensors) {
      for (const Chunk& chunk : metadata_.ChunksOf(tensor)) {
        if (chunk.item.file != kNoFile ||
            std::ranges::find(chunk.sizes, 0) != chunk.sizes.end()) {
          continue;
        }
        return Wrong(fmt::format("{} is stored nowhere", PlaceOf(chunk)))
            .In(Quote(tensor.name));
      }
    }
    return Status();
  }

  // Returns a string or a path. A path is a call of its class with its parts.
  std::optional<std::string_view> TextOf(const Value* value) {
    if (value == nullptr) return std::nullopt;
    if (value->is(Kind::kString)) return value->text();
    if (!IsA(*value, Name::kPath) || value->object().is_new) {
      return std::nullopt;
    }
    std::string path;
    for (const Value& part : value->object().args.sequence().items()) {
      if (!part.is(Kind::kString)) return std::nullopt;
      if (!path.empty() && !path.ends_with('/')) path += '/';
      path += part.text();
    }
    return arena_.Copy(path);
  }

  void ReadStorageMeta(const Value* value) {
    if (value == nullptr) return;
    const auto found = FieldsOf(*value, Name::kStorageMeta, "storage_meta");
    if (!found.ok()) return;
    const Mapping& fields = **found;
    StorageMeta& meta = metadata_.storage_meta.emplace();
    meta.checkpoint_id = TextOf(fields.Find("checkpoint_id"));
    meta.save_id = TextOf(fields.Find("save_id"));
    meta.load_id = TextOf(fields.Find("load_id"));
    const Value* modules = fields.Find("modules");
    if (modules == nullptr || !modules->is(Kind::kList)) return;
    for (const Value& module : modules->sequence().items()) {
      if (const auto text = TextOf(&module)) meta.modules.push_back(*text);
    }
  }

  // Reads the paths of PyTorch's planner. Data of other planners is ignored.
  Status ReadPaths(const Value* value) {
    if (value != nullptr) metadata_.planner_data = *value;
    if (value == nullptr || !value->is(Kind::kDict)) return Status();
    for (const MappingItem& item : value->mapping().items()) {
      if (!item.key.is(Kind::kString)) continue;
      const uint32_t row =
          names_of_entries_.Find(item.key.text(), NameOfEntry{metadata_});
      if (row == NameIndex::kNone) continue;
      if (!item.value.is(Kind::kTuple)) continue;
      const auto path = item.value.sequence().items();
      for (const Value& step : path) {
        if (step.is(Kind::kString) || step.is(Kind::kInt)) continue;
        return Wrong("path in planner_data is not of keys and positions")
            .In(Quote(item.key.text()));
      }
      if (path.size() > limits_.max_depth) {
        return Status(Code::kLimit,
                      fmt::format("path of {} steps passes max_depth {}",
                                  path.size(), limits_.max_depth))
            .In(Quote(item.key.text()));
      }
      metadata_.entries[row].path = path;
      metadata_.has_paths |= !path.empty();
    }
    return Status();
  }

  static constexpr uint64_t kMostSearched = uint64_t{1} << 26;

  const PickleResult& pickle_;
  const ParseLimits& limits_;
  TreeArena& arena_;
  std::vector<std::string_view> also_;
  std::vector<Known> names_;
  NameIndex names_of_entries_;
  NameIndex files_;
  uint32_t last_file_ = kNoFile;
  uint64_t most_searched_ = 0;
  std::span<const std::string_view>
      transforms_;  // Those that the last item had.
  Metadata metadata_;
};

}  // namespace

bool IsMetadata(std::span<const std::byte> head) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()),
                              head.size());
  // Look for PROTO, a FRAME with its length, and a string that names the class.
  // The class name is in a string after the module, or in a separate line.
  if (!text.starts_with('\x80')) return false;
  for (const std::string_view name : {kModule, kMegatron}) {
    const size_t module = text.substr(0, 96).find(name);
    if (module == text.npos) continue;
    return text.substr(module + name.size(), 24).find("Metadata") != text.npos;
  }
  return false;
}

Result<Metadata> ParseMetadata(std::span<const std::byte> bytes,
                               const OpenOptions& options, TreeArena* arena) {
  if (bytes.size() > options.limits.max_pickle_bytes) {
    return Status(Code::kLimit,
                  fmt::format("metadata of {} bytes passes max_pickle_bytes {}",
                              bytes.size(), options.limits.max_pickle_bytes));
  }
  const std::vector<std::string> names = NamesToAllow(options);
  const GlobalTable table(names);
  PickleOptions pickle;
  pickle.limits = options.limits;
  pickle.globals = &table;
  HAULWAY_ASSIGN(const PickleResult parsed, ParsePickle(bytes, *arena, pickle));
  if (options.strictness == Strictness::kStrict &&
      parsed.consumed != bytes.size()) {
    return Status(Code::kCorrupt,
                  fmt::format("{} bytes follow the pickle: expected none",
                              bytes.size() - parsed.consumed))
        .At(parsed.consumed);
  }
  return Walker(parsed, options, arena).Run();
}

Result<std::unique_ptr<MetadataFile>> ReadMetadata(const ByteSource& source,
                                                   const OpenOptions& options) {
  if (source.size() > options.limits.max_pickle_bytes) {
    return Status(Code::kLimit,
                  fmt::format("metadata of {} bytes passes max_pickle_bytes {}",
                              source.size(), options.limits.max_pickle_bytes));
  }
  auto file = std::make_unique<MetadataFile>();
  HAULWAY_ASSIGN(file->bytes, AllocateBuffer(source.size()));
  HAULWAY_TRY(source.ReadAt(0, file->bytes.mutable_bytes()));
  HAULWAY_ASSIGN(file->metadata,
                 ParseMetadata(file->bytes.bytes(), options, &file->arena));
  return file;
}

bool HasTransforms(const Metadata& metadata) {
  return std::ranges::any_of(metadata.chunks, [](const Chunk& chunk) {
    return !chunk.item.transforms.empty();
  });
}

std::string PlaceOf(const Chunk& chunk) {
  return fmt::format("chunk [{}]+[{}]", fmt::join(chunk.offsets, ", "),
                     fmt::join(chunk.sizes, ", "));
}

}  // namespace haulway::dcp
