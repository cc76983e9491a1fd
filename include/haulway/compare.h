// What is in checkpoints, beside one another and by itself: what differs
// between two, a digest of each tensor, and what the numbers are like.
//
// Tensors are read piece by piece, several at a time, whatever the format that
// they are in.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/dtype.h"
#include "haulway/fields.h"
#include "haulway/index.h"
#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway {

struct DiffOptions {
  // Whether to compare tensors of that name; by default all are compared.
  std::function<bool(std::string_view name)> select = nullptr;
  // Tensors of different dtypes are compared as numbers, and are the same if
  // these are.
  bool ignore_dtype = false;
  // Numbers a and b are the same if |a - b| <= absolute + relative * |b|; a NaN
  // is the same as a NaN. If both are 0, bytes must be equal, unless the dtypes
  // differ.
  double absolute = 0;
  double relative = 0;
  bool verify = false;  // Check the checksums of what is read.
  int threads = 0;      // 0: as many as the machine lets this process use.
  // Bounds the memory. A compressed storage is brought whole.
  uint64_t memory_budget = 256 * kMiB;
  // Called with bytes compared and bytes to compare, of one of the files, from
  // one thread at a time.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

enum class Difference : uint8_t {
  kShape,  // And perhaps the dtype.
  kDType,
  kBytes,  // Also where one of them has none: a meta tensor.
};

// "shape", "dtype", "bytes".
HAULWAY_EXPORT std::string_view Name(Difference difference);

// How the numbers of two tensors differ. Complex ones differ by the absolute
// value of their difference.
struct NumberDifference {
  uint64_t elements = 0;
  uint64_t differing = 0;  // By more than is tolerated.
  // Of the elements that are finite in both, or the same.
  double max_abs = 0;
  double mean_abs = 0;
  // Elements that are NaN, or infinite, in one of them or in both.
  uint64_t nan = 0;
  uint64_t inf = 0;
};

inline constexpr Field<NumberDifference> kNumberDifferenceFields[] = {
    {"elements", &NumberDifference::elements, "of each of the two"},
    {"differing", &NumberDifference::differing, "by more than is tolerated"},
    {"max_abs", &NumberDifference::max_abs, "the largest difference"},
    {"mean_abs", &NumberDifference::mean_abs, "the mean difference"},
    {"nan", &NumberDifference::nan, "elements that are NaN in one or both"},
    {"inf", &NumberDifference::inf, "elements infinite in one or both"},
};
inline std::span<const Field<NumberDifference>> FieldsOf(
    const NumberDifference&) {
  return kNumberDifferenceFields;
}

struct ChangedTensor {
  std::string name;
  Difference what = Difference::kBytes;
  DType a_dtype = DType::kU8;
  DType b_dtype = DType::kU8;
  std::vector<int64_t> a_shape;
  std::vector<int64_t> b_shape;
  // Of tensors of numbers that were compared: of one shape, and of one dtype
  // unless that is ignored.
  std::optional<NumberDifference> numbers = std::nullopt;
};

// All by name.
struct DiffReport {
  std::vector<std::string> added;    // In b only.
  std::vector<std::string> removed;  // In a only.
  std::vector<ChangedTensor> changed;
  uint64_t same = 0;            // Tensors that do not differ.
  uint64_t compared_bytes = 0;  // Of both.
  double seconds = 0;

  bool equal() const {
    return added.empty() && removed.empty() && changed.empty();
  }
};

// Compares the tensors of `a` and `b` by name; what else the objects hold, and
// metadata, is not looked at. The one tensor of an npy file, which has no name,
// is compared with the one of the other. Fails with kMismatch where a checksum
// differs; kUnsupported for conjugated tensors of a dtype that cannot be
// resolved; kCancelled if it was told to stop; else as reading does.
HAULWAY_EXPORT Result<DiffReport> Diff(const Checkpoint& a, const Checkpoint& b,
                                       const DiffOptions& options = {});

// A Manifest says what tensors there are, with a digest of each: the same for
// the same tensors whatever the format that they are in.
struct ManifestTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  // SHA-256 of the elements, dense, in row-major and little-endian order; none
  // of a meta tensor, which has no data.
  std::optional<std::array<std::byte, 32>> sha256 = std::nullopt;

  friend bool operator==(const ManifestTensor&,
                         const ManifestTensor&) = default;
};

// By name.
using Manifest = std::vector<ManifestTensor>;

struct ManifestOptions {
  // Whether a tensor of that name is in it; by default all are.
  std::function<bool(std::string_view name)> select = nullptr;
  bool verify = false;  // Check the checksums of what is read.
  int threads = 0;      // 0: as many as the machine lets this process use.
  // Bounds the memory. A compressed storage is brought whole.
  uint64_t memory_budget = 256 * kMiB;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

// Reads and digests the tensors, several at a time. Fails with kMismatch where
// a checksum differs; kUnsupported for conjugated tensors of a dtype that
// cannot be resolved; else as reading does.
HAULWAY_EXPORT Result<Manifest> MakeManifest(
    const Checkpoint& checkpoint, const ManifestOptions& options = {});

// One JSON object on one line, without a line break at its end.
HAULWAY_EXPORT std::string ManifestToJson(const Manifest& manifest);
// Fails with kInvalidArgument for what ManifestToJson() does not make; other
// fields of objects are ignored.
HAULWAY_EXPORT Result<Manifest> ManifestFromJson(std::string_view text);

// In what `found` is not what `expected` says, tensor by tensor: kNotFound for
// one that is missing, else kMismatch.
HAULWAY_EXPORT std::vector<Finding> CompareManifests(const Manifest& expected,
                                                     const Manifest& found);

// Of complex numbers, their absolute values.
struct TensorStats {
  uint64_t elements = 0;
  uint64_t nan = 0;
  uint64_t inf = 0;
  // Of those that are finite; 0 if there are none.
  double min = 0;
  double max = 0;
  double mean = 0;
  double std = 0;  // The standard deviation of all, as NumPy has it.
};

inline constexpr Field<TensorStats> kTensorStatFields[] = {
    {"elements", &TensorStats::elements, "of the tensor"},
    {"min", &TensorStats::min, "of those that are finite"},
    {"max", &TensorStats::max, "of those that are finite"},
    {"mean", &TensorStats::mean, "of those that are finite"},
    {"std", &TensorStats::std, "their standard deviation, as NumPy has it"},
    {"nan", &TensorStats::nan, "how many are NaN"},
    {"inf", &TensorStats::inf, "how many are infinite"},
};
inline std::span<const Field<TensorStats>> FieldsOf(const TensorStats&) {
  return kTensorStatFields;
}

struct TensorStatsOptions {
  int threads = 0;  // 0: as many as the machine lets this process use.
  // Bounds the memory. A compressed storage is brought whole.
  uint64_t memory_budget = 256 * kMiB;
  // Called with bytes done and bytes to do, from one thread at a time.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

// Reads the given rows of checkpoint.index().tensors, several at a time, in
// pieces. The result is parallel to them: nullopt of those that have no data or
// whose elements are no numbers (quantized ones, bits). It does not depend on
// threads. Requires: valid rows. Fails with kUnsupported for conjugated tensors
// of a dtype that cannot be resolved, kCancelled if it was told to stop, else
// as reading does.
HAULWAY_EXPORT Result<std::vector<std::optional<TensorStats>>> MeasureTensors(
    const Checkpoint& checkpoint, std::span<const uint32_t> tensors,
    const TensorStatsOptions& options = {});

}  // namespace haulway
