// Choosing: tensors by name, and parts of them by index and by rank. What is
// chosen is a list of requests, as LoadTensors() and PlanTensors() take it.
//
// Names are chosen by patterns. A pattern is a glob that the whole name must
// match, as fnmatch.fnmatchcase() of Python has it:
//
//   *       any characters, dots among them, or none
//   ?       any one character
//   [abc]   one of these; [a-c] a range, [!a-c] any but these
//
// and everything else is itself ("[*]" is a star). "/.../" is a regular
// expression, in the syntax of RE2, that some part of the name must match.
//
// Parts are chosen as in NumPy: numbers, slices with any step, "..." and new
// axes; as text, "0:4,:", "-1", "::-2,...".

#pragma once

#include <cstdint>
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
  // Patterns. A name is chosen if one of `include` matches it, or there is no
  // such list, and none of `exclude` does.
  std::optional<std::vector<std::string>> include = std::nullopt;
  std::vector<std::string> exclude = {};
  // Only names that begin so; the patterns see what follows it.
  std::string prefix = {};
};

// A NameFilter says which names are chosen.
//
// Threads: it is immutable; use it from any number of threads.
class HAULWAY_EXPORT NameFilter {
 public:
  // Fails with kInvalidArgument for what is no regular expression.
  static Result<NameFilter> Make(const NameOptions& options);
  // Chooses every name.
  NameFilter();
  NameFilter(NameFilter&& other) noexcept;
  NameFilter& operator=(NameFilter&& other) noexcept;
  ~NameFilter();

  bool Matches(std::string_view name) const;
  // Whether it chooses every name whatever it is.
  bool all() const { return rules_ == nullptr; }

 private:
  struct Rules;
  std::unique_ptr<const Rules> rules_;
};

// One item of an index.
struct IndexItem {
  enum class Kind : uint8_t {
    kNumber,    // One element, from the end if negative: `start`.
    kSlice,     // start:stop:step, each where it is given.
    kEllipsis,  // As many whole dimensions as there are left.
    kNewAxis,   // A dimension of one element that the tensor has not.
  };
  Kind kind = Kind::kSlice;
  std::optional<int64_t> start = std::nullopt;
  std::optional<int64_t> stop = std::nullopt;
  std::optional<int64_t> step = std::nullopt;
};

// The items of an index that is text. Fails with kInvalidArgument.
HAULWAY_EXPORT Result<std::vector<IndexItem>> ParseIndex(std::string_view text);

// A dimension of a selection.
struct SelectedDim {
  // Which of the tensor's it is; nullopt for a new one.
  std::optional<size_t> dim;
  uint64_t count = 1;
  // It has stride 0 in the file: its one element is read, and stands for all.
  bool repeated = false;
};

// What an index selects of a tensor.
struct HAULWAY_EXPORT Selection {
  std::vector<DimSlice> slices;   // To be read: one for each dimension.
  std::vector<SelectedDim> dims;  // Of the result.

  // Of the result, repeated dimensions whole.
  std::vector<int64_t> shape() const;
  // Of the result over dense memory that holds what is read, in elements.
  std::vector<int64_t> strides() const;
  // Whether what is read holds more elements than lie in the file from the
  // first to the last of them: so it is of views that reach elements in several
  // ways, by which a few bytes could ask for any amount of memory. `strides`
  // are the tensor's.
  bool IsLargerThan(std::span<const int64_t> strides) const;
};

// What `index` selects of a tensor of that shape. Dimensions of stride 0 are
// read once; without strides there are none. Fails with kInvalidArgument for a
// number that leaves its dimension, a step of 0, two ellipses, and more items
// than dimensions.
HAULWAY_EXPORT Result<Selection> Select(std::span<const IndexItem> index,
                                        std::span<const int64_t> shape,
                                        std::span<const int64_t> strides = {});

// Part number `rank` of `world` parts of a dimension, which counts from the
// end if it is negative. Parts differ by one at most, and the first ones are
// the larger, as torch.tensor_split() and numpy.array_split() cut.
struct ShardOptions {
  int64_t rank = 0;
  int64_t world = 1;
  int64_t dim = 0;
};

// Fails with kInvalidArgument if there is no such part of any tensor.
HAULWAY_EXPORT Status CheckShard(const ShardOptions& shard);
// The index of a part: empty, which is all of it, for a tensor without such a
// dimension. Requires: CheckShard().
HAULWAY_EXPORT std::vector<IndexItem> ShardIndex(std::span<const int64_t> shape,
                                                 const ShardOptions& shard);

struct SelectOptions {
  NameOptions names = {};
  // Parts by name, as text. If there are any, and no names are chosen, nothing
  // else is.
  std::map<std::string, std::string> slices = {};
  // Of every tensor that has no part by name.
  std::optional<ShardOptions> shard = std::nullopt;
};

// A tensor that was chosen. Without a storage its request cannot be loaded.
struct SelectedTensor {
  Entry entry;
  TensorRequest request;       // But for `out`.
  std::vector<int64_t> shape;  // Of the part.
};

// The tensors that are chosen, in the checkpoint's order. Fails with
// kInvalidArgument as ParseIndex(), Select(), CheckShard() and
// NameFilter::Make() do, and with kNotFound for a name in `slices` that is
// none.
HAULWAY_EXPORT Result<std::vector<SelectedTensor>> SelectTensors(
    const Checkpoint& checkpoint, const SelectOptions& options);

}  // namespace haulway
