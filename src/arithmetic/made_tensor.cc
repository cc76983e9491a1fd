// Design: a tensor is a ByteSource with a dtype and a shape. What is made of
// tensors is again one, so operations are chained without knowing one another,
// and a range of the last reads what it needs of those before. Reshaping
// changes no byte. Joining and cutting move runs of rows. A transposed tensor
// is read in panels, each of which is a run of its bytes: the parts of the
// other tensor that make it up are cut out of it.
//
// Alternative not taken: views with strides, as in torch. They need no panels
// where rows stay whole, but a shape that is changed after transposing has no
// strides.

#include "arithmetic/made_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "arithmetic/shapes.h"
#include "arithmetic/stored_bytes.h"
#include "base/checked.h"
#include "haulway/options.h"
#include "io/join_ranges.h"
#include "tensor/cast.h"
#include "tensor/strided.h"

namespace haulway::arithmetic {

namespace {

// Runs that are read together, and the bytes that are read at once for short
// ones.
constexpr size_t kMostRuns = 4096;
constexpr JoinLimits kShortRuns = {
    .largest_hole = kGatheredHole, .largest_read = kMiB, .may_overlap = false};
constexpr uint64_t kPanelBytes = 4 * kMiB;
constexpr uint64_t kNumbersAtOnce = 64 * kKiB;

Status SizesOverflow() {
  return Status(Code::kLimit, "the sizes of its shape overflow");
}

// Returns the product of sizes from `first` on, times the bytes of an item.
Result<uint64_t> BytesFrom(const MadeTensor& tensor, size_t first) {
  const auto count = CountElements(std::span(tensor.shape).subspan(first));
  uint64_t bytes = 0;
  if (!count.has_value() ||
      !CheckedMultiply(*count, ItemBytes(tensor.dtype), &bytes)) {
    return SizesOverflow();
  }
  return bytes;
}

// Reads runs of a source, and clears the list.
Status ReadRuns(const ByteSource& from, std::vector<ReadRequest>* runs) {
  return ReadJoined(from, std::exchange(*runs, {}),
                    {.limits = kShortRuns, .most_memory = kMiB});
}

// The size and name of a source that is made of others.
class Made : public ByteSource {
 public:
  Made(const MadeTensor& first, uint64_t size)
      : name_(first.bytes->name()), size_(size) {}
  std::string_view name() const override { return name_; }
  uint64_t size() const override { return size_; }

 private:
  const std::string name_;
  const uint64_t size_;
};

// A row is a row of each part, one after another.
class JoinedSource final : public Made {
 public:
  // `widths`: bytes of a row of each part.
  JoinedSource(std::span<const MadeTensor> parts,
               std::span<const uint64_t> widths, uint64_t size)
      : Made(parts.front(), size) {
    uint64_t end = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (widths[i] == 0) continue;
      end += widths[i];
      parts_.push_back({parts[i].bytes, widths[i], end});
    }
  }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    if (out.empty()) return Status();
    const uint64_t width = parts_.back().end;
    std::vector<std::vector<ReadRequest>> runs(parts_.size());
    uint64_t row = offset / width;
    uint64_t column = offset % width;
    auto part = static_cast<size_t>(
        std::ranges::upper_bound(parts_, column, {}, &Part::end) -
        parts_.begin());
    for (size_t count = 1; !out.empty(); ++count) {
      const Part& of = parts_[part];
      const uint64_t length = std::min<uint64_t>(of.end - column, out.size());
      runs[part].push_back(
          {(row + 1) * of.width - (of.end - column), out.first(length)});
      out = out.subspan(length);
      column = of.end;
      if (++part == parts_.size()) {
        part = 0;
        column = 0;
        ++row;
      }
      if (count % kMostRuns != 0 && !out.empty()) continue;
      for (size_t i = 0; i < parts_.size(); ++i) {
        HAULWAY_TRY(ReadRuns(*parts_[i].bytes, &runs[i]));
      }
    }
    return Status();
  }

 private:
  struct Part {
    std::shared_ptr<const ByteSource> bytes;
    uint64_t width = 0;
    uint64_t end = 0;  // In a row of all parts.
  };
  std::vector<Part> parts_;
};

// A row is a part of a row of another tensor.
class CutSource final : public Made {
 public:
  CutSource(const MadeTensor& from, uint64_t width, uint64_t begin,
            uint64_t length, uint64_t size)
      : Made(from, size),
        from_(from.bytes),
        width_(width),
        begin_(begin),
        length_(length) {}

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    std::vector<ReadRequest> runs;
    while (!out.empty()) {
      const uint64_t column = offset % length_;
      const uint64_t some = std::min<uint64_t>(length_ - column, out.size());
      runs.push_back(
          {offset / length_ * width_ + begin_ + column, out.first(some)});
      offset += some;
      out = out.subspan(some);
      if (runs.size() < kMostRuns && !out.empty()) continue;
      HAULWAY_TRY(ReadRuns(*from_, &runs));
    }
    return Status();
  }

 private:
  const std::shared_ptr<const ByteSource> from_;
  const uint64_t width_;  // Bytes of a row of it.
  const uint64_t begin_;
  const uint64_t length_;
};

class TransposedSource final : public Made {
 public:
  TransposedSource(const MadeTensor& from, std::span<const size_t> dims,
                   const MadeTensor& to, uint64_t size,
                   std::shared_ptr<KeptPanels> kept)
      : Made(from, size),
        from_(from),
        dims_(dims.begin(), dims.end()),
        shape_(to.shape),
        kept_(std::move(kept)),
        number_(kept_->next++) {
    // A panel is some indices of one dimension, with all of the next ones.
    inner_ = size;
    for (depth_ = 0; depth_ + 1 < shape_.size(); ++depth_) {
      inner_ /= static_cast<uint64_t>(shape_[depth_]);
      if (inner_ <= kPanelBytes) break;
    }
    if (depth_ + 1 == shape_.size()) inner_ = ItemBytes(from.dtype);
    of_dim_ = static_cast<uint64_t>(shape_[depth_]);
    in_panel_ = std::clamp<uint64_t>(kPanelBytes / inner_, 1, of_dim_);
  }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      // Counts the indices of the dimension of panels and of those before it.
      const uint64_t index = offset / inner_;
      const uint64_t before = index / of_dim_;
      const uint64_t first = index % of_dim_ / in_panel_ * in_panel_;
      const uint64_t begin = (before * of_dim_ + first) * inner_;
      const uint64_t key = number_ << 40 ^ begin / inner_;
      HAULWAY_ASSIGN(const auto panel, kept_->panels.Get(key, [&] {
        return LoadPanel(before, first);
      }));
      const uint64_t some =
          std::min<uint64_t>(out.size(), begin + panel->size() - offset);
      std::memcpy(out.data(), panel->data() + (offset - begin), some);
      offset += some;
      out = out.subspan(some);
    }
    return Status();
  }

  // The tensor that was transposed, and its dimensions in their new order.
  const MadeTensor& from() const { return from_; }
  const std::vector<size_t>& dims() const { return dims_; }
  const std::vector<int64_t>& shape() const { return shape_; }

 private:
  // `before`: the indices of the dimensions before that of panels, as a number.
  Result<Buffer> LoadPanel(uint64_t before, uint64_t first) const {
    MadeTensor part = from_;
    std::vector<int64_t> shape = shape_;
    for (size_t i = depth_; i-- > 0;) {
      const auto size = static_cast<uint64_t>(shape[i]);
      HAULWAY_ASSIGN(
          part, Cut(part, dims_[i], static_cast<int64_t>(before % size), 1));
      before /= size;
      shape[i] = 1;
    }
    shape[depth_] = static_cast<int64_t>(std::min(in_panel_, of_dim_ - first));
    HAULWAY_ASSIGN(part, Cut(part, dims_[depth_], static_cast<int64_t>(first),
                             shape[depth_]));
    HAULWAY_ASSIGN(Buffer stored, AllocateBuffer(part.bytes->size()));
    HAULWAY_TRY(part.bytes->ReadAt(0, stored.mutable_bytes()));
    std::vector<int64_t> steps(shape.size(), 1);
    for (size_t i = steps.size() - 1; i-- > 0;) {
      steps[i] = steps[i + 1] * part.size(i + 1);
    }
    std::vector<int64_t> strides;
    for (const size_t dim : dims_) strides.push_back(steps[dim]);
    HAULWAY_ASSIGN(Buffer panel, AllocateBuffer(stored.size()));
    GatherElements(stored.data(), shape, strides, ItemBytes(from_.dtype),
                   panel.mutable_bytes());
    return panel;
  }

  const MadeTensor from_;
  const std::vector<size_t> dims_;
  const std::vector<int64_t> shape_;
  const std::shared_ptr<KeptPanels> kept_;
  const uint64_t number_;
  size_t depth_ = 0;       // The dimension of which a panel has some indices.
  uint64_t inner_ = 0;     // Bytes of one of them.
  uint64_t of_dim_ = 0;    // How many there are,
  uint64_t in_panel_ = 0;  // and in a panel.
};

class ChangedSource final : public Made {
 public:
  ChangedSource(const MadeTensor& from, NumberChange change, float value,
                DType to, uint64_t size)
      : Made(from, size),
        from_(from.bytes),
        from_dtype_(from.dtype),
        change_(change),
        value_(value),
        to_(to) {}

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const uint64_t from_item = ItemBytes(from_dtype_);
    const uint64_t item = ItemBytes(to_);
    std::vector<std::byte> stored;
    std::vector<std::byte> made;
    while (!out.empty()) {
      const uint64_t first = offset / item;
      const uint64_t skipped = offset % item;
      const uint64_t count =
          std::min(kNumbersAtOnce, CeilDivide(skipped + out.size(), item));
      stored.resize(count * from_item);
      made.resize(count * item);
      HAULWAY_TRY(from_->ReadAt(first * from_item, stored));
      Compute(stored, made, count);
      const uint64_t some =
          std::min<uint64_t>(made.size() - skipped, out.size());
      std::memcpy(out.data(), made.data() + skipped, some);
      offset += some;
      out = out.subspan(some);
    }
    return Status();
  }

 private:
  void Compute(std::span<const std::byte> stored, std::span<std::byte> made,
               uint64_t count) const {
    if (change_ == NumberChange::kNone) {
      CastElements(stored.data(), from_dtype_, made.data(), to_, count);
      return;
    }
    std::vector<float> numbers(count);
    const auto wide = std::as_writable_bytes(std::span(numbers));
    CastElements(stored.data(), from_dtype_, wide.data(), DType::kF32, count);
    for (float& number : numbers) {
      number =
          change_ == NumberChange::kAdd ? number + value_ : number * value_;
    }
    CastElements(wide.data(), DType::kF32, made.data(), to_, count);
  }

  const std::shared_ptr<const ByteSource> from_;
  const DType from_dtype_;
  const NumberChange change_;
  const float value_;
  const DType to_;
};

}  // namespace

Result<MadeTensor> StoredTensor(const FormatReader& reader, uint32_t tensor) {
  const TensorInfo& info = reader.index().tensors[tensor];
  const DTypeKind kind = Describe(info.dtype).kind;
  if (kind != DTypeKind::kFloat && kind != DTypeKind::kComplex &&
      kind != DTypeKind::kInt && kind != DTypeKind::kUInt &&
      kind != DTypeKind::kBool) {
    return Status(Code::kUnsupported,
                  fmt::format("a rule cannot change a tensor of dtype {}: "
                              "dequantize the model (the option dequantize)",
                              Name(info.dtype)));
  }
  if (info.kind != TensorKind::kDense || info.storage == kNoStorage ||
      !IsContiguous(info.shape, info.strides) || info.negative ||
      info.conjugate) {
    return Status(Code::kUnsupported,
                  "a rule cannot change a tensor that is not stored densely, "
                  "in rows");
  }
  MadeTensor made;
  made.dtype = info.dtype;
  made.shape.assign(info.shape.begin(), info.shape.end());
  made.inputs = {tensor};
  const StorageInfo& storage = reader.index().storages[info.storage];
  if (IsPlain(storage)) {
    HAULWAY_ASSIGN(made.bytes,
                   MakeSliceSource(reader.source(),
                                   storage.offset + info.storage_offset *
                                                        ItemBytes(info.dtype),
                                   info.nbytes));
  } else {
    made.bytes = MakeFunctionSource(
        info.nbytes,
        [&reader, info](uint64_t offset, std::span<std::byte> out) {
          return ReadBytes(reader, info, offset, out);
        },
        std::string(reader.source()->name()));
  }
  return made;
}

Result<MadeTensor> Join(std::span<const MadeTensor> parts, size_t dim) {
  MadeTensor made;
  made.dtype = parts.front().dtype;
  made.shape = parts.front().shape;
  made.shape[dim] = 0;
  std::vector<uint64_t> widths;
  uint64_t size = 0;
  for (const MadeTensor& part : parts) {
    HAULWAY_ASSIGN(widths.emplace_back(), BytesFrom(part, dim));
    if (__builtin_add_overflow(made.shape[dim], part.size(dim),
                               &made.shape[dim]) ||
        !CheckedAdd(size, part.bytes->size(), &size)) {
      return SizesOverflow();
    }
    made.inputs.insert(made.inputs.end(), part.inputs.begin(),
                       part.inputs.end());
  }
  if (size == 0) std::ranges::fill(widths, 0);
  made.bytes = std::make_shared<const JoinedSource>(parts, widths, size);
  return made;
}

Result<MadeTensor> Cut(const MadeTensor& from, size_t dim, int64_t begin,
                       int64_t size) {
  MadeTensor made = from;
  made.shape[dim] = size;
  HAULWAY_ASSIGN(const uint64_t width, BytesFrom(from, dim));
  HAULWAY_ASSIGN(const uint64_t length, BytesFrom(made, dim));
  const uint64_t item = size == 0 ? 0 : length / static_cast<uint64_t>(size);
  const uint64_t start = static_cast<uint64_t>(begin) * item;
  HAULWAY_ASSIGN(const uint64_t bytes, BytesFrom(made, 0));
  if (bytes == length || bytes == 0) {
    HAULWAY_ASSIGN(made.bytes,
                   MakeSliceSource(from.bytes, bytes == 0 ? 0 : start, bytes));
  } else {
    made.bytes =
        std::make_shared<const CutSource>(from, width, start, length, bytes);
  }
  return made;
}

Result<MadeTensor> Transpose(const MadeTensor& from,
                             std::span<const size_t> dims,
                             std::shared_ptr<KeptPanels> kept) {
  // Two that follow one another are one: each panel of the second would read
  // all panels of the first.
  const auto* const first =
      dynamic_cast<const TransposedSource*>(from.bytes.get());
  if (first != nullptr && first->shape() == from.shape) {
    std::vector<size_t> both;
    for (const size_t dim : dims) both.push_back(first->dims()[dim]);
    if (std::ranges::is_sorted(both)) return first->from();
    return Transpose(first->from(), both, std::move(kept));
  }
  MadeTensor made = from;
  for (size_t i = 0; i < dims.size(); ++i) {
    made.shape[i] = from.size(dims[i]);
  }
  const uint64_t size = from.bytes->size();
  if (size != 0 && !dims.empty()) {
    made.bytes = std::make_shared<const TransposedSource>(
        from, dims, made, size, std::move(kept));
  }
  return made;
}

Result<MadeTensor> Change(const MadeTensor& from, NumberChange change,
                          float value, DType to) {
  MadeTensor made = from;
  made.dtype = to;
  HAULWAY_ASSIGN(const uint64_t size, BytesFrom(made, 0));
  made.bytes =
      std::make_shared<const ChangedSource>(from, change, value, to, size);
  return made;
}

}  // namespace haulway::arithmetic
