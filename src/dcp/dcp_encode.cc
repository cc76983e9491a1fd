// Design: the encoder writes the opcodes that Python's own pickler, protocol 4,
// writes for torch's classes, without building a tree: each object is created
// empty and filled from a dict, sizes are calls of torch.Size, and every string
// and global is written once and then fetched from the memo.
//
// Alternative not taken: build a tree and pickle it. 100,000 tensors are two
// million values, and the classes that Python and torch expect are fixed.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dcp/dcp_metadata.h"
#include "haulway/dtype.h"

namespace haulway::dcp {

namespace {

constexpr std::string_view kMetadataModule =
    "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFileModule =
    "torch.distributed.checkpoint.filesystem";

// As in Python's pickler: a frame ends at the first value after this many
// bytes.
constexpr size_t kFrameBytes = 64 * 1024;
constexpr size_t kBatch = 1000;

// A Pickler writes opcodes, and keeps track of the memo.
class Pickler {
 public:
  std::string Finish() && {
    Byte('.');
    EndFrame();
    return std::move(out_);
  }

  void Op(char opcode) { Byte(opcode); }
  void Memoize() {
    Byte('\x94');
    ++memo_;
  }

  void Text(std::string_view text) {
    const auto [found, is_new] = texts_.try_emplace(text, memo_);
    if (!is_new) return Get(found->second);
    if (text.size() < 256) {
      Byte('\x8c');
      Little(text.size(), 1);
    } else {
      Byte('X');
      Little(text.size(), 4);
    }
    frame_ += text;
    Memoize();
  }

  void Number(int64_t number) {
    if (number >= 0 && number < 256) {
      Byte('K');
      return Little(static_cast<uint64_t>(number), 1);
    }
    if (number >= 0 && number < 65536) {
      Byte('M');
      return Little(static_cast<uint64_t>(number), 2);
    }
    if (number >= INT32_MIN && number <= INT32_MAX) {
      Byte('J');
      return Little(static_cast<uint64_t>(number), 4);
    }
    Byte('\x8a');
    Byte('\x08');
    Little(static_cast<uint64_t>(number), 8);
  }

  void Global(std::string_view module, std::string_view name) {
    std::string full(module);
    full += '.';
    full += name;
    if (const auto found = globals_.find(full); found != globals_.end()) {
      return Get(found->second);
    }
    Text(module);
    Text(name);
    Byte('\x93');
    globals_.emplace(std::move(full), memo_);
    Memoize();
  }

  // Writes a tuple of `count` items, which `write` writes.
  template <class Write>
  void Tuple(size_t count, const Write& write) {
    if (count == 0) return Byte(')');
    if (count > 3) Byte('(');
    write();
    constexpr std::array<char, 4> kTuples = {'t', '\x85', '\x86', '\x87'};
    Byte(kTuples[count > 3 ? 0 : count]);
    Memoize();
  }

  void Size(std::span<const int64_t> sizes) {
    Global("torch", "Size");
    Tuple(1, [&] { Numbers(sizes); });
    Byte('R');
    Memoize();
  }

  void Numbers(std::span<const int64_t> numbers) {
    Tuple(numbers.size(), [&] {
      for (const int64_t number : numbers) Number(number);
    });
  }

  // Begins an object that is created empty. Its fields follow, and then
  // Filled().
  void Begin(std::string_view module, std::string_view name) {
    Global(module, name);
    Byte(')');
    Byte('\x81');
    Memoize();
  }
  void BeginFields() {
    Byte('}');
    Memoize();
    Byte('(');
  }
  void EndFields() {
    Byte('u');
    Byte('b');
    EndValue();
  }

  // Writes a list or dict. `write` writes the item with the given number.
  template <class Write>
  void List(size_t count, const Write& write) {
    Container(']', 'a', 'e', count, write);
  }
  template <class Write>
  void Dict(size_t count, const Write& write) {
    Container('}', 's', 'u', count, write);
  }

 private:
  template <class Write>
  void Container(char empty, char one, char many, size_t count,
                 const Write& write) {
    Byte(empty);
    Memoize();
    if (count == 1) {
      write(size_t{0});
      return Byte(one);
    }
    for (size_t i = 0; i < count; ++i) {
      if (i % kBatch == 0) Byte('(');
      write(i);
      if (i % kBatch == kBatch - 1 || i == count - 1) Byte(many);
    }
  }

  void Get(uint32_t memo) {
    if (memo < 256) {
      Byte('h');
      return Little(memo, 1);
    }
    Byte('j');
    Little(memo, 4);
  }

  void Byte(char byte) { frame_ += byte; }
  void Little(uint64_t number, int bytes) {
    for (int i = 0; i < bytes; ++i) Byte(static_cast<char>(number >> (8 * i)));
  }

  void EndValue() {
    if (frame_.size() >= kFrameBytes) EndFrame();
  }
  void EndFrame() {
    if (frame_.empty()) return;
    out_ += '\x95';
    const uint64_t bytes = frame_.size();
    for (int i = 0; i < 8; ++i) out_ += static_cast<char>(bytes >> (8 * i));
    out_ += frame_;
    frame_.clear();
  }

  std::string out_ = "\x80\x04";
  std::string frame_;
  uint32_t memo_ = 0;
  std::unordered_map<std::string_view, uint32_t> texts_;
  std::unordered_map<std::string, uint32_t> globals_;
};

class Encoder {
 public:
  explicit Encoder(const Metadata& metadata) : metadata_(metadata) {}

  std::string Run() && {
    out_.Begin(kMetadataModule, "Metadata");
    out_.BeginFields();
    out_.Text("state_dict_metadata");
    const auto& entries = metadata_.entries;
    out_.Dict(entries.size(), [&](size_t i) { Entry(entries[i]); });
    out_.Text("planner_data");
    if (metadata_.has_paths) {
      out_.Dict(entries.size(), [&](size_t i) { Path(entries[i]); });
    } else {
      out_.Op('N');
    }
    out_.Text("storage_data");
    Storage();
    out_.Text("storage_meta");
    Meta();
    out_.Text("version");
    TextOrNone(metadata_.version.empty() ? std::nullopt
                                         : std::optional(metadata_.version));
    out_.EndFields();
    return std::move(out_).Finish();
  }

 private:
  void TextOrNone(std::optional<std::string_view> text) {
    text.has_value() ? out_.Text(*text) : out_.Op('N');
  }
  void Bool(bool value) { out_.Op(value ? '\x88' : '\x89'); }

  void Entry(const StoredEntry& entry) {
    out_.Text(metadata_.NameOf(entry));
    if (!entry.is_tensor) {
      return out_.Begin(kMetadataModule, "BytesStorageMetadata");
    }
    const StoredTensor& tensor = metadata_.tensors[entry.row];
    out_.Begin(kMetadataModule, "TensorStorageMetadata");
    out_.BeginFields();
    out_.Text("properties");
    Properties(tensor);
    out_.Text("size");
    out_.Size(tensor.shape);
    out_.Text("chunks");
    const auto chunks = metadata_.ChunksOf(tensor);
    out_.List(chunks.size(), [&](size_t i) {
      out_.Begin(kMetadataModule, "ChunkStorageMetadata");
      out_.BeginFields();
      out_.Text("offsets");
      out_.Size(chunks[i].offsets);
      out_.Text("sizes");
      out_.Size(chunks[i].sizes);
      out_.EndFields();
    });
    out_.EndFields();
  }

  void Properties(const StoredTensor& tensor) {
    out_.Begin(kMetadataModule, "TensorProperties");
    out_.Tuple(tensor.strides.has_value() ? 6 : 5, [&] {
      out_.Global("torch", Describe(tensor.dtype).torch_name);
      out_.Global("torch.serialization", "_get_layout");
      out_.Tuple(1, [&] { out_.Text("torch.strided"); });
      out_.Op('R');
      out_.Memoize();
      Bool(tensor.requires_grad);
      out_.Global(kMetadataModule, "_MEM_FORMAT_ENCODING");
      out_.Tuple(
          1, [&] { out_.Number(static_cast<int64_t>(tensor.memory_format)); });
      out_.Op('R');
      out_.Memoize();
      Bool(tensor.pin_memory);
      if (tensor.strides.has_value()) out_.Numbers(*tensor.strides);
    });
    out_.Op('b');
  }

  void Path(const StoredEntry& entry) {
    out_.Text(metadata_.NameOf(entry));
    if (entry.path.empty()) {
      return out_.Tuple(1, [&] { out_.Text(metadata_.NameOf(entry)); });
    }
    out_.Tuple(entry.path.size(), [&] {
      for (const Value& step : entry.path) {
        step.is(Kind::kInt) ? out_.Number(step.integer())
                            : out_.Text(step.text());
      }
    });
  }

  // Writes the items of all stored chunks and objects.
  void Storage() {
    struct Row {
      std::string_view name;
      const Chunk* chunk;  // Null for an object.
      size_t number;       // Number of the chunk in its tensor.
      const StoredItem* item;
    };
    std::vector<Row> rows;
    for (const StoredEntry& entry : metadata_.entries) {
      const std::string_view name = metadata_.NameOf(entry);
      if (!entry.is_tensor) {
        rows.push_back({name, nullptr, 0, &metadata_.objects[entry.row].item});
        continue;
      }
      const auto chunks = metadata_.ChunksOf(metadata_.tensors[entry.row]);
      for (size_t i = 0; i < chunks.size(); ++i) {
        if (chunks[i].item.file == kNoFile) continue;
        rows.push_back({name, &chunks[i], i, &chunks[i].item});
      }
    }
    out_.Dict(rows.size(), [&](size_t i) {
      const Row& row = rows[i];
      out_.Begin(kMetadataModule, "MetadataIndex");
      out_.BeginFields();
      out_.Text("fqn");
      out_.Text(row.name);
      out_.Text("index");
      if (row.chunk == nullptr) {
        out_.Op('N');
      } else {
        out_.Number(static_cast<int64_t>(row.number));
        out_.Text("offset");
        out_.Size(row.chunk->offsets);
      }
      out_.EndFields();
      Info(*row.item);
    });
  }

  void Info(const StoredItem& item) {
    out_.Begin(kFileModule, "_StorageInfo");
    out_.BeginFields();
    out_.Text("relative_path");
    out_.Text(metadata_.files[item.file]);
    out_.Text("offset");
    out_.Number(static_cast<int64_t>(item.offset));
    out_.Text("length");
    out_.Number(static_cast<int64_t>(item.length));
    if (!item.transforms.empty()) {
      out_.Text("transform_descriptors");
      out_.List(item.transforms.size(),
                [&](size_t i) { out_.Text(item.transforms[i]); });
    }
    out_.EndFields();
  }

  void Meta() {
    if (!metadata_.storage_meta.has_value()) return out_.Op('N');
    const StorageMeta& meta = *metadata_.storage_meta;
    out_.Begin(kMetadataModule, "StorageMeta");
    out_.BeginFields();
    out_.Text("checkpoint_id");
    TextOrNone(meta.checkpoint_id);
    out_.Text("save_id");
    TextOrNone(meta.save_id);
    out_.Text("load_id");
    TextOrNone(meta.load_id);
    out_.Text("modules");
    out_.List(meta.modules.size(),
              [&](size_t i) { out_.Text(meta.modules[i]); });
    out_.EndFields();
  }

  const Metadata& metadata_;
  Pickler out_;
};

}  // namespace

std::string EncodeMetadata(const Metadata& metadata) {
  return Encoder(metadata).Run();
}

}  // namespace haulway::dcp
