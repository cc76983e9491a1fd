#include "safetensors/safetensors_writer.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "haulway/safetensors.h"
#include "safetensors/safetensors_header.h"

namespace haulway {

namespace {

using safetensors::Dtype;
using safetensors::EncodedHeader;

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

// The shape in elements of a tensor of packed items.
Result<std::span<const int64_t>> UnpackedShape(
    const DenseTensor& tensor, int64_t in_item,
    std::vector<std::vector<int64_t>>* kept) {
  if (in_item == 1) return tensor.shape;
  std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.end());
  if (shape.empty() ||
      __builtin_mul_overflow(shape.back(), in_item, &shape.back())) {
    return Status(Code::kUnsupported,
                  fmt::format("a tensor of {} needs a last dimension",
                              Name(tensor.dtype)))
        .In(Quote(tensor.name));
  }
  // A vector's elements stay where they are when it is moved.
  kept->push_back(std::move(shape));
  return std::span<const int64_t>(kept->back());
}

}  // namespace

Result<std::unique_ptr<const Layout>> LayOutSafetensors(
    std::span<const DenseTensor> tensors, const SafetensorsOptions& options) {
  std::vector<safetensors::TensorSpec> specs;
  std::vector<std::vector<int64_t>> kept;
  specs.reserve(tensors.size());
  for (const DenseTensor& tensor : tensors) {
    const std::optional<Dtype> dtype = safetensors::DtypeOf(tensor.dtype);
    if (!dtype.has_value()) {
      return Status(
                 Code::kUnsupported,
                 fmt::format("safetensors has no dtype {}", Name(tensor.dtype)))
          .In(Quote(tensor.name));
    }
    HAULWAY_ASSIGN(
        const auto shape,
        UnpackedShape(tensor, safetensors::Describe(*dtype).in_item, &kept));
    specs.push_back({tensor.name, *dtype, shape});
  }
  std::optional<safetensors::Metadata> metadata;
  if (options.metadata.has_value()) {
    metadata.emplace(options.metadata->begin(), options.metadata->end());
  }
  HAULWAY_ASSIGN(EncodedHeader header,
                 safetensors::EncodeHeader(specs, metadata, options.alignment));
  std::vector<Payload> payloads;
  payloads.reserve(tensors.size());
  for (size_t i = 0; i < header.order.size(); ++i) {
    const DenseTensor& tensor = tensors[header.order[i]];
    const uint64_t end =
        i + 1 < header.order.size() ? header.offsets[i + 1] : header.file_bytes;
    const uint64_t bytes =
        tensor.source == nullptr ? tensor.bytes.size() : tensor.source_bytes;
    if (bytes != end - header.offsets[i]) {
      return Status(
                 Code::kInvalidArgument,
                 fmt::format("dtype {} with shape [{}] needs {} bytes, "
                             "found {}",
                             Name(tensor.dtype), fmt::join(tensor.shape, ", "),
                             end - header.offsets[i], bytes))
          .In(Quote(tensor.name));
    }
    if (bytes == 0) continue;
    payloads.push_back(
        {header.offsets[i], bytes,
         tensor.source == nullptr ? tensor.bytes.data() : nullptr,
         tensor.source, tensor.source_offset});
  }
  return std::unique_ptr<const Layout>(std::make_unique<SafetensorsLayout>(
      std::move(header), std::move(payloads)));
}

namespace safetensors {

Result<std::unique_ptr<const Layout>> LayOutTensors(
    const TensorsToWrite& tensors, const SaveOptions& options) {
  SafetensorsOptions format;
  format.metadata = tensors.metadata;
  if (options.alignment.has_value()) format.alignment = *options.alignment;
  std::vector<DenseTensor> dense;
  dense.reserve(tensors.tensors.size());
  for (const TensorToWrite& tensor : tensors.tensors) {
    DenseTensor& row = dense.emplace_back();
    row.name = tensor.name;
    row.dtype = tensor.dtype;
    row.shape = tensor.shape;
    if (tensor.bytes.source == nullptr) {
      row.bytes = {tensor.bytes.bytes, tensor.bytes.length};
    } else {
      row.source = tensor.bytes.source.get();
      row.source_offset = tensor.bytes.source_offset;
      row.source_bytes = tensor.bytes.length;
    }
  }
  return LayOutSafetensors(dense, format);
}

}  // namespace safetensors

}  // namespace haulway
