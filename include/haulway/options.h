// How a file is taken: with what key, how strictly, and every cap on what it
// may ask for, with its default; and how to end what waits.
//
// A key is never part of a message, and its memory is cleared when it is no
// longer needed.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/status.h"

namespace haulway {

inline constexpr size_t kKeyBytes = 32;

// A Secret is bytes that are cleared when it goes.
class HAULWAY_EXPORT Secret {
 public:
  Secret() = default;
  explicit Secret(std::span<const std::byte> bytes);
  explicit Secret(std::string_view text);
  Secret(const Secret& other);
  Secret& operator=(const Secret& other);
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  ~Secret();

  std::span<const std::byte> bytes() const HAULWAY_LIFETIME_BOUND {
    return {bytes_.get(), size_};
  }
  bool empty() const { return size_ == 0; }

 private:
  void Clear();
  std::unique_ptr<std::byte[]> bytes_;
  size_t size_ = 0;
};

// What opens an encrypted checkpoint, or closes a new one: a key of kKeyBytes,
// or a passphrase from which one is derived. Neither: no encryption.
struct EncryptionKey {
  Secret key;
  Secret passphrase;

  bool empty() const { return key.empty() && passphrase.empty(); }
};

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

// kStrict refuses everything on the list in docs/formats/torch.md; kLenient
// takes what PyTorch takes. Neither is less safe for memory than the other.
enum class Strictness : uint8_t { kStrict, kLenient };

// A file that passes one of these fails with kLimit, and the message names the
// field. The reason for each default is in docs/threat-model.md.
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
  // Memory that parsing and the parsed tree may take: as a multiple of the
  // pickle's size, which every opcode stays below, so that this is a safety
  // net; as a multiple of what the file stores of it, which counts where the
  // pickle is deflated; and in all. Names of tensors may take as much again.
  uint64_t max_tree_bytes_per_byte = 64;
  uint64_t max_tree_bytes_per_stored_byte = 256;
  uint64_t max_tree_bytes = 32 * kGiB;

  // Safetensors.
  uint64_t max_header_bytes = 100'000'000;  // The format's own.
  uint32_t max_json_depth = 128;            // Nesting in a header.

  uint64_t max_npy_header_bytes = 64 * kKiB;  // Of an npy file or member.

  // Tensors.
  uint64_t max_tensors = 64'000'000;
  uint32_t max_rank = 64;

  // Cost of turning a passphrase into a key, which the file names.
  uint64_t max_kdf_operations = 16;
  uint64_t max_kdf_memory_bytes = 2 * kGiB;
  // Keys derived for one file: so many, and all of them together at no more
  // than the cost of one that both of the above allow.
  uint32_t max_kdf_derivations = 16;
};

struct OpenOptions {
  Strictness strictness = Strictness::kStrict;
  ParseLimits limits;
  // Names that may stand in a pickle beside those always allowed, as
  // "module.name". They are kept as data; nothing is imported.
  std::vector<std::string> allowed_globals;
  // What a file without a byteorder record is written in.
  bool big_endian_default = false;
  // Check every storage's frame now, in one vectored read, so that all
  // offsets in the index are proven; otherwise each is checked when read.
  bool check_frames = false;
  // Compare each computed payload offset with the one in its local header;
  // HAULWAY_SERIALIZATION_DEBUG=1 sets this in the command line and Python.
  bool debug_offsets = false;
  // For encrypted files. Without it their index can be read, their data not.
  EncryptionKey key;
  // Leave meta tensors of formats that load them as zeros without a storage.
  bool keep_meta = false;
};

// While a CancelScope lives, what its thread waits for from a server ends with
// kCancelled, within a tenth of a second, once `*flag` is true. Scopes nest:
// any of them ends it. Requires: `flag`, if not null, outlives it.
class HAULWAY_EXPORT CancelScope {
 public:
  explicit CancelScope(const std::atomic<bool>* flag);
  CancelScope(const CancelScope&) = delete;
  CancelScope& operator=(const CancelScope&) = delete;
  ~CancelScope();

  // Whether this thread is to stop.
  static bool IsCancelled();
  // The innermost scope of this thread, null without one; and the same scopes
  // for another thread, while those of this one live.
  static const CancelScope* Current();
  explicit CancelScope(const CancelScope* current);

 private:
  const std::atomic<bool>* const flag_;
  const CancelScope* const outer_;
  const CancelScope* const before_;
};

}  // namespace haulway
