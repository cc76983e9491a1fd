// The npy header: bytes to facts, with no I/O.
//
//   magic "\x93NUMPY", version, length of the header
//   header             {'descr': '<f4', 'fortran_order': False,
//                       'shape': (3,), }
//   the rest           the elements
//
// Specification: docs/formats/npy.md, whose rules Nnn are those here.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "haulway/dtype.h"
#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway::npy {

inline constexpr std::string_view kMagic = "\x93NUMPY";
// Bytes that ParsePrefix() needs, if the array is that long.
inline constexpr uint64_t kPrefixBytes = 12;

struct Prefix {
  uint8_t version = 0;        // 1, 2 or 3; the minor version is always 0.
  uint64_t prefix_bytes = 0;  // 10 or 12.
  uint64_t header_bytes = 0;

  uint64_t data_offset() const { return prefix_bytes + header_bytes; }
};

// Parses the start of an array of `array_bytes`, including the header, by rules
// N01 to N03.
Result<Prefix> ParsePrefix(std::span<const std::byte> start,
                           uint64_t array_bytes, const ParseLimits& limits);

struct ArrayHeader {
  // kOpaque if the elements are not numbers; the array is then their bytes, and
  // `refusal` says why they cannot be loaded.
  DType dtype = DType::kOpaque;
  Status refusal;
  // Stored size of an element, unless the type contains objects or is unknown.
  std::optional<uint64_t> item_bytes;
  bool big_endian = false;
  bool fortran_order = false;
  std::span<const int64_t> shape;
  uint64_t nbytes = 0;
  // Size of all elements, if item_bytes is known.
  std::optional<uint64_t> stored_bytes;
};

// Parses the header by rules N04 to N12. `header` is the bytes from
// prefix_bytes to data_offset(), and `data_bytes` follow it. The shape is
// allocated in `arena`.
Result<ArrayHeader> ParseHeader(const Prefix& prefix,
                                std::span<const std::byte> header,
                                uint64_t data_bytes, Strictness strictness,
                                const ParseLimits& limits, TreeArena* arena);

// Returns the bytes before the elements of a file with this array, in row-major
// order and this machine's byte order, as NumPy writes them: version 1.0, with
// room for the first dimension to grow. Fails with kUnsupported for a dtype
// that NumPy lacks, and for more dimensions than NumPy supports.
Result<std::string> EncodeHeader(DType dtype, std::span<const int64_t> shape);

}  // namespace haulway::npy
