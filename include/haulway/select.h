// Selecting tensors by name, and parts of tensors by index and by rank. A
// selection is a list of requests for LoadTensors() and PlanTensors().
//
// Names are selected by patterns. A pattern is a glob that must match the whole
// name, as in Python's fnmatch.fnmatchcase():
//
//   *       any characters, including dots, or none
//   ?       any one character
//   [abc]   one of these; [a-c] a range, [!a-c] any but these
//
// Every other character matches itself ("[*]" is a star). "/.../" is a regular
// expression, in the syntax of RE2, that must match some part of the name.
//
// Parts are selected as in NumPy: numbers, slices with any step, "..." and new
// axes. As text: "0:4,:", "-1", "::-2,...".

#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/load.h"
#include "haulway/status.h"

namespace haulway {

struct NameOptions {
  // Patterns. A name is selected if a pattern of `include` matches it, or
  // `include` is not set, and no pattern of `exclude` matches it.
  std::optional<std::vector<std::string>> include = std::nullopt;
  std::vector<std::string> exclude = {};
  // Only names that begin with this prefix; the patterns are matched against
  // the rest of the name.
  std::string prefix = {};
};

// A NameFilter decides which names are selected.
//
// Threads: a NameFilter is immutable; use it from any number of threads.
class HAULWAY_EXPORT NameFilter {
 public:
  // Fails with kInvalidArgument for an invalid regular expression.
  static Result<NameFilter> Make(const NameOptions& options);
  // Selects every name.
  NameFilter();
  NameFilter(NameFilter&& other) noexcept;
  NameFilter& operator=(NameFilter&& other) noexcept;
  ~NameFilter();

  bool Matches(std::string_view name) const;
  // Returns whether a pattern matches the name, or there is no `include`: a
  // checkpoint of the other names would lack nothing.
  bool Mentions(std::string_view name) const;
  // Fails with kNotFound, naming the pattern, if a pattern of `include` or
  // `exclude` matches none of these names, or none begins with `prefix`: such a
  // pattern is most likely misspelled.
  Status CheckUsed(std::span<const std::string_view> names) const;
  // The same for the names of all tensors of these checkpoints.
  Status CheckUsed(std::initializer_list<const Checkpoint*> checkpoints) const;
  // Returns whether every name is selected.
  bool all() const { return rules_ == nullptr; }

 private:
  struct Rules;
  std::unique_ptr<const Rules> rules_;
};

// One item of an index.
struct IndexItem {
  enum class Kind : uint8_t {
    kNumber,    // One element, at `start`; negative: from the end.
    kSlice,     // start:stop:step, each optional.
    kEllipsis,  // Stands for all remaining dimensions.
    kNewAxis,   // A new dimension of one element.
  };
  Kind kind = Kind::kSlice;
  std::optional<int64_t> start = std::nullopt;
  std::optional<int64_t> stop = std::nullopt;
  std::optional<int64_t> step = std::nullopt;
};

// Parses an index given as text. Fails with kInvalidArgument for invalid text.
HAULWAY_EXPORT Result<std::vector<IndexItem>> ParseIndex(std::string_view text);

// A dimension of the result of a selection.
struct SelectedDim {
  // The tensor's dimension; nullopt for a new axis.
  std::optional<size_t> dim;
  uint64_t count = 1;
  // The dimension has stride 0 in the file: its only element is read once and
  // used for all.
  bool repeated = false;
};

// The part of a tensor that an index selects.
struct HAULWAY_EXPORT Selection {
  std::vector<DimSlice> slices;   // What to read: one for each dimension.
  std::vector<SelectedDim> dims;  // Dimensions of the result.

  // Returns the shape of the result, with repeated dimensions in full.
  std::vector<int64_t> shape() const;
  // Returns the strides of the result, in elements, over dense memory that
  // holds what is read.
  std::vector<int64_t> strides() const;
  // Returns whether the result has more elements than lie in the file between
  // its first and its last element. This happens with views whose strides
  // overlap; a few bytes could then ask for any amount of memory. `strides` are
  // the tensor's.
  bool IsLargerThan(std::span<const int64_t> strides) const;
};

// Returns the part that `index` selects of a tensor with this shape. Dimensions
// of stride 0 are read once; if `strides` is empty, there are none. Fails with
// kInvalidArgument for a number outside its dimension, a step of 0, two
// ellipses, and more items than dimensions.
HAULWAY_EXPORT Result<Selection> Select(std::span<const IndexItem> index,
                                        std::span<const int64_t> shape,
                                        std::span<const int64_t> strides = {});

// Part number `rank` of `world` parts of dimension `dim`, which counts from the
// end if negative. Sizes of parts differ by at most one, larger parts first, as
// in torch.tensor_split() and numpy.array_split().
struct ShardOptions {
  int64_t rank = 0;
  int64_t world = 1;
  int64_t dim = 0;
};

// Fails with kInvalidArgument if no tensor has such a part.
HAULWAY_EXPORT Status CheckShard(const ShardOptions& shard);
// Returns the index of the part. The index is empty, which selects everything,
// for a tensor without this dimension. Requires: CheckShard() succeeded.
HAULWAY_EXPORT std::vector<IndexItem> ShardIndex(std::span<const int64_t> shape,
                                                 const ShardOptions& shard);

struct SelectOptions {
  NameOptions names = {};
  // Parts as text, by tensor name. If there are any, and no names are selected,
  // only these tensors are selected.
  std::map<std::string, std::string> slices = {};
  // For every tensor without an entry in `slices`.
  std::optional<ShardOptions> shard = std::nullopt;
};

// A selected tensor. If it has no storage, its request cannot be loaded.
struct SelectedTensor {
  Entry entry;
  TensorRequest request;       // Without `out`.
  std::vector<int64_t> shape;  // Shape of the selected part.
};

// Returns the selected tensors in the checkpoint's order. Fails with
// kInvalidArgument as ParseIndex(), Select(), CheckShard() and
// NameFilter::Make() do, and with kNotFound for an unknown name in `slices`.
HAULWAY_EXPORT Result<std::vector<SelectedTensor>> SelectTensors(
    const Checkpoint& checkpoint, const SelectOptions& options);

}  // namespace haulway
