// Comparing checkpoints and measuring tensors: the differences between two
// checkpoints, a digest of each tensor, and statistics of the elements.
//
// Tensors of any format are read in pieces, several at a time. Options and
// reports have tables of fields, see fields.h: the command line and Python are
// made from them.

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

// Options that several structs of this file have.
inline constexpr std::string_view kVerifyMeaning =
    "check the checksums of the bytes that are read";
inline constexpr std::string_view kMemoryMeaning = "limit for working memory";
inline constexpr Option kMemoryOption = {.unit = Quantity::kBytes};

struct DiffOptions {
  // Returns whether to compare the tensors with this name; by default all are
  // compared.
  std::function<bool(std::string_view name)> select = nullptr;
  // Compare tensors of different dtypes by value: they are equal if their
  // numbers are.
  bool ignore_dtype = false;
  // Numbers a and b are equal if |a - b| <= absolute + relative * |b|; a NaN
  // equals a NaN. If both are 0, the bytes must be equal unless the dtypes
  // differ.
  double absolute = 0;
  double relative = 0;
  bool verify = false;  // Check the checksums of what is read.
  int threads = 0;      // 0: as many as this process may use.
  // Limit for memory. A compressed storage is read whole, whatever the limit.
  uint64_t memory_budget = 256 * kMiB;
  // Called with the bytes compared and the bytes to compare, counted in one of
  // the two files, from one thread at a time.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

inline constexpr FieldTable kDiffOptionFields{

    Field("ignore_dtype", &DiffOptions::ignore_dtype,
          "compare tensors of different dtypes by value"),
    Field("atol", &DiffOptions::absolute,
          "tolerance: a and b are equal if |a - b| <= ATOL + RTOL * |b|"),
    Field("rtol", &DiffOptions::relative, "relative part of the tolerance"),
    Field("verify", &DiffOptions::verify, kVerifyMeaning),
    Field("threads", &DiffOptions::threads, kThreadsMeaning,
          {.most = kMostThreads}),
    Field("memory_budget", &DiffOptions::memory_budget, kMemoryMeaning,
          kMemoryOption),
};
constexpr const auto& FieldsOf(const DiffOptions&) { return kDiffOptionFields; }

enum class Difference : uint8_t {
  kShape,  // The dtype may differ as well.
  kDType,
  kBytes,  // Also if only one is a meta tensor, or the quantizers differ.
};

// "shape", "dtype", "bytes".
HAULWAY_EXPORT std::string_view Name(Difference difference);

// How the numbers of two tensors differ. For complex numbers the difference is
// the absolute value of a - b.
struct NumberDifference {
  uint64_t elements = 0;
  uint64_t differing = 0;  // By more than the tolerance.
  // Computed over the elements that are finite in both tensors, or equal.
  double max_abs = 0;
  double mean_abs = 0;
  // Elements that are NaN or infinite in at least one of the two.
  uint64_t nan = 0;
  uint64_t inf = 0;
};

inline constexpr FieldTable kNumberDifferenceFields{
    Field("elements", &NumberDifference::elements,
          "number of elements in each tensor"),
    Field("differing", &NumberDifference::differing,
          "elements that differ by more than the tolerance"),
    Field("max_abs", &NumberDifference::max_abs, "largest absolute difference"),
    Field("mean_abs", &NumberDifference::mean_abs, "mean absolute difference"),
    Field("nan", &NumberDifference::nan,
          "elements that are NaN in at least one tensor"),
    Field("inf", &NumberDifference::inf,
          "elements that are infinite in at least one tensor"),
};
constexpr const auto& FieldsOf(const NumberDifference&) {
  return kNumberDifferenceFields;
}

// What a compared tensor is, in one of the two checkpoints.
struct TensorSide {
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
};

inline constexpr FieldTable kTensorKindFields{

    Field("dtype", &TensorSide::dtype, "dtype of the elements"),
    Field("shape", &TensorSide::shape, "shape of the tensor"),
};
constexpr const auto& FieldsOf(const TensorSide&) { return kTensorKindFields; }

struct ChangedTensor {
  std::string name;
  Difference what = Difference::kBytes;
  DType a_dtype = DType::kU8;
  DType b_dtype = DType::kU8;
  std::vector<int64_t> a_shape;
  std::vector<int64_t> b_shape;
  // Set if the tensors were compared as numbers: they have the same shape, and
  // the same dtype unless `ignore_dtype` is set.
  std::optional<NumberDifference> numbers = std::nullopt;

  TensorSide a() const { return {a_dtype, a_shape}; }
  TensorSide b() const { return {b_dtype, b_shape}; }
};

inline constexpr FieldTable kChangedTensorFields{

    Field("name", &ChangedTensor::name, "name of the tensor"),
    Field("what", &ChangedTensor::what,
          "what differs: \"shape\", \"dtype\" or \"bytes\""),
    Field("a", &ChangedTensor::a, "dtype and shape in a"),
    Field("b", &ChangedTensor::b, "dtype and shape in b"),
    FieldsOfMember(&ChangedTensor::numbers),
};
constexpr const auto& FieldsOf(const ChangedTensor&) {
  return kChangedTensorFields;
}

// All lists are sorted by name.
struct DiffReport {
  std::vector<std::string> added;    // In b only.
  std::vector<std::string> removed;  // In a only.
  std::vector<ChangedTensor> changed;
  uint64_t same = 0;            // Tensors that do not differ.
  uint64_t compared_bytes = 0;  // In both files together.
  double seconds = 0;

  bool equal() const {
    return added.empty() && removed.empty() && changed.empty();
  }
};

inline constexpr FieldTable kDiffReportFields{

    Field("equal", &DiffReport::equal, "true if nothing differs"),
    Field("added", &DiffReport::added, "names only in b"),
    Field("removed", &DiffReport::removed, "names only in a"),
    Field("changed", &DiffReport::changed, "tensors that differ"),
    Field("same", &DiffReport::same, "number of tensors that do not differ"),
    Field("compared_bytes", &DiffReport::compared_bytes,
          "bytes compared, in both files together"),
    Field("seconds", &DiffReport::seconds, "duration of the call"),
};
constexpr const auto& FieldsOf(const DiffReport&) { return kDiffReportFields; }

// Compares the tensors of `a` and `b` by name. Metadata, and values in the
// objects that are not tensors, are not compared. The tensor of an npy file has
// no name and is compared with the only tensor of the other file. Fails with
// kInvalidArgument for a tolerance that is negative or NaN, kMismatch if a
// checksum differs, kUnsupported for conjugated tensors of a dtype that cannot
// be resolved, kCancelled if `cancel` is set, otherwise as reading does.
HAULWAY_EXPORT Result<DiffReport> Diff(const Checkpoint& a, const Checkpoint& b,
                                       const DiffOptions& options = {});

// A Manifest lists tensors with a digest of each. Equal tensors have equal
// manifests, in every format.
struct ManifestTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  // SHA-256 of the elements, dense, in row-major and little-endian order. Not
  // set for a meta tensor, which has no data.
  std::optional<std::array<std::byte, 32>> sha256 = std::nullopt;

  friend bool operator==(const ManifestTensor&,
                         const ManifestTensor&) = default;
};

// Sorted by name.
using Manifest = std::vector<ManifestTensor>;

struct ManifestOptions {
  // Returns whether to include the tensor with this name; by default all are
  // included.
  std::function<bool(std::string_view name)> select = nullptr;
  bool verify = false;  // Check the checksums of what is read.
  int threads = 0;      // 0: as many as this process may use.
  // Limit for memory. A compressed storage is read whole, whatever the limit.
  uint64_t memory_budget = 256 * kMiB;
  // Called with bytes of tensors as they are digested; never at the same time.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

inline constexpr FieldTable kManifestOptionFields{

    Field("verify", &ManifestOptions::verify, kVerifyMeaning),
    Field("threads", &ManifestOptions::threads, kThreadsMeaning,
          {.most = kMostThreads}),
    Field("memory_budget", &ManifestOptions::memory_budget, kMemoryMeaning,
          kMemoryOption),
};
constexpr const auto& FieldsOf(const ManifestOptions&) {
  return kManifestOptionFields;
}

// Reads and digests the tensors, several at a time. Fails with kMismatch if a
// checksum differs, kUnsupported for conjugated tensors of a dtype that cannot
// be resolved, otherwise as reading does.
HAULWAY_EXPORT Result<Manifest> MakeManifest(
    const Checkpoint& checkpoint, const ManifestOptions& options = {});

// Returns one JSON object on one line, without a line break at its end.
HAULWAY_EXPORT std::string ManifestToJson(const Manifest& manifest);
// Fails with kInvalidArgument for text that is not a manifest. Unknown fields
// of objects are ignored.
HAULWAY_EXPORT Result<Manifest> ManifestFromJson(std::string_view text);

// Returns where `found` differs from `expected`, tensor by tensor: kNotFound
// for a tensor that is missing, otherwise kMismatch.
HAULWAY_EXPORT std::vector<Finding> CompareManifests(const Manifest& expected,
                                                     const Manifest& found);

// Statistics of one tensor. For complex numbers they are computed over absolute
// values.
struct TensorStats {
  uint64_t elements = 0;
  uint64_t nan = 0;
  uint64_t inf = 0;
  // Computed over the finite elements; 0 if there are none.
  double min = 0;
  double max = 0;
  double mean = 0;
  double std = 0;  // Population standard deviation, as numpy.std().
};

inline constexpr FieldTable kTensorStatFields{
    Field("elements", &TensorStats::elements, "number of elements"),
    Field("min", &TensorStats::min, "smallest finite element"),
    Field("max", &TensorStats::max, "largest finite element"),
    Field("mean", &TensorStats::mean, "mean of the finite elements"),
    Field(
        "std", &TensorStats::std,
        "population standard deviation of the finite elements, as numpy.std()"),
    Field("nan", &TensorStats::nan, "number of NaN elements"),
    Field("inf", &TensorStats::inf, "number of infinite elements"),
};
constexpr const auto& FieldsOf(const TensorStats&) { return kTensorStatFields; }

struct TensorStatsOptions {
  int threads = 0;  // 0: as many as this process may use.
  // Limit for memory. A compressed storage is read whole, whatever the limit.
  uint64_t memory_budget = 256 * kMiB;
  // Called with the bytes done and the bytes to do, from one thread at a time.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
};

inline constexpr FieldTable kTensorStatsOptionFields{

    Field("threads", &TensorStatsOptions::threads, kThreadsMeaning,
          {.most = kMostThreads}),
    Field("memory_budget", &TensorStatsOptions::memory_budget, kMemoryMeaning,
          kMemoryOption),
};
constexpr const auto& FieldsOf(const TensorStatsOptions&) {
  return kTensorStatsOptionFields;
}

// Reads the given rows of checkpoint.index().tensors in pieces, several at a
// time. The result is parallel to `tensors`: nullopt for a tensor without data
// or whose elements are not numbers (quantized ones, bits). The number of
// threads does not change the result. Requires: valid rows. Fails with
// kUnsupported for conjugated tensors of a dtype that cannot be resolved,
// kCancelled if `cancel` is set, otherwise as reading does.
HAULWAY_EXPORT Result<std::vector<std::optional<TensorStats>>> MeasureTensors(
    const Checkpoint& checkpoint, std::span<const uint32_t> tensors,
    const TensorStatsOptions& options = {});

}  // namespace haulway
