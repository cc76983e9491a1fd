#include "gguf/gguf_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "format/flat_reader.h"
#include "gguf/gguf_header.h"

namespace haulway::gguf {

namespace {

// Holds a header without a vocabulary. The next steps hold any with one.
constexpr uint64_t kFirstRead = 64 * kKiB;
constexpr uint64_t kGrowth = 4;

Result<Header> ReadHeader(const ByteSource& file, const OpenOptions& options,
                          TreeArena* arena) {
  uint64_t wanted = kFirstRead;
  std::vector<std::byte> bytes;
  while (true) {
    const uint64_t have = bytes.size();
    const uint64_t cap = options.limits.max_directory_bytes;
    if (wanted > cap) {
      return Status(Code::kLimit,
                    fmt::format("header of {} bytes or more passes "
                                "max_directory_bytes {}",
                                wanted, cap))
          .At(have);
    }
    bytes.resize(
        std::min({file.size(), cap, std::max(wanted, have * kGrowth)}));
    HAULWAY_TRY(file.ReadAt(have, std::span(bytes).subspan(have)));
    HAULWAY_ASSIGN(auto header,
                   ParseHeader(bytes, file.size(), options.strictness,
                               options.limits, arena, &wanted));
    if (header.has_value()) return *std::move(header);
  }
}

}  // namespace

bool IsGguf(std::span<const std::byte> head) {
  return head.size() >= kMagic.size() &&
         std::memcmp(head.data(), kMagic.data(), kMagic.size()) == 0;
}

Result<std::unique_ptr<const FormatReader>> OpenGguf(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  auto reader = std::make_unique<FlatReader>(Format::kGguf, std::move(source));
  HAULWAY_ASSIGN(Header header,
                 ReadHeader(*reader->source(), options, &reader->arena()));
  CheckpointIndex& index = reader->mutable_index();
  index.facts = {
      {"version", uint64_t{header.version}},
      {"alignment", header.alignment},
      {"header_bytes", header.header_bytes},
      {"data_offset", header.data_offset},
  };
  index.metadata = std::move(header.metadata);
  reader->Reserve(header.tensors.size());
  for (const HeaderTensor& tensor : header.tensors) {
    HAULWAY_TRY(reader->Append({.name = tensor.name,
                                .dtype = tensor.dtype,
                                .shape = tensor.shape,
                                .offset = header.data_offset + tensor.offset,
                                .nbytes = tensor.nbytes}));
  }
  return std::unique_ptr<const FormatReader>(std::move(reader));
}

Result<VerifyReport> VerifyGguf(std::shared_ptr<const ByteSource> source,
                                const VerifyOptions& options) {
  return ReportOpening(Format::kGguf, *source, options,
                       OpenGguf(source, options.open));
}

}  // namespace haulway::gguf
