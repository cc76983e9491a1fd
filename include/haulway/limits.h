// Every cap on what a file may ask for, with its default.
//
// A file that passes one fails with kLimit, and the message names the field.
// The reason for each default is in docs/threat-model.md.

#pragma once

#include <cstdint>

namespace haulway {

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

struct ParseLimits {
  // What stands before the tensors: a zip's directory, an index, headers.
  uint64_t max_directory_bytes = 2 * kGiB;
  uint64_t max_entries = 16'000'000;
  uint64_t max_inflated_bytes = 64 * kGiB;  // One deflated record, inflated.
  uint64_t max_inflate_ratio = 1100;        // Deflate itself ends near 1032.
  // The same for pickles and other records that are parsed.
  uint64_t max_metadata_inflate_ratio = 64;

  // Pickle.
  uint64_t max_pickle_bytes = 2 * kGiB;
  int max_pickle_protocol = 5;
  uint32_t max_depth = 1000;  // Nesting of containers and reductions.
  uint64_t max_memo_entries = 256'000'000;
  uint64_t max_items = 256'000'000;  // In one list, tuple, dict or set.
  uint64_t max_integer_bytes = 64 * kKiB;
  // Memory the parsed tree may take, as a multiple of the pickle's size.
  // Every opcode costs a bounded number of bytes, so this is a safety net.
  uint64_t max_tree_bytes_per_byte = 64;

  // Safetensors.
  uint64_t max_header_bytes = 100'000'000;  // The format's own.
  uint32_t max_json_depth = 128;            // Nesting in a header.

  // Tensors.
  uint64_t max_tensors = 64'000'000;
  uint32_t max_rank = 64;

  // Cost of turning a passphrase into a key, which the file names.
  uint64_t max_kdf_operations = 16;
  uint64_t max_kdf_memory_bytes = 2 * kGiB;
};

}  // namespace haulway
