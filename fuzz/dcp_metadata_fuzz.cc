// Property: any bytes parsed as the metadata of a distributed checkpoint result
// in facts or in a typed error. Every chunk in the facts lies within its tensor
// and names a file in the directory, and chunks that pass the layout check have
// as many bytes as their tensors. Encoding the facts and parsing them again
// returns the same facts. Any bytes parsed as the head of a chunk's archive
// result in a position within it, or in an error.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "dcp/dcp_archive.h"
#include "dcp/dcp_metadata.h"

namespace {

using haulway::dcp::Chunk;
using haulway::dcp::Metadata;
using haulway::dcp::StoredTensor;

void CheckFiles(const Metadata& metadata) {
  for (const std::string_view file : metadata.files) {
    if (file.empty() || file.front() == '/' || file.find("//") != file.npos ||
        file == ".." || file.starts_with("../") || file.ends_with("/..") ||
        file.find("/../") != file.npos) {
      abort();
    }
  }
}

uint64_t BytesOf(const StoredTensor& tensor, const Chunk& chunk) {
  uint64_t bytes = haulway::ItemBytes(tensor.dtype);
  for (const int64_t size : chunk.sizes) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

void CheckTensors(const Metadata& metadata) {
  for (const StoredTensor& tensor : metadata.tensors) {
    uint64_t bytes = 0;
    for (const Chunk& chunk : metadata.ChunksOf(tensor)) {
      if (chunk.sizes.size() != tensor.shape.size()) abort();
      bytes += BytesOf(tensor, chunk);
      if (bytes > 0 && chunk.item.file != haulway::dcp::kNoFile &&
          chunk.item.file >= metadata.files.size()) {
        abort();
      }
    }
    if (bytes != tensor.nbytes) abort();
  }
}

void CheckWrittenAgain(const Metadata& metadata) {
  haulway::TreeArena arena;
  const std::string written = haulway::dcp::EncodeMetadata(metadata);
  const auto again = haulway::dcp::ParseMetadata(
      std::as_bytes(std::span(written)), {}, &arena);
  if (!again.ok() || again->entries.size() != metadata.entries.size() ||
      again->chunks.size() != metadata.chunks.size()) {
    abort();
  }
  for (size_t i = 0; i < metadata.entries.size(); ++i) {
    if (again->NameOf(again->entries[i]) !=
        metadata.NameOf(metadata.entries[i])) {
      abort();
    }
  }
  for (size_t i = 0; i < metadata.chunks.size(); ++i) {
    if (again->chunks[i].item.offset != metadata.chunks[i].item.offset ||
        again->chunks[i].item.length != metadata.chunks[i].item.length ||
        !std::ranges::equal(again->chunks[i].item.transforms,
                            metadata.chunks[i].item.transforms)) {
      abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  haulway::TreeArena arena;
  const auto parsed = haulway::dcp::ParseMetadata(bytes, {}, &arena);
  if (parsed.ok()) {
    CheckFiles(*parsed);
    if (haulway::dcp::CheckLayout(*parsed).ok()) {
      CheckTensors(*parsed);
      CheckWrittenAgain(*parsed);
    }
  }
  const auto head = haulway::dcp::ParseArchiveHead(bytes, size + 1);
  if (head.ok() && head->has_value() && (*head)->payload > size) abort();
  return 0;
}
