#include "safetensors/safetensors_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "safetensors/safetensors_header.h"
#include "tensor/no_dtype.h"

namespace haulway::safetensors {

namespace {

// The alignment of tensors in files of the reference writer.
constexpr uint64_t kAlignment = 8;

class SafetensorsLayout : public Layout {
 public:
  SafetensorsLayout(EncodedHeader header, std::vector<Payload> payloads)
      : header_(std::move(header)),
        payloads_(std::move(payloads)),
        frame_{0, header_.bytes.size()} {}

  uint64_t size() const override { return header_.file_bytes; }
  std::span<const Payload> payloads() const override { return payloads_; }
  std::span<const Frame> frames() const override { return {&frame_, 1}; }
  Status EncodeFrame(size_t, const Digests&,
                     std::span<std::byte> out) const override {
    std::memcpy(out.data(), header_.bytes.data(), out.size());
    return Status();
  }

 private:
  const EncodedHeader header_;
  const std::vector<Payload> payloads_;
  const Frame frame_;
};

// Returns the shape, in elements, of a tensor of packed items.
Result<std::span<const int64_t>> UnpackedShape(
    const TensorToWrite& tensor, std::vector<std::vector<int64_t>>* kept) {
  const int64_t in_item = Describe(tensor.dtype).item_elements;
  if (in_item == 1) return std::span<const int64_t>(tensor.shape);
  std::vector<int64_t> shape = tensor.shape;
  if (shape.empty() ||
      __builtin_mul_overflow(shape.back(), in_item, &shape.back())) {
    return Status(Code::kUnsupported,
                  fmt::format("a tensor of {} needs a last dimension",
                              Name(tensor.dtype)))
        .In(Quote(tensor.name));
  }
  // Moving a vector keeps its elements in place.
  kept->push_back(std::move(shape));
  return std::span<const int64_t>(kept->back());
}

}  // namespace

Result<std::unique_ptr<const Layout>> LayOutTensors(
    const TensorsToWrite& what, const SaveOptions& options) {
  const std::vector<TensorToWrite>& tensors = what.tensors;
  std::vector<TensorSpec> specs;
  std::vector<std::vector<int64_t>> kept;
  specs.reserve(tensors.size());
  for (const TensorToWrite& tensor : tensors) {
    if (RankOf(tensor.dtype) < 0) {
      return NoDType("safetensors", tensor.dtype).In(Quote(tensor.name));
    }
    HAULWAY_ASSIGN(const auto shape, UnpackedShape(tensor, &kept));
    specs.push_back({tensor.name, tensor.dtype, shape});
  }
  std::optional<Metadata> metadata;
  if (what.metadata.has_value()) {
    metadata.emplace(what.metadata->begin(), what.metadata->end());
  }
  HAULWAY_ASSIGN(
      EncodedHeader header,
      EncodeHeader(specs, metadata, options.alignment.value_or(kAlignment),
                   what.in_order));
  std::vector<Payload> payloads;
  payloads.reserve(tensors.size());
  for (size_t i = 0; i < header.order.size(); ++i) {
    const TensorToWrite& tensor = tensors[header.order[i]];
    const uint64_t end =
        i + 1 < header.order.size() ? header.offsets[i + 1] : header.file_bytes;
    const BytesToWrite& bytes = tensor.bytes;
    if (bytes.length != end - header.offsets[i]) {
      return Status(
                 Code::kInvalidArgument,
                 fmt::format("dtype {} with shape [{}] needs {} bytes, "
                             "found {}",
                             Name(tensor.dtype), fmt::join(tensor.shape, ", "),
                             end - header.offsets[i], bytes.length))
          .In(Quote(tensor.name));
    }
    if (bytes.length == 0) continue;
    payloads.push_back({header.offsets[i], bytes.length,
                        bytes.source == nullptr ? bytes.bytes : nullptr,
                        bytes.source.get(), bytes.source_offset});
  }
  return std::unique_ptr<const Layout>(std::make_unique<SafetensorsLayout>(
      std::move(header), std::move(payloads)));
}

}  // namespace haulway::safetensors
