// Design: the headers have the place of each chunk in its tensor
// (DCP_SHARDING_INFO) and, in files that Haulway wrote, the sizes of whole
// tensors (DCP_TENSOR_SIZES). In torch's own files, a tensor ends where its
// last chunk does, and only the numbers in file names show that the last file
// is missing. From these facts the code builds what `.metadata` would contain,
// and the reader of directories (dcp/dcp_reader.h) does the rest.

#include "checkpoint/dcp_shards.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "dcp/dcp_reader.h"
#include "haulway/dcp.h"
#include "haulway/dtype.h"

namespace haulway {

namespace {

namespace dom = simdjson::dom;

constexpr std::string_view kOffsetsKey = "DCP_SHARDING_INFO";
constexpr std::string_view kSizesKey = "DCP_TENSOR_SIZES";
constexpr std::string_view kVersionKey = "DCP_VERSION";

// The numbers in a file name; 0 if missing.
struct FileNumbers {
  uint64_t shard = 0;
  uint64_t model = 0;
  uint64_t models = 0;
};

// Removes a leading number from `text`. Returns 0 if there is none.
uint64_t TakeNumber(std::string_view* text) {
  uint64_t number = 0;
  const char* const end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, number);
  if (error != std::errc()) return 0;
  text->remove_prefix(static_cast<size_t>(rest - text->data()));
  return number;
}

bool Take(std::string_view what, std::string_view* text) {
  if (!text->starts_with(what)) return false;
  text->remove_prefix(what.size());
  return true;
}

// Parses "shard-00001-model-00001-of-00002.safetensors".
std::optional<FileNumbers> NumbersOf(std::string_view path) {
  std::string_view rest = path.substr(path.rfind('/') + 1);
  FileNumbers numbers;
  if (!Take("shard-", &rest)) return std::nullopt;
  numbers.shard = TakeNumber(&rest);
  if (!Take("-model-", &rest)) return std::nullopt;
  numbers.model = TakeNumber(&rest);
  if (!Take("-of-", &rest)) return std::nullopt;
  numbers.models = TakeNumber(&rest);
  if (rest != ".safetensors" || numbers.shard == 0 || numbers.model == 0 ||
      numbers.model > numbers.models) {
    return std::nullopt;
  }
  return numbers;
}

// Fails unless all numbers from 1 to `most` were found.
Status CheckNumbers(std::string_view what, const std::set<uint64_t>& found,
                    uint64_t most) {
  uint64_t missing = 1;
  for (const uint64_t number : found) {
    if (number == missing) ++missing;
  }
  if (missing > most) return Status();
  return Status(Code::kCorrupt,
                fmt::format("file of {} {} is missing: expected 1 to {}", what,
                            missing, most));
}

Status CheckNames(const std::vector<Shard>& shards) {
  std::set<uint64_t> numbers;
  std::set<uint64_t> models;
  uint64_t most_models = 0;
  for (const Shard& shard : shards) {
    const auto found = NumbersOf(shard.name);
    if (!found.has_value()) continue;
    numbers.insert(found->shard);
    models.insert(found->model);
    most_models = std::max(most_models, found->models);
  }
  HAULWAY_TRY(
      CheckNumbers("shard", numbers, numbers.empty() ? 0 : *numbers.rbegin()));
  return CheckNumbers("model", models, most_models);
}

const std::string* TextOf(const CheckpointIndex& index, std::string_view key) {
  if (!index.metadata.has_value()) return nullptr;
  const auto found = std::ranges::find(*index.metadata, key, &Fact::name);
  if (found == index.metadata->end()) return nullptr;
  return std::get_if<std::string>(&found->value);
}

using Places = std::map<std::string, std::vector<int64_t>, std::less<>>;

Status NotNumbers(std::string_view key, std::string_view name) {
  return Status(
      Code::kCorrupt,
      fmt::format("{} has no list of numbers for tensor {}", key, Quote(name)));
}

// Parses numbers by tensor name. `field`: the field of the tensor's object that
// has the numbers; empty if the tensor's value has them itself.
Result<Places> ParsePlaces(const std::string& json, std::string_view key,
                           std::string_view field) {
  dom::parser parser;
  dom::object tensors;
  if (parser.parse(json).get_object().get(tensors)) {
    return Status(Code::kCorrupt, fmt::format("{} is no object of JSON", key));
  }
  Places places;
  for (const dom::key_value_pair tensor : tensors) {
    dom::element value = tensor.value;
    dom::array list;
    if ((!field.empty() && tensor.value.at_key(field).get(value)) ||
        value.get_array().get(list)) {
      return NotNumbers(key, tensor.key);
    }
    std::vector<int64_t> numbers;
    for (const dom::element one : list) {
      int64_t number = 0;
      if (one.get_int64().get(number) || number < 0) {
        return NotNumbers(key, tensor.key);
      }
      numbers.push_back(number);
    }
    places.insert_or_assign(std::string(tensor.key), std::move(numbers));
  }
  return places;
}

class ShardJoin {
 public:
  explicit ShardJoin(const ParseLimits& limits) : limits_(limits) {}

  // Adds the chunks of a shard. Requires: the shard outlives the result of
  // Take().
  Status Add(const Shard& shard, uint32_t file) {
    const CheckpointIndex& index = shard.reader->index();
    HAULWAY_ASSIGN(const Places begins,
                   Parse(index, kOffsetsKey, "saved_offsets"));
    HAULWAY_ASSIGN(const Places sizes, Parse(index, kSizesKey, ""));
    for (const Entry& entry : index.entries) {
      const TensorInfo& info = index.tensors[entry.tensor];
      Status status =
          AddChunk(entry.name, info, index.storages[info.storage].offset, file,
                   Find(begins, entry.name), Find(sizes, entry.name));
      if (!status.ok()) return std::move(status).In(Quote(entry.name));
    }
    if (const auto* version = TextOf(index, kVersionKey)) {
      read_->metadata.version = *version;
    }
    return Status();
  }

  Result<std::unique_ptr<const dcp::MetadataFile>> Take() {
    dcp::Metadata& metadata = read_->metadata;
    metadata.has_archives = false;
    metadata.states_shapes = std::ranges::all_of(tensors_, &Tensor::is_stated);
    for (Tensor& tensor : tensors_) {
      dcp::StoredTensor stored;
      stored.name = tensor.name;
      stored.dtype = tensor.dtype;
      stored.shape = Keep(tensor.shape);
      stored.nbytes = ItemBytes(tensor.dtype);
      for (const int64_t size : tensor.shape) {
        if (!CheckedMultiply(stored.nbytes, static_cast<uint64_t>(size),
                             &stored.nbytes)) {
          return Status(Code::kCorrupt, "tensor has more bytes than there are")
              .In(Quote(tensor.name));
        }
      }
      stored.first_chunk = static_cast<uint32_t>(metadata.chunks.size());
      stored.chunk_count = static_cast<uint32_t>(tensor.chunks.size());
      for (const dcp::Chunk& chunk : tensor.chunks) {
        HAULWAY_TRY(CheckWithin(tensor, chunk));
        metadata.chunks.push_back(chunk);
      }
      metadata.entries.push_back(
          {true, static_cast<uint32_t>(metadata.tensors.size()), {}});
      metadata.tensors.push_back(stored);
    }
    return std::unique_ptr<const dcp::MetadataFile>(std::move(read_));
  }

 private:
  struct Tensor {
    std::string_view name;
    DType dtype;
    std::vector<int64_t> shape;
    bool is_stated = false;  // True if a header states the shape.
    std::vector<dcp::Chunk> chunks;
  };

  static Result<Places> Parse(const CheckpointIndex& index,
                              std::string_view key, std::string_view field) {
    const std::string* const text = TextOf(index, key);
    if (text == nullptr) return Places();
    return ParsePlaces(*text, key, field);
  }

  static const std::vector<int64_t>* Find(const Places& places,
                                          std::string_view name) {
    const auto found = places.find(name);
    return found == places.end() ? nullptr : &found->second;
  }

  Status AddChunk(std::string_view name, const TensorInfo& info,
                  uint64_t offset, uint32_t file,
                  const std::vector<int64_t>* begin,
                  const std::vector<int64_t>* whole) {
    if (Describe(info.dtype).item_elements > 1) {
      return Status(Code::kUnsupported,
                    "elements of less than a byte are not put together");
    }
    const size_t rank = info.shape.size();
    const std::vector<int64_t> zeros(rank);
    const std::vector<int64_t>& offsets = begin == nullptr ? zeros : *begin;
    if (offsets.size() != rank) {
      return Status(Code::kCorrupt,
                    fmt::format("chunk begins at {} numbers: expected {}",
                                offsets.size(), rank));
    }
    const auto [found, is_new] = rows_.try_emplace(name, tensors_.size());
    if (is_new) {
      if (tensors_.size() >= limits_.max_tensors) {
        return Status(Code::kLimit, fmt::format("tensors pass max_tensors {}",
                                                limits_.max_tensors));
      }
      tensors_.push_back({name, info.dtype, zeros, false, {}});
    }
    Tensor& tensor = tensors_[found->second];
    const bool is_other =
        whole != nullptr && tensor.is_stated && tensor.shape != *whole;
    if (tensor.dtype != info.dtype || tensor.shape.size() != rank ||
        (whole != nullptr && whole->size() != rank) || is_other) {
      return Status(Code::kCorrupt,
                    "files state other dtypes or shapes of the tensor");
    }
    if (whole != nullptr && !tensor.is_stated) {
      tensor.shape = *whole;
      tensor.is_stated = true;
    }
    for (size_t d = 0; d < rank; ++d) {
      if (offsets[d] > INT64_MAX - info.shape[d]) {
        return Status(Code::kCorrupt, "chunk ends past every tensor");
      }
      if (!tensor.is_stated) {
        tensor.shape[d] = std::max(tensor.shape[d], offsets[d] + info.shape[d]);
      }
    }
    tensor.chunks.push_back(
        {Keep(offsets), info.shape, {file, offset, info.nbytes}});
    return Status();
  }

  static Status CheckWithin(const Tensor& tensor, const dcp::Chunk& chunk) {
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      if (chunk.offsets[d] + chunk.sizes[d] <= tensor.shape[d]) continue;
      return Status(Code::kCorrupt,
                    fmt::format("chunk [{}]+[{}] leaves the tensor of [{}]",
                                fmt::join(chunk.offsets, ", "),
                                fmt::join(chunk.sizes, ", "),
                                fmt::join(tensor.shape, ", ")))
          .In(Quote(tensor.name));
    }
    return Status();
  }

  // Copies numbers to the arena.
  std::span<const int64_t> Keep(const std::vector<int64_t>& numbers) {
    auto* const kept = static_cast<int64_t*>(
        read_->arena.Allocate(numbers.size() * sizeof(int64_t)));
    std::ranges::copy(numbers, kept);
    return {kept, numbers.size()};
  }

  const ParseLimits limits_;
  std::unique_ptr<dcp::MetadataFile> read_ =
      std::make_unique<dcp::MetadataFile>();
  std::map<std::string_view, size_t> rows_;
  std::vector<Tensor> tensors_;
};

}  // namespace

bool IsNamedAsDcpShard(std::string_view path) {
  return NumbersOf(path).has_value();
}

bool AreDcpShards(std::span<const Shard> shards) {
  return std::ranges::any_of(shards, [](const Shard& shard) {
    const CheckpointIndex& index = shard.reader->index();
    return index.format == Format::kSafetensors &&
           TextOf(index, kOffsetsKey) != nullptr;
  });
}

Result<std::unique_ptr<const FormatReader>> OpenDcpShards(
    std::vector<Shard> shards, const OpenOptions& options) {
  // A process that had nothing to write has no file, and torch's reader accepts
  // that. So only strict reading checks the names.
  if (options.strictness == Strictness::kStrict) {
    HAULWAY_TRY(CheckNames(shards));
  }
  ShardJoin join(options.limits);
  for (uint32_t i = 0; i < shards.size(); ++i) {
    if (shards[i].reader->index().format != Format::kSafetensors) {
      return Status(Code::kCorrupt, "file is no safetensors, as others are")
          .Of(shards[i].name);
    }
    Status status = join.Add(shards[i], i);
    if (!status.ok()) return std::move(status).Of(shards[i].name);
  }
  HAULWAY_ASSIGN(auto read, join.Take());
  std::vector<dcp::ShardFile> files;
  for (Shard& shard : shards) {
    files.push_back({std::move(shard.name), std::move(shard.reader)});
  }
  return dcp::OpenShards(std::move(files), std::move(read), options);
}

}  // namespace haulway
