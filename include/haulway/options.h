// Options for opening a file: its key, how strictly its format is checked, a
// limit for everything that it may ask for, with the default of each limit; and
// cancelling waits.
//
// A key is never part of a message, and its memory is cleared when it is no
// longer needed.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/fields.h"
#include "haulway/rules.h"
#include "haulway/status.h"

namespace haulway {

class ByteSource;            // haulway/source.h
enum class DType : uint8_t;  // haulway/dtype.h

inline constexpr size_t kKeyBytes = 32;

// A Secret holds bytes and clears them when it is destroyed.
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

// Decrypts a checkpoint or encrypts a new one: a key of kKeyBytes, or a
// passphrase from which the key is derived. If both are empty: no encryption.
struct EncryptionKey {
  Secret key;
  Secret passphrase;

  bool empty() const { return key.empty() && passphrase.empty(); }
};

inline constexpr FieldTable kEncryptionKeyFields{

    Field("key", &EncryptionKey::key, "key: 32 bytes",
          {.secret = true, .in_python = false, .flag = "-"}),
    Field("passphrase", &EncryptionKey::passphrase, "passphrase",
          {.secret = true, .in_python = false, .flag = "-"}),
};
constexpr const auto& FieldsOf(const EncryptionKey&) {
  return kEncryptionKeyFields;
}

// The option `threads` of every struct that has one.
inline constexpr std::string_view kThreadsMeaning =
    "number of threads; 0: as many as this process may use";
inline constexpr uint64_t kMostThreads = 65535;

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

// kStrict refuses everything listed in docs/formats/torch.md; kLenient accepts
// what PyTorch accepts. Both are equally safe for memory.
enum class Strictness : uint8_t { kStrict, kLenient };

// Limits for one file. A file that exceeds one fails with kLimit, and the
// message names the field. docs/threat-model.md gives the reason for each
// default.
struct ParseLimits {
  // Everything before the tensors: a zip's directory, an index, headers.
  uint64_t max_directory_bytes = 2 * kGiB;
  uint64_t max_entries = 16'000'000;
  uint64_t max_inflated_bytes = 64 * kGiB;  // Inflated size of one record.
  // Deflate itself reaches at most about 1032.
  uint64_t max_inflate_ratio = 1100;
  // The same for pickles and other parsed records.
  uint64_t max_metadata_inflate_ratio = 64;

  // Pickle.
  uint64_t max_pickle_bytes = 2 * kGiB;
  int max_pickle_protocol = 5;
  uint32_t max_depth = 1000;  // Nesting of containers and reductions.
  uint64_t max_memo_entries = 256'000'000;
  uint64_t max_items = 256'000'000;  // In one list, tuple, dict or set.
  uint64_t max_integer_bytes = 64 * kKiB;
  // Memory for parsing and for the parsed tree. max_tree_bytes_per_byte is
  // relative to the pickle's size: no valid opcode exceeds it; it only catches
  // bugs. max_tree_bytes_per_stored_byte is relative to the pickle's size in
  // the file, which matters if the pickle is deflated. max_tree_bytes is
  // absolute. The names of tensors may take as much again.
  uint64_t max_tree_bytes_per_byte = 64;
  uint64_t max_tree_bytes_per_stored_byte = 256;
  uint64_t max_tree_bytes = 32 * kGiB;

  // Safetensors.
  uint64_t max_header_bytes = 100'000'000;  // The format's own limit.
  uint32_t max_json_depth = 128;            // Nesting in a header.

  uint64_t max_npy_header_bytes =
      64 * kKiB;  // Header of an npy file or npz member.

  // Tensors.
  uint64_t max_tensors = 64'000'000;
  uint32_t max_rank = 64;

  // Cost of deriving a key from a passphrase, which the file states.
  uint64_t max_kdf_operations = 16;
  uint64_t max_kdf_memory_bytes = 2 * kGiB;
  // Number of keys derived for one file. All of them together may cost no more
  // than one derivation at the two limits above.
  uint32_t max_kdf_derivations = 16;
};

// Which weights of a checkpoint of DeepSpeed: the 32-bit ones of the optimizer,
// or those with which the model computes.
enum class TrainedWeights : uint8_t { kMaster, kModel };
inline constexpr std::string_view kTrainedWeightsWords[] = {"master", "model"};
constexpr std::span<const std::string_view> WordsOf(TrainedWeights) {
  return kTrainedWeightsWords;
}

// Elements that several processes saved are compared, or those of the first
// process are taken.
enum class Replicas : uint8_t { kCheck, kFirst };
inline constexpr std::string_view kReplicasWords[] = {"check", "first"};
constexpr std::span<const std::string_view> WordsOf(Replicas) {
  return kReplicasWords;
}

// Opens what a path or URL names.
using SourceOpener = std::function<Result<std::shared_ptr<const ByteSource>>(
    std::string_view uri)>;

// A LoRA adapter to merge: a folder as peft writes it, or its file of tensors.
struct LoraAdapter {
  std::string path;
  // Multiplies what the adapter adds.
  double weight = 1;
};

// Returns the adapter that PATH or PATH:WEIGHT names, the weight a decimal
// number. Fails with kInvalidArgument for an empty path and a weight that is
// not finite.
HAULWAY_EXPORT Result<LoraAdapter> ParseLoraAdapter(std::string_view text);

struct OpenOptions {
  Strictness strictness = Strictness::kStrict;
  ParseLimits limits;
  // Names, as "module.name", that may occur in a pickle in addition to those
  // always allowed. They are kept as data; nothing is imported.
  std::vector<std::string> allowed_globals;
  // Byte order of a file without a byteorder record.
  bool big_endian_default = false;
  // Check the frame of every storage when opening, in one vectored read, so
  // that all offsets in the index are verified. Otherwise a frame is checked
  // when its storage is read.
  bool check_frames = false;
  // Compare each computed payload offset with the offset in its local header.
  // In the command line and in Python, HAULWAY_SERIALIZATION_DEBUG=1 sets this.
  bool debug_offsets = false;
  // For encrypted files. Without a key their index can be read but not their
  // data.
  EncryptionKey key;
  // Keep meta tensors without a storage, in formats that would load them as
  // zeros.
  bool keep_meta = false;
  // Open a file that is a part of a model as it is, without the other parts.
  bool alone = false;
  // The kind of state to open, for the files of the processes of a training:
  // "optim"; empty: the model.
  std::string part;
  TrainedWeights weights = TrainedWeights::kMaster;
  Replicas replicas = Replicas::kCheck;
  // Give each layer tensors of its own, instead of one tensor of all layers,
  // for directories of torch.distributed.checkpoint that Megatron wrote.
  bool split_layers = false;
  // Present quantized weights as plain ones, computed when they are read; the
  // tensors with their scales disappear. config.json beside the file says how
  // they are quantized. No effect if nothing is quantized.
  bool dequantize = false;
  // The dtype of such weights, a floating-point one; by default that of
  // config.json, otherwise BF16; F32 for ggml's types.
  std::optional<DType> dequantized_dtype = std::nullopt;
  // Allow casts of the stored numbers of quantized weights, and of their
  // scales.
  bool raw = false;
  // Present weights with these adapters merged into them, one after another,
  // computed when they are read, after `dequantize`.
  std::vector<LoraAdapter> lora;
  // Present the tensors that these rules make, computed when they are read,
  // after `dequantize` and `lora`.
  Rules rules;
  // Opens the adapters and the file of the rules; by default OpenSource() of
  // haulway/open.h.
  SourceOpener open_input = nullptr;
};

inline constexpr FieldTable kOpenOptionFields{

    Field("lenient", &OpenOptions::strictness,
          "accept what other readers accept, not only what the format allows; "
          "see docs/formats"),
    Field("keep_meta", &OpenOptions::keep_meta,
          "return tensors that have a shape but no data in the file as meta "
          "tensors, instead of zeros",
          {.flag = "-"}),
    Field("alone", &OpenOptions::alone,
          "open one part of a model in several GGUF files by itself, without "
          "the others"),
    Field("part", &OpenOptions::part,
          "which state of the files that the processes of a training wrote: "
          "model, optim, extra_state or another prefix of their names; see "
          "docs/rank-files.md",
          {.value_name = "NAME"}),
    Field("weights", &OpenOptions::weights,
          "which weights of a checkpoint of DeepSpeed: the optimizer's, in 32 "
          "bits, or the model's"),
    Field("replicas", &OpenOptions::replicas,
          "compare what several processes of a training saved of the same "
          "tensor, or take the first one's"),
    Field("split_layers", &OpenOptions::split_layers,
          "split the tensors in which Megatron stacks those of all layers: "
          "X.layers.Y becomes X.layers.0.Y, X.layers.1.Y, and so on"),
    Field("dequantize", &OpenOptions::dequantize,
          "present quantized weights as plain ones, computed when they are "
          "read; see docs/quantized.md",
          {.flag = "-"}),
    Field("raw", &OpenOptions::raw,
          "allow casts of the stored numbers of quantized weights and of their "
          "scales",
          {.flag = "-"}),
    Field("lora", &OpenOptions::lora,
          "LoRA adapters of peft to merge into the weights, one after another: "
          "a path or URL, or a list of these and of pairs (path, weight); see "
          "docs/quantized.md",
          {.flag = "-"}),
    Field("rules", &OpenOptions::rules,
          "rules that rename, stack, split and compute tensors: a preset "
          "(stack-experts, split-experts, gguf-to-hf), the path or URL of a "
          "JSON file, or a list; see docs/quantized.md",
          {.flag = "-"}),
    Field("debug", &OpenOptions::debug_offsets,
          "compare every computed offset with the one in its header when the "
          "file is opened",
          {.flag = "-"}),
    Field("check_frames", &OpenOptions::check_frames,
          "read the header of every storage when the file is opened",
          {.in_python = false, .flag = "-"}),
    Field("big_endian_default", &OpenOptions::big_endian_default,
          "read files that do not state their byte order as big-endian",
          {.in_python = false, .flag = "-"}),
    Field("allowed_globals", &OpenOptions::allowed_globals,
          "names that pickles may contain in addition to those always allowed",
          {.in_python = false, .flag = "-"}),
    FieldsOfMember(&OpenOptions::key),
};
constexpr const auto& FieldsOf(const OpenOptions&) { return kOpenOptionFields; }

// A CancelScope makes waits cancellable: while it lives and `*flag` is true,
// every wait of its thread for a server ends with kCancelled within a tenth of
// a second. Scopes nest, and the flag of any of them cancels. Requires: `flag`
// is null or outlives the scope.
class HAULWAY_EXPORT CancelScope {
 public:
  explicit CancelScope(const std::atomic<bool>* flag);
  CancelScope(const CancelScope&) = delete;
  CancelScope& operator=(const CancelScope&) = delete;
  ~CancelScope();

  // Returns whether this thread must stop.
  static bool IsCancelled();
  // Returns the innermost scope of this thread, or null. The constructor below
  // applies that scope and the scopes around it to another thread; they must
  // outlive the new scope.
  static const CancelScope* Current();
  explicit CancelScope(const CancelScope* current);

 private:
  const std::atomic<bool>* const flag_;
  const CancelScope* const outer_;
  const CancelScope* const before_;
};

}  // namespace haulway
