#include "npy/npy_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "format/flat_reader.h"
#include "npy/npy_header.h"

namespace haulway::npy {

namespace {

// NumPy's header for an array of few dimensions has 128 bytes.
constexpr uint64_t kFirstRead = 1 * kKiB;

}  // namespace

bool IsNpy(std::span<const std::byte> head) {
  return head.size() >= kMagic.size() &&
         std::memcmp(head.data(), kMagic.data(), kMagic.size()) == 0;
}

Result<std::unique_ptr<const FormatReader>> OpenNpy(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  auto reader = std::make_unique<FlatReader>(Format::kNpy, std::move(source));
  const ByteSource& file = *reader->source();
  std::vector<std::byte> start(std::min(file.size(), kFirstRead));
  HAULWAY_TRY(file.ReadAt(0, start));
  HAULWAY_ASSIGN(
      const Prefix prefix,
      ParsePrefix(std::span(start).first(std::min(start.size(), kPrefixBytes)),
                  file.size(), options.limits));
  if (prefix.data_offset() > start.size()) {
    const size_t have = start.size();
    start.resize(prefix.data_offset());
    HAULWAY_TRY(file.ReadAt(have, std::span(start).subspan(have)));
  }
  HAULWAY_ASSIGN(
      ArrayHeader header,
      ParseHeader(
          prefix,
          std::span(start).subspan(prefix.prefix_bytes, prefix.header_bytes),
          file.size() - prefix.data_offset(), options.strictness,
          options.limits, &reader->arena()));
  HAULWAY_TRY(std::move(header.refusal));
  HAULWAY_TRY(reader->Append({.name = "tensor",
                              .dtype = header.dtype,
                              .shape = header.shape,
                              .offset = prefix.data_offset(),
                              .nbytes = header.nbytes,
                              .column_major = header.fortran_order}));
  CheckpointIndex& index = reader->mutable_index();
  if (header.big_endian) {
    index.storages[0].swap_bytes = Describe(header.dtype).swap_bytes;
  }
  index.facts = {
      {"version", uint64_t{prefix.version}},
      {"byteorder", std::string(header.big_endian ? "big" : "little")},
      {"fortran_order", header.fortran_order},
      {"data_offset", prefix.data_offset()},
  };
  index.flat = false;
  auto* object = reader->arena().New<Object>();
  object->tensor = 0;
  index.root = Value::Of(object);
  return std::unique_ptr<const FormatReader>(std::move(reader));
}

Result<VerifyReport> VerifyNpy(std::shared_ptr<const ByteSource> source,
                               const VerifyOptions& options) {
  return ReportOpening(Format::kNpy, *source, options,
                       OpenNpy(source, options.open));
}

}  // namespace haulway::npy
