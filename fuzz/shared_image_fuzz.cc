// Property: any bytes taken as shared memory result in an index or in a typed
// error. An accepted index lies within its memory, and equals the one that
// would be written for it. A checkpoint opened through it, if it can be, never
// reads outside of it.
//
// An input is the whole memory, if it begins with an H. Otherwise, after a byte
// that is not 0, it is an index followed by storages, in blocks of 16 bytes.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "load/recorded_source.h"
#include "load/shared_image.h"

namespace {

using haulway::Recording;
using haulway::ReplayedFile;
using haulway::SharedIndex;

std::vector<std::byte> ImageOf(std::span<const std::byte> input) {
  const auto blocks = std::to_integer<uint64_t>(input[0]);
  const auto index = input.subspan(1);
  const uint64_t offset = haulway::kSharedHeaderBytes + 16 * blocks;
  std::vector<std::byte> image =
      haulway::EncodeSharedHeader(offset, index.size());
  image.resize(offset);
  image.insert(image.end(), index.begin(), index.end());
  return image;
}

// Checks the encoding. The index is at the end of an image's contents.
void CheckEncoding(const SharedIndex& index, std::span<const std::byte> image) {
  Recording recording;
  for (const ReplayedFile& file : index.files) {
    recording.AddFile(std::string(file.name), file.size);
  }
  std::vector<Recording::File> files = recording.files();
  for (size_t f = 0; f < files.size(); ++f) {
    for (const auto& range : index.files[f].ranges) {
      const bool is_new =
          files[f]
              .ranges
              .emplace(range.offset, std::vector<std::byte>(range.bytes.begin(),
                                                            range.bytes.end()))
              .second;
      if (!is_new) return;  // Several empty ranges may have the same offset.
    }
  }
  const std::vector<std::byte> encoded =
      haulway::EncodeSharedIndex(files, index.storages, index.entries);
  uint64_t offset = 0;
  std::memcpy(&offset, image.data() + 8, sizeof(offset));
  if (encoded.size() > image.size() - offset ||
      std::memcmp(encoded.data(), image.data() + offset, encoded.size()) != 0) {
    abort();
  }
}

void CheckBounds(const SharedIndex& index, std::span<const std::byte> image) {
  if (index.files.empty()) abort();
  for (const haulway::SharedRange& range : index.storages) {
    if (range.offset == haulway::kNotShared) continue;
    if (range.offset < haulway::kSharedHeaderBytes ||
        range.offset > image.size() ||
        range.length > image.size() - range.offset) {
      abort();
    }
  }
  for (const ReplayedFile& file : index.files) {
    for (const auto& range : file.ranges) {
      if (range.offset > file.size ||
          range.bytes.size() > file.size - range.offset) {
        abort();
      }
    }
  }
}

void Try(std::span<const std::byte> image) {
  const auto index = haulway::ParseSharedImage(image);
  if (!index.ok()) return;
  CheckBounds(*index, image);
  CheckEncoding(*index, image);
  const auto source = haulway::ReplaySource(
      std::make_shared<const std::vector<ReplayedFile>>(index->files), nullptr,
      "shared");
  const auto opened = haulway::Checkpoint::Open(source);
  if (!opened.ok()) return;
  std::byte last;
  (void)source->ReadAt(source->size() - 1, std::span(&last, 1));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  if (input.empty()) return 0;
  if (input[0] == std::byte{'H'}) {
    const std::vector<std::byte> whole(input.begin(), input.end());
    Try(whole);
  } else if (input[0] != std::byte{0}) {
    Try(ImageOf(input));
  }
  return 0;
}
