#include "dcp/dcp_objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "dcp/dcp_item.h"
#include "tensor/tree_walk.h"
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
    walk_.Push(root);
    Value value;
    while (walk_.Next(&value)) {
      if (value.is(Kind::kPersistent)) {
        Shift(value.sequence());
      } else if (value.is(Kind::kObject)) {
        Visit(value.object());
      } else {
        walk_.PushItems(value);
      }
    }
  }

 private:
  // A resolved persistent id has its storage's row as its second item.
  void Shift(Sequence& id) const {
    if (id.size != 2) return;
    id.data[1] = Value::Int(id.data[1].integer() + first_storage_);
  }

  void Visit(Object& object) {
    if (object.tensor != Object::kNoTensor) object.tensor += first_tensor_;
    walk_.Push(object.called);
    walk_.Push(object.args);
    walk_.Push(object.state);
    walk_.PushExtras(object);
  }

  const uint32_t first_tensor_;
  const uint32_t first_storage_;
  TreeWalk walk_;
};

// Replaces the object's item by a file of its decoded bytes. `stored` has its
// stored bytes, or is empty.
Result<SourcePtr> Decode(DataFiles* files, Buffer stored,
                         const ParseLimits& limits, StoredItem* item) {
  const std::string_view name = files->name(item->file);
  StoredItem from = *item;
  SourcePtr file;
  if (stored.size() != 0) {
    file = MakeBufferSource(std::move(stored), std::string(name));
    from.offset = 0;
  } else {
    HAULWAY_ASSIGN(file, files->Open(item->file));
  }
  HAULWAY_ASSIGN(SourcePtr decoded,
                 DecodeItem(std::move(file), from, MostOfObject(from, limits),
                            std::string(name)));
  *item = {files->Add(name, decoded), 0, decoded->size()};
  return decoded;
}

// Returns the bytes of an object, decoded if extensions transformed it.
// `stored` has its stored bytes, or is empty.
Result<SourcePtr> SourceOf(DataFiles* files, Buffer stored,
                           const ParseLimits& limits, StoredItem* item) {
  if (!item->transforms.empty()) {
    return Decode(files, std::move(stored), limits, item);
  }
  if (stored.size() != 0) {
    return MakeBufferSource(std::move(stored),
                            std::string(files->name(item->file)));
  }
  HAULWAY_ASSIGN(const SourcePtr file, files->Open(item->file));
  return MakeSliceSource(file, item->offset, item->length);
}

}  // namespace

Result<std::vector<OpenedObject>> OpenObjects(DataFiles* files,
                                              const OpenOptions& options,
                                              Metadata* metadata) {
  // Objects are read whole, so check that each ends within its file.
  for (const StoredObject& object : metadata->objects) {
    HAULWAY_ASSIGN(const SourcePtr file, files->Open(object.item.file));
    if (RangeFits(object.item.offset, object.item.length, file->size())) {
      continue;
    }
    return Status(Code::kTruncated,
                  fmt::format("object of {} bytes ends past its file of {}",
                              object.item.length, file->size()))
        .At(object.item.offset)
        .In(Quote(object.name))
        .In(fmt::format("data file {}", Quote(files->name(object.item.file))));
  }
  HAULWAY_ASSIGN(std::vector<Buffer> bytes, ReadSmall(*metadata, *files));
  std::vector<OpenedObject> opened;
  opened.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    StoredObject& object = metadata->objects[i];
    const std::string file_name(files->name(object.item.file));
    auto source =
        SourceOf(files, std::move(bytes[i]), options.limits, &object.item);
    if (!source.ok()) {
      return std::move(source)
          .status()
          .In(Quote(object.name))
          .In(fmt::format("data file {}", Quote(file_name)));
    }
    auto reader = torch::OpenZip(*std::move(source), options);
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
