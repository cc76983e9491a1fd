#include "dcp/dcp_objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "torch/torch_reader.h"

namespace haulway::dcp {

namespace {

// Larger objects are read by ranges, because the pickle is a small part of
// them.
constexpr uint64_t kLargestRead = 1 * kMiB;

using SourcePtr = std::shared_ptr<const ByteSource>;

// Returns the bytes of small objects, by row. Reads each file with one call.
Result<std::vector<Buffer>> ReadSmall(const Metadata& metadata,
                                      const DataFiles& files) {
  std::vector<Buffer> bytes(metadata.objects.size());
  std::vector<std::vector<ReadRequest>> requests(files.count());
  for (size_t i = 0; i < bytes.size(); ++i) {
    const StoredItem& item = metadata.objects[i].item;
    if (item.length > kLargestRead) continue;
    HAULWAY_ASSIGN(bytes[i], AllocateBuffer(item.length));
    requests[item.file].push_back({item.offset, bytes[i].mutable_bytes()});
  }
  for (uint32_t file = 0; file < requests.size(); ++file) {
    if (requests[file].empty()) continue;
    HAULWAY_ASSIGN(const SourcePtr source, files.Open(file));
    Status status = source->ReadMany(requests[file]);
    if (!status.ok()) {
      return std::move(status).In(
          fmt::format("data file {}", Quote(files.name(file))));
    }
  }
  return bytes;
}

// A RowShift walks everything a value contains, each container once.
class RowShift {
 public:
  RowShift(uint32_t first_tensor, uint32_t first_storage)
      : first_tensor_(first_tensor), first_storage_(first_storage) {}

  void Run(const Value& root) {
    Push(root);
    while (!pending_.empty()) {
      const Value value = pending_.back();
      pending_.pop_back();
      if (!seen_.insert(value.identity()).second) continue;
      if (value.is(Kind::kPersistent)) {
        Shift(value.sequence());
      } else if (value.is_sequence()) {
        for (const Value& item : value.sequence().items()) Push(item);
      } else if (value.is_mapping()) {
        Push(value.mapping());
      } else if (value.is(Kind::kObject)) {
        Visit(value.object());
      }
    }
  }

 private:
  void Push(const Value& value) {
    if (value.kind() >= Kind::kTuple && !value.is(Kind::kGlobal)) {
      pending_.push_back(value);
    }
  }
  void Push(const Mapping& mapping) {
    for (const MappingItem& item : mapping.items()) {
      Push(item.key);
      Push(item.value);
    }
    Push(mapping.state);
  }

  // A resolved persistent id has its storage's row as its second item.
  void Shift(Sequence& id) const {
    if (id.size != 2) return;
    id.data[1] = Value::Int(id.data[1].integer() + first_storage_);
  }

  void Visit(Object& object) {
    if (object.tensor != Object::kNoTensor) object.tensor += first_tensor_;
    Push(object.called);
    Push(object.args);
    Push(object.state);
    if (object.extras == nullptr) return;
    Push(object.extras->kwargs);
    for (const Value& item : object.extras->appended.items()) Push(item);
    Push(object.extras->items);
  }

  const uint32_t first_tensor_;
  const uint32_t first_storage_;
  std::vector<Value> pending_;
  std::unordered_set<const void*> seen_;
};

}  // namespace

Result<std::vector<OpenedObject>> OpenObjects(const Metadata& metadata,
                                              const DataFiles& files,
                                              const OpenOptions& options) {
  // Objects are read whole, so check that each ends within its file.
  for (const StoredObject& object : metadata.objects) {
    HAULWAY_ASSIGN(const SourcePtr file, files.Open(object.item.file));
    if (RangeFits(object.item.offset, object.item.length, file->size())) {
      continue;
    }
    return Status(Code::kTruncated,
                  fmt::format("object of {} bytes ends past its file of {}",
                              object.item.length, file->size()))
        .At(object.item.offset)
        .In(Quote(object.name))
        .In(fmt::format("data file {}", Quote(files.name(object.item.file))));
  }
  HAULWAY_ASSIGN(std::vector<Buffer> bytes, ReadSmall(metadata, files));
  std::vector<OpenedObject> opened;
  opened.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    const StoredObject& object = metadata.objects[i];
    const std::string file_name(files.name(object.item.file));
    SourcePtr source;
    if (bytes[i].size() != 0) {
      source = MakeBufferSource(std::move(bytes[i]), file_name);
    } else {
      HAULWAY_ASSIGN(const SourcePtr file, files.Open(object.item.file));
      HAULWAY_ASSIGN(source, MakeSliceSource(file, object.item.offset,
                                             object.item.length));
    }
    auto reader = torch::OpenZip(std::move(source), options);
    if (!reader.ok()) {
      return std::move(reader)
          .status()
          .In(Quote(object.name))
          .In(fmt::format("data file {}", Quote(file_name)));
    }
    opened.push_back({object.name, object.item, *std::move(reader)});
  }
  return opened;
}

void ShiftRows(const Value& root, uint32_t first_tensor,
               uint32_t first_storage) {
  RowShift(first_tensor, first_storage).Run(root);
}

}  // namespace haulway::dcp
