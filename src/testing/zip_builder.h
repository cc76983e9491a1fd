// Builds zip archives in memory, byte for byte as torch's writer lays them out.
//
// A test builds a valid archive, then overwrites a field: the result has the
// position of every header.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace haulway::test {

// Returns `value` as `bytes` bytes, least significant first.
std::string Little(uint64_t value, int bytes);
// Overwrites the field of `width` bytes at `at`.
void Put(std::string* bytes, uint64_t at, uint64_t value, int width);

struct ZipRecord {
  std::string name;  // With its folder.
  std::string data;
  bool deflated = false;
  std::optional<uint32_t> crc32 = {};  // Replaces the correct CRC-32.
  // More padding than torch's writer uses, and bytes after the record.
  uint16_t extra_padding = 0;
  std::string gap = {};
};

struct ZipOptions {
  uint64_t alignment = 64;
  // Without these three, the archive is as ordinary tools write it: no padding,
  // sizes and CRC-32 in the local header, one end record.
  bool padding = true;
  bool descriptors = true;
  bool zip64_end = true;
  // Store sizes as 0xFFFFFFFF, with the true ones in a zip64 extra field.
  bool saturated = false;
};

struct PlacedRecord {
  uint64_t header = 0;
  uint64_t payload = 0;
  uint64_t descriptor = 0;  // Or where it would be.
  uint64_t entry = 0;       // Position in the directory.
};

struct BuiltZip {
  std::string bytes;
  std::vector<PlacedRecord> records;
  uint64_t directory = 0;
  // Position of the zip64 end record; 0, as for the locator, if there is none.
  uint64_t zip64_end = 0;
  uint64_t locator = 0;
  uint64_t end = 0;
};

BuiltZip BuildZip(const std::vector<ZipRecord>& records,
                  const ZipOptions& options = {});

// A tensor of a state dict, contiguous from `offset`.
struct NamedTensor {
  std::string name;
  std::string storage_class;  // "FloatStorage".
  std::string key;
  uint64_t numel = 0;  // Number of elements of the storage.
  std::vector<uint64_t> shape;
  uint64_t offset = 0;
};

// Returns the pickle that torch.save() writes for an OrderedDict of tensors at
// protocol 2, including the memo.
std::string PickleStateDict(const std::vector<NamedTensor>& tensors);

// Returns the records of a checkpoint: the pickle, one record "data/KEY" per
// storage, and the version.
std::vector<ZipRecord> CheckpointRecords(
    std::string_view folder, std::string pickle,
    const std::vector<std::pair<std::string, std::string>>& storages);

}  // namespace haulway::test
