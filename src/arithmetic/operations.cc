// Design: an operation is a row of a table: a name, its parameters, and a
// function of a few lines over the four ways to make a tensor of others
// (made_tensor.h). transformers 5 has the same operations as classes, under
// other names: MergeModulelist is `stack`, SplitModulelist `unstack`,
// Concatenate `concat`, Chunk `chunk`, and PermuteForRope `permute_rope`. Each
// function checks what it takes, so that made_tensor.h has nothing to refuse
// but sizes that overflow.

#include "arithmetic/operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <utility>

#include "arithmetic/shapes.h"
#include "base/text.h"
#include "tensor/strided.h"

namespace haulway::arithmetic {

namespace {

// Tensors that one can be unstacked to. Models have a few hundred experts.
constexpr int64_t kMostMembers = 65'536;

Status NoFit(std::string_view what) { return Status(Code::kMismatch, what); }

// Returns the dimension of a shape that a number means; from the end if it is
// negative.
Result<size_t> DimOf(int64_t dim, size_t rank) {
  const auto count = static_cast<int64_t>(rank);
  if (dim < -count || dim >= count) {
    return NoFit(fmt::format("there is no dimension {} of {}", dim, rank));
  }
  return static_cast<size_t>(dim < 0 ? dim + count : dim);
}

// Replaces each tensor by what `make` makes of it.
template <class Make>
Status ForEach(Tensors* tensors, const Make& make) {
  for (Members& list : tensors->lists) {
    for (MadeTensor& tensor : list) {
      HAULWAY_ASSIGN(tensor, make(tensor));
    }
  }
  return Status();
}

Status CheckAlike(const Members& parts, std::optional<size_t> but) {
  const MadeTensor& first = parts.front();
  for (const MadeTensor& part : parts) {
    if (part.dtype != first.dtype) {
      return NoFit(fmt::format("tensors of dtype {} and {} cannot be joined",
                               Name(first.dtype), Name(part.dtype)));
    }
    bool fits = part.shape.size() == first.shape.size();
    for (size_t i = 0; fits && i < part.shape.size(); ++i) {
      fits = i == but || part.shape[i] == first.shape[i];
    }
    if (fits) continue;
    return NoFit(fmt::format("tensors of shape {} and {} cannot be joined",
                             ShapeText(first.shape), ShapeText(part.shape)));
  }
  return Status();
}

Result<MadeTensor> JoinChecked(const Members& parts, int64_t dim) {
  HAULWAY_ASSIGN(const size_t along, DimOf(dim, parts.front().shape.size()));
  HAULWAY_TRY(CheckAlike(parts, along));
  return Join(parts, along);
}

Result<MadeTensor> StackMembers(Members parts, int64_t dim) {
  HAULWAY_TRY(CheckAlike(parts, std::nullopt));
  HAULWAY_ASSIGN(const size_t along,
                 DimOf(dim, parts.front().shape.size() + 1));
  for (MadeTensor& part : parts) {
    part.shape.insert(part.shape.begin() + static_cast<ptrdiff_t>(along), 1);
  }
  return Join(parts, along);
}

// Returns one list of all tensors, in order.
Members Flat(Tensors* tensors) {
  Members all;
  for (Members& list : tensors->lists) {
    std::ranges::move(list, std::back_inserter(all));
  }
  return all;
}

Status Stack(const Parameters& given, Tensors* tensors) {
  if (!tensors->is_numbered) tensors->lists = {Flat(tensors)};
  for (Members& list : tensors->lists) {
    HAULWAY_ASSIGN(MadeTensor stacked,
                   StackMembers(std::move(list), given.dim));
    list = {std::move(stacked)};
  }
  tensors->is_numbered = false;
  return Status();
}

Status Concat(const Parameters& given, Tensors* tensors) {
  HAULWAY_ASSIGN(MadeTensor joined, JoinChecked(Flat(tensors), given.dim));
  tensors->lists = {{std::move(joined)}};
  tensors->is_numbered = false;
  return Status();
}

Status Unstack(const Parameters& given, Tensors* tensors) {
  if (tensors->is_numbered) return NoFit("it is unstacked already");
  for (Members& list : tensors->lists) {
    const MadeTensor from = std::move(list.front());
    HAULWAY_ASSIGN(const size_t dim, DimOf(given.dim, from.shape.size()));
    if (from.size(dim) > kMostMembers) {
      return Status(Code::kLimit,
                    fmt::format("a tensor is unstacked to {}: expected at most "
                                "{}",
                                from.size(dim), kMostMembers));
    }
    list.clear();
    for (int64_t i = 0; i < from.size(dim); ++i) {
      HAULWAY_ASSIGN(MadeTensor one, Cut(from, dim, i, 1));
      one.shape.erase(one.shape.begin() + static_cast<ptrdiff_t>(dim));
      list.push_back(std::move(one));
    }
  }
  tensors->is_numbered = true;
  return Status();
}

// Cuts each tensor of the only list to tensors of `count` lists. `size_of`
// returns the size of part i of so many.
template <class SizeOf>
Status CutAll(const Parameters& given, size_t count, const SizeOf& size_of,
              Tensors* tensors) {
  if (tensors->lists.size() != 1) {
    return NoFit(
        fmt::format("one tensor can be cut, not {}: expected one "
                    "source",
                    tensors->lists.size()));
  }
  std::vector<Members> lists(count);
  for (const MadeTensor& from : tensors->lists.front()) {
    HAULWAY_ASSIGN(const size_t dim, DimOf(given.dim, from.shape.size()));
    int64_t begin = 0;
    for (size_t i = 0; i < count; ++i) {
      HAULWAY_ASSIGN(const int64_t size, size_of(i, from.size(dim)));
      HAULWAY_ASSIGN(MadeTensor part, Cut(from, dim, begin, size));
      lists[i].push_back(std::move(part));
      begin += size;
    }
  }
  tensors->lists = std::move(lists);
  return Status();
}

Status Chunk(const Parameters& given, Tensors* tensors) {
  const auto count = static_cast<int64_t>(given.targets);
  return CutAll(
      given, given.targets,
      [&](size_t, int64_t all) -> Result<int64_t> {
        if (all % count == 0) return all / count;
        return NoFit(
            fmt::format("a size of {} is not {} equal ones", all, count));
      },
      tensors);
}

Status Split(const Parameters& given, Tensors* tensors) {
  int64_t sum = 0;  // -1: it is none.
  for (const int64_t size : given.numbers) {
    if (size < 0 || __builtin_add_overflow(sum, size, &sum)) sum = -1;
    if (sum < 0) break;
  }
  return CutAll(
      given, given.numbers.size(),
      [&](size_t i, int64_t all) -> Result<int64_t> {
        if (sum == all) return given.numbers[i];
        return NoFit(fmt::format("sizes {} do not add up to {}",
                                 ShapeText(given.numbers), all));
      },
      tensors);
}

Status TransposeAll(const Parameters& given, Tensors* tensors) {
  return ForEach(tensors, [&](const MadeTensor& from) -> Result<MadeTensor> {
    const size_t rank = from.shape.size();
    std::vector<size_t> given_dims;
    for (const int64_t number : given.numbers) {
      HAULWAY_ASSIGN(given_dims.emplace_back(), DimOf(number, rank));
    }
    std::vector<size_t> dims(rank);
    std::iota(dims.begin(), dims.end(), size_t{0});
    if (given_dims.size() == 2 && given_dims[0] != given_dims[1]) {
      std::swap(dims[given_dims[0]], dims[given_dims[1]]);
    } else if (std::ranges::is_permutation(given_dims, dims)) {
      dims = std::move(given_dims);
    } else {
      return NoFit(
          fmt::format("{} are not the dimensions of a shape {}, nor "
                      "two of them",
                      ShapeText(given.numbers), ShapeText(from.shape)));
    }
    return Transpose(from, dims, given.kept);
  });
}

// Rows of a head alternate between the two halves that are rotated together;
// afterwards the halves follow one another.
Status PermuteRope(const Parameters& given, Tensors* tensors) {
  const int64_t heads = given.numbers.front();
  return ForEach(tensors, [&](const MadeTensor& from) -> Result<MadeTensor> {
    if (from.shape.empty() || heads < 1 || from.size(0) % heads != 0 ||
        from.size(0) / heads % 2 != 0) {
      return NoFit(fmt::format("a shape {} has no {} heads of an even size",
                               ShapeText(from.shape), heads));
    }
    MadeTensor split = from;
    split.shape = {heads, from.size(0) / heads / 2, 2};
    split.shape.insert(split.shape.end(), from.shape.begin() + 1,
                       from.shape.end());
    std::vector<size_t> dims(split.shape.size());
    std::iota(dims.begin(), dims.end(), size_t{0});
    std::swap(dims[1], dims[2]);
    HAULWAY_ASSIGN(MadeTensor made, Transpose(split, dims, given.kept));
    made.shape = from.shape;
    return made;
  });
}

Status ChangeAll(Tensors* tensors, NumberChange change, float value,
                 std::optional<DType> to) {
  return ForEach(tensors, [&](const MadeTensor& from) -> Result<MadeTensor> {
    const DType made = to.value_or(from.dtype);
    const bool is_computed = change != NumberChange::kNone;
    if (!CanCast(from.dtype, made) ||
        (is_computed &&
         (!CanCast(from.dtype, DType::kF32) || !CanCast(DType::kF32, made)))) {
      return Status(Code::kUnsupported,
                    is_computed
                        ? fmt::format("numbers of dtype {} are not computed "
                                      "with: expected a floating-point dtype",
                                      Name(from.dtype))
                        : fmt::format("dtype {} cannot be cast to {}",
                                      Name(from.dtype), Name(made)));
    }
    return Change(from, change, value, made);
  });
}

Status Add(const Parameters& given, Tensors* tensors) {
  return ChangeAll(tensors, NumberChange::kAdd, static_cast<float>(given.value),
                   std::nullopt);
}

Status Scale(const Parameters& given, Tensors* tensors) {
  return ChangeAll(tensors, NumberChange::kMultiply,
                   static_cast<float>(given.value), std::nullopt);
}

Status Cast(const Parameters& given, Tensors* tensors) {
  return ChangeAll(tensors, NumberChange::kNone, 0, given.dtype);
}

// One size may be -1: what is left.
Status Reshape(const Parameters& given, Tensors* tensors) {
  return ForEach(tensors, [&](MadeTensor made) -> Result<MadeTensor> {
    const auto wrong = [&] {
      return NoFit(fmt::format("a shape {} cannot become {}",
                               ShapeText(made.shape),
                               ShapeText(given.numbers)));
    };
    const uint64_t elements = CountElements(made.shape).value_or(0);
    std::vector<int64_t> shape = given.numbers;
    const auto left = std::ranges::find(shape, -1);
    if (left != shape.end()) *left = 1;
    if (std::ranges::any_of(shape, [](int64_t size) { return size < 0; })) {
      return wrong();
    }
    const auto count = CountElements(shape);
    if (left != shape.end() && count.value_or(0) != 0 &&
        elements % *count == 0) {
      *left = static_cast<int64_t>(elements / *count);
    }
    if (CountElements(shape) != elements) return wrong();
    made.shape = std::move(shape);
    return made;
  });
}

constexpr std::array kOperationRows = {
    OperationRow{"stack", "dim", "", Stack},
    OperationRow{"unstack", "dim", "", Unstack},
    OperationRow{"concat", "dim", "", Concat},
    OperationRow{"chunk", "dim", "", Chunk},
    OperationRow{"split", "dim", "sizes", Split},
    OperationRow{"transpose", "", "dims", TransposeAll},
    OperationRow{"permute_rope", "", "heads", PermuteRope},
    OperationRow{"add", "", "value", Add},
    OperationRow{"scale", "", "value", Scale},
    OperationRow{"reshape", "", "shape", Reshape},
    OperationRow{"cast", "", "dtype", Cast},
};

}  // namespace

std::span<const OperationRow> Operations() { return kOperationRows; }

Status Apply(const RuleOperation& operation, Parameters base,
             const NamedNumber& named, Tensors* tensors) {
  const auto apply = [&]() -> Status {
    HAULWAY_ASSIGN(base.dim, Evaluate(operation.dim, named));
    for (const std::string& number : operation.numbers) {
      HAULWAY_ASSIGN(base.numbers.emplace_back(), Evaluate(number, named));
    }
    base.value = operation.value;
    base.dtype = operation.dtype;
    return operation.row->apply(base, tensors);
  };
  Status status = apply();
  if (status.ok()) return status;
  return std::move(status).In(operation.row->name);
}

}  // namespace haulway::arithmetic
