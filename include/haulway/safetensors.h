// Writing safetensors files.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/dtype.h"
#include "haulway/export.h"
#include "haulway/layout.h"
#include "haulway/status.h"

namespace haulway {

// A tensor whose elements lie densely and in row-major order.
struct DenseTensor {
  std::string_view name;  // Borrowed until the layout is made.
  DType dtype = DType::kU8;
  std::span<const int64_t> shape;
  std::span<const std::byte> bytes;  // Borrowed until the file is written.
  // Instead of bytes in memory: so many of a source, as a Payload has them.
  const ByteSource* source = nullptr;
  uint64_t source_offset = 0;
  uint64_t source_bytes = 0;
};

struct SafetensorsOptions {
  // The `__metadata__`; none is written for nullopt. Keys are sorted.
  std::optional<std::vector<std::pair<std::string, std::string>>> metadata;
  // Where tensors start, a multiple of 8. 4096 lets readers map pages.
  uint64_t alignment = 8;
};

// Lays out a file for Write(), byte for byte as the reference writer does
// for up to one key of metadata. Fails with kInvalidArgument for equal names,
// names that are not UTF-8, and bytes that do not match the shape; with
// kUnsupported for a dtype that the format lacks.
HAULWAY_EXPORT Result<std::unique_ptr<const Layout>> LayOutSafetensors(
    std::span<const DenseTensor> tensors,
    const SafetensorsOptions& options = {});

}  // namespace haulway
