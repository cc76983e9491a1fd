#include "safetensors/damaged_header.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "safetensors/header_reader.h"
#include "safetensors/safetensors_header.h"

namespace haulway::safetensors {

namespace {

using simdjson::dom::element;

class Damaged {
 public:
  Damaged(std::shared_ptr<const ByteSource> padded, const OpenOptions& options,
          std::vector<WrongEntry>* wrong)
      : reader_(std::make_unique<HeaderReader>(padded)),
        file_(*reader_->source()),
        options_(options),
        wrong_(*wrong) {}

  Result<std::unique_ptr<const FormatReader>> Run(uint64_t file_bytes) {
    std::array<std::byte, kPrefixBytes> prefix;
    HAULWAY_TRY(file_.ReadAt(0, prefix));
    HAULWAY_ASSIGN(const uint64_t json_bytes,
                   ParsePrefix(prefix, file_bytes, options_.limits));
    data_ = kPrefixBytes + json_bytes;
    std::string json(json_bytes, '\0');
    HAULWAY_TRY(
        file_.ReadAt(kPrefixBytes, std::as_writable_bytes(std::span(json))));
    json.resize(json.find_last_of('}') + 1);  // Whatever the padding is.
    simdjson::dom::parser parser;
    simdjson::dom::object entries;
    if (parser.parse(json).get(entries) != simdjson::SUCCESS) {
      return Status(Code::kCorrupt, "header is no JSON object")
          .At(kPrefixBytes);
    }
    for (const auto& [name, entry] : entries) {
      if (name == "__metadata__") {
        TakeMetadata(entry);
      } else {
        Take(name, entry);
      }
    }
    DropOverlapping();
    if (tensors_.size() > options_.limits.max_tensors) {
      return Status(Code::kLimit, fmt::format("tensors pass max_tensors {}",
                                              options_.limits.max_tensors));
    }
    for (const auto& [name, tensor] : tensors_) {
      HAULWAY_TRY(reader_->Append(tensor, data_));
    }
    return std::unique_ptr<const FormatReader>(std::move(reader_));
  }

 private:
  void TakeMetadata(const element& metadata) {
    simdjson::dom::object values;
    if (metadata.get(values) != simdjson::SUCCESS) {
      wrong_.push_back({"__metadata__", "it is no JSON object", true});
      return;
    }
    for (const auto& [key, value] : values) {
      std::string_view text;
      if (value.get(text) == simdjson::SUCCESS) {
        reader_->mutable_index().metadata->push_back(
            {std::string(key), std::string(text)});
      } else {
        wrong_.push_back({std::string(key), "its value is no string", true});
      }
    }
  }

  void Take(std::string_view name, const element& entry) {
    HeaderTensor tensor;
    const std::string_view why = Parse(entry, &tensor);
    if (!why.empty()) {
      wrong_.push_back({std::string(name), std::string(why)});
      return;
    }
    tensor.name = reader_->arena().Copy(name);
    tensors_.insert_or_assign(tensor.name, tensor);
  }

  // Returns what is wrong; nothing if the entry is right.
  std::string_view Parse(const element& entry, HeaderTensor* tensor) {
    std::string_view dtype;
    simdjson::dom::array shape;
    if (entry["dtype"].get(dtype) != simdjson::SUCCESS ||
        !DTypeNamed(dtype).has_value()) {
      return "its dtype is not known";
    }
    tensor->dtype = *DTypeNamed(dtype);
    if (entry["shape"].get(shape) != simdjson::SUCCESS ||
        shape.size() > options_.limits.max_rank) {
      return "its shape is wrong";
    }
    auto* const sizes = static_cast<int64_t*>(
        reader_->arena().Allocate(shape.size() * sizeof(int64_t)));
    tensor->shape = {sizes, shape.size()};
    uint64_t bits = ElementBits(tensor->dtype);
    bool fits = true;
    for (size_t i = 0; i < shape.size(); ++i) {
      fits = fits && shape.at(i).get(sizes[i]) == simdjson::SUCCESS &&
             sizes[i] >= 0 &&
             CheckedMultiply(bits, static_cast<uint64_t>(sizes[i]), &bits);
    }
    if (!fits || bits % 8 != 0) return "its shape is wrong";
    uint64_t end = 0;
    if (entry["data_offsets"].at(0).get(tensor->begin) != simdjson::SUCCESS ||
        entry["data_offsets"].at(1).get(tensor->end) != simdjson::SUCCESS ||
        tensor->end < tensor->begin || !CheckedAdd(data_, tensor->end, &end) ||
        end > file_.size()) {
      return "its data_offsets are wrong";
    }
    if (tensor->end - tensor->begin != bits / 8) {
      return "its size and its data_offsets contradict each other";
    }
    return {};
  }

  // If two tensors have the same bytes, at most one is right, and nothing tells
  // which.
  void DropOverlapping() {
    std::vector<const HeaderTensor*> order;
    for (const auto& [name, tensor] : tensors_) {
      if (tensor.begin != tensor.end) order.push_back(&tensor);
    }
    std::ranges::sort(order, {}, &HeaderTensor::begin);
    std::map<std::string_view, std::string_view> dropped;
    const HeaderTensor* last = nullptr;  // That which reaches furthest.
    for (const HeaderTensor* const tensor : order) {
      if (last != nullptr && tensor->begin < last->end) {
        dropped.emplace(tensor->name, last->name);
        dropped.emplace(last->name, tensor->name);
      }
      if (last == nullptr || tensor->end > last->end) last = tensor;
    }
    for (const auto& [name, other] : dropped) {
      wrong_.push_back({std::string(name),
                        fmt::format("{} claims the same bytes", Quote(other))});
      tensors_.erase(name);
    }
  }

  std::unique_ptr<HeaderReader> reader_;
  const ByteSource& file_;
  const OpenOptions& options_;
  std::vector<WrongEntry>& wrong_;
  uint64_t data_ = 0;
  std::map<std::string_view, HeaderTensor> tensors_;
};

}  // namespace

Result<std::unique_ptr<const FormatReader>> OpenDamaged(
    std::shared_ptr<const ByteSource> padded, uint64_t file_bytes,
    const OpenOptions& options, std::vector<WrongEntry>* wrong) {
  return Damaged(std::move(padded), options, wrong).Run(file_bytes);
}

}  // namespace haulway::safetensors
