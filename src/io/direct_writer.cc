#include "io/direct_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/page_bytes.h"

namespace haulway {

namespace {

// Smaller writes take a disk as long, and the page cache can merge them.
constexpr uint64_t kSmallestDirect = 64 * kKiB;
constexpr uint64_t kMostEdgeBytes = 4 * kMiB;

// Returns the block size: at least a page, because whole blocks on disk must be
// whole pages in the page cache.
uint64_t BlockBytes() { return std::max<uint64_t>(PageBytes(), 4096); }

using Parts = std::vector<std::span<const std::byte>>;

// Removes the first `length` bytes from `parts` and returns them.
Parts TakeFirst(uint64_t length, std::span<std::span<const std::byte>>* parts) {
  Parts first;
  while (length != 0) {
    std::span<const std::byte>& part = parts->front();
    const uint64_t bytes = std::min<uint64_t>(length, part.size());
    if (bytes != 0) first.push_back(part.first(bytes));
    part = part.subspan(bytes);
    length -= bytes;
    if (part.empty()) *parts = parts->subspan(1);
  }
  return first;
}

}  // namespace

Status DirectWriter::WriteAt(
    uint64_t offset, std::span<const std::span<const std::byte>> parts) {
  uint64_t length = 0;
  for (const auto part : parts) length += part.size();
  const uint64_t block = BlockBytes();
  const uint64_t first = (offset + block - 1) / block * block;
  const uint64_t last = (offset + length) / block * block;
  if (last < first + kSmallestDirect) return Keep(offset, parts);
  Parts copy(parts.begin(), parts.end());
  std::span<std::span<const std::byte>> rest = copy;
  HAULWAY_TRY(Keep(offset, TakeFirst(first - offset, &rest)));
  for (uint64_t at = first; at < last;) {
    const uint64_t end =
        std::min(last, at / kRequestBytes * kRequestBytes + kRequestBytes);
    HAULWAY_TRY(WriteBlocks(at, TakeFirst(end - at, &rest)));
    at = end;
  }
  return Keep(last, rest);
}

// Writes whole blocks. Requires: at most kRequestBytes.
Status DirectWriter::WriteBlocks(
    uint64_t offset, std::span<const std::span<const std::byte>> parts) {
  const auto address = reinterpret_cast<uintptr_t>(parts[0].data());
  Buffer blocks;
  std::span<const std::byte> whole = parts[0];
  if (parts.size() > 1 || address % BlockBytes() != 0) {
    HAULWAY_ASSIGN(blocks, memory_.Take(kRequestBytes));
    std::byte* at = blocks.mutable_bytes().data();
    for (const auto part : parts) {
      std::memcpy(at, part.data(), part.size());
      at += part.size();
    }
    whole = blocks.bytes().first(
        static_cast<size_t>(at - blocks.mutable_bytes().data()));
  }
  Status status =
      WriteFully(direct_.get(), offset, std::span(&whole, 1), kRequestBytes);
  if (status.ok()) direct_bytes_ += whole.size();
  if (status.os_error() == EINVAL) {  // The file system needs larger blocks.
    status = WriteFully(buffered_fd_, offset, std::span(&whole, 1));
  }
  return status;
}

Status DirectWriter::Keep(uint64_t offset,
                          std::span<const std::span<const std::byte>> parts) {
  Edge edge{offset, {}};
  for (const auto part : parts) {
    edge.bytes.insert(edge.bytes.end(), part.begin(), part.end());
  }
  if (edge.bytes.empty()) return Status();
  std::vector<Edge> full;
  {
    const std::lock_guard lock(mutex_);
    edge_bytes_ += edge.bytes.size();
    edges_.push_back(std::move(edge));
    if (edge_bytes_ < kMostEdgeBytes) return Status();
    full.swap(edges_);
    edge_bytes_ = 0;
  }
  return WriteEdges(std::move(full));
}

Status DirectWriter::Finish() {
  const std::lock_guard lock(mutex_);
  return WriteEdges(std::move(edges_));
}

Status DirectWriter::WriteEdges(std::vector<Edge> edges) const {
  std::ranges::sort(edges, {}, &Edge::offset);
  Parts run;  // Edges that are adjacent.
  uint64_t begin = 0;
  uint64_t end = 0;
  for (const Edge& edge : edges) {
    if (edge.offset != end && !run.empty()) {
      HAULWAY_TRY(WriteFully(buffered_fd_, begin, run));
      run.clear();
    }
    if (run.empty()) begin = edge.offset;
    run.emplace_back(edge.bytes);
    end = edge.offset + edge.bytes.size();
  }
  return run.empty() ? Status() : WriteFully(buffered_fd_, begin, run);
}

}  // namespace haulway
