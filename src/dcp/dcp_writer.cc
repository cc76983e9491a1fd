// Design: the names of data files contain the id of the save, so a new
// checkpoint never overwrites the files of an old one. `.metadata` is written
// last, and lists the files of the checkpoint.

#include "dcp/dcp_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <random>
#include <utility>

#include "base/text.h"
#include "dcp/dcp_metadata.h"
#include "haulway/archive.h"
#include "haulway/layout.h"
#include "torch/torch_writer.h"

namespace haulway::dcp {

namespace {

constexpr std::string_view kVersion = "1.0.0";  // The format's version.
constexpr size_t kNameDigits = 12;

// Returns a random UUID of version 4.
std::string NewSaveId() {
  std::random_device random;
  std::array<uint32_t, 4> parts;
  for (uint32_t& part : parts) part = random();
  parts[1] = (parts[1] & 0xFFFF0FFF) | 0x00004000;
  parts[2] = (parts[2] & 0x3FFFFFFF) | 0x80000000;
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:04x}{:08x}", parts[0],
                     parts[1] >> 16, parts[1] & 0xFFFF, parts[2] >> 16,
                     parts[2] & 0xFFFF, parts[3]);
}

// Removes leading digits from `text`. Returns false if there are none.
bool TakeDigits(std::string_view* text) {
  const size_t count =
      std::min(text->find_first_not_of("0123456789"), text->size());
  text->remove_prefix(count);
  return count != 0;
}

bool Take(std::string_view expected, std::string_view* text) {
  if (!text->starts_with(expected)) return false;
  text->remove_prefix(expected.size());
  return true;
}

}  // namespace

Result<DirectoryToWrite> LayOutDirectory(
    const TensorsToWrite& tensors, std::span<const std::vector<uint32_t>> files,
    std::string_view path, const SaveOptions& options) {
  ArchiveWriterOptions archive;
  if (options.alignment.has_value()) archive.alignment = *options.alignment;
  archive.compute_crc32 = options.checksums;
  const std::string save_id = NewSaveId();
  std::string name_id = save_id;
  std::erase(name_id, '-');
  name_id.resize(kNameDigits);

  DirectoryToWrite directory;
  std::vector<StoredItem> items(tensors.tensors.size());
  for (uint32_t f = 0; f < files.size(); ++f) {
    std::vector<std::unique_ptr<const Layout>> archives;
    uint64_t end = 0;
    for (const uint32_t i : files[f]) {
      auto layout = torch::LayOutTensor(tensors.tensors[i], archive);
      if (!layout.ok()) {
        return std::move(layout).status().In(Quote(tensors.tensors[i].name));
      }
      items[i] = {f, end, (*layout)->size()};
      end += items[i].length;
      archives.push_back(*std::move(layout));
    }
    directory.files.push_back({fmt::format("__0_{}-{}.distcp", f, name_id),
                               JoinLayouts(std::move(archives))});
  }

  size_t most_dimensions = 0;
  for (const TensorToWrite& tensor : tensors.tensors) {
    most_dimensions = std::max(most_dimensions, tensor.shape.size());
  }
  const std::vector<int64_t> zeros(most_dimensions);
  Metadata metadata;
  for (const DirectoryToWrite::File& file : directory.files) {
    metadata.files.push_back(file.name);
  }
  for (uint32_t i = 0; i < tensors.tensors.size(); ++i) {
    const TensorToWrite& tensor = tensors.tensors[i];
    metadata.entries.push_back({true, i, {}});
    StoredTensor& stored = metadata.tensors.emplace_back();
    stored.name = tensor.name;
    stored.dtype = tensor.dtype;
    stored.shape = tensor.shape;
    stored.first_chunk = i;
    stored.chunk_count = 1;
    metadata.chunks.push_back(
        {std::span(zeros).first(tensor.shape.size()), tensor.shape, items[i]});
  }
  metadata.has_paths = true;
  metadata.version = kVersion;
  metadata.storage_meta = StorageMeta{.checkpoint_id = path,
                                      .save_id = save_id,
                                      .load_id = std::nullopt,
                                      .modules = {}};
  directory.metadata = EncodeMetadata(metadata);
  return directory;
}

bool IsOfDirectory(std::string_view name) {
  if (name == kMetadataName) return true;
  if (!Take("__", &name) || !TakeDigits(&name)) return false;
  if (name == kMetadataName) return true;
  if (!Take("_", &name) || !TakeDigits(&name)) return false;
  if (Take("-", &name)) {
    if (name.size() < kNameDigits) return false;
    const std::string_view id = name.substr(0, kNameDigits);
    if (id.find_first_not_of("0123456789abcdef") != id.npos) return false;
    name.remove_prefix(kNameDigits);
  }
  return name == ".distcp";
}

}  // namespace haulway::dcp
