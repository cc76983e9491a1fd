#include "torch/torch_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "tensor/dtype_kind.h"
#include "torch/corrupt_at.h"

namespace haulway::torch {

namespace {

struct Counts {
  GlobalKind kind;
  size_t least;
  size_t most;
};
constexpr std::array kCounts = {
    Counts{GlobalKind::kSize, 0, 1},
    Counts{GlobalKind::kDevice, 1, 2},
    Counts{GlobalKind::kGetLayout, 1, 1},
    Counts{GlobalKind::kRebuildTensor, 4, 4},
    Counts{GlobalKind::kRebuildTensorV2, 6, 7},
    Counts{GlobalKind::kRebuildTensorV3, 7, 8},
    Counts{GlobalKind::kRebuildParameter, 3, 3},
    Counts{GlobalKind::kRebuildParameterWithState, 4, 4},
    Counts{GlobalKind::kRebuildQTensor, 7, 7},
    Counts{GlobalKind::kRebuildSparseTensor, 2, 2},
    Counts{GlobalKind::kRebuildMetaTensor, 4, 4},
    Counts{GlobalKind::kRebuildNestedTensor, 4, 4},
    Counts{GlobalKind::kRebuildWrapperSubclass, 8, 8},
    Counts{GlobalKind::kRebuildDeviceTensorFromCpu, 4, 4},
    Counts{GlobalKind::kRebuildFromType, 4, 4},
    Counts{GlobalKind::kRebuildFromTypeV2, 4, 4},
};

constexpr std::array<std::string_view, 8> kLayouts = {
    "torch.strided",    "torch.sparse_coo", "torch.sparse_csr",
    "torch.sparse_csc", "torch.sparse_bsr", "torch.sparse_bsc",
    "torch.jagged",     "torch._mkldnn"};

// Returns whether `name` has the form "cuda" or "cuda:1". The set of device
// types depends on the version of torch.
bool IsDeviceName(std::string_view name) {
  const size_t colon = name.find(':');
  const std::string_view type = name.substr(0, colon);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (type.empty() || !std::ranges::all_of(type, [](char c) {
        return (c >= 'a' && c <= 'z') || c == '_';
      })) {
    return false;
  }
  if (colon == name.npos) return true;
  const std::string_view index = name.substr(colon + 1);
  return !index.empty() && std::ranges::all_of(index, is_digit) &&
         (index == "0" || index[0] != '0');
}

bool IsNumber(const Value& value) {
  return value.is(Kind::kInt) || value.is(Kind::kFloat);
}

// Returns whether `value` is a tensor, or a list, which old versions of torch
// wrote.
bool IsRow(const Value& value) {
  return value.is(Kind::kObject) || value.is(Kind::kList);
}

}  // namespace

std::optional<std::span<const Value>> Ints(Value value) {
  if (value.is(Kind::kObject)) {
    const Object& object = value.object();
    if (object.callable == nullptr ||
        KindOf(*object.callable) != GlobalKind::kSize ||
        !object.args.is_sequence() || object.args.sequence().items().empty()) {
      return std::nullopt;
    }
    value = object.args.sequence().items()[0];
  }
  if (!value.is(Kind::kTuple) && !value.is(Kind::kList)) return std::nullopt;
  return value.sequence().items();
}

Status CheckCall(GlobalKind kind, std::span<const Value> args, uint64_t byte) {
  const auto* const counts = std::ranges::find(kCounts, kind, &Counts::kind);
  if (counts == kCounts.end()) return Status();
  if (args.size() < counts->least || args.size() > counts->most) {
    return CorruptAt(
        fmt::format("call that makes a tensor, or a part of one, has {} "
                    "arguments: expected {}",
                    args.size(),
                    counts->least == counts->most
                        ? fmt::format("{}", counts->most)
                        : fmt::format("{} to {}", counts->least, counts->most)),
        byte);
  }
  switch (kind) {
    case GlobalKind::kSize: {
      if (args.empty()) return Status();
      const bool is_row = args[0].is(Kind::kTuple) || args[0].is(Kind::kList);
      if (!is_row || !std::ranges::all_of(args[0].sequence().items(),
                                          [](const Value& item) {
                                            return item.is(Kind::kInt);
                                          })) {
        return CorruptAt("torch.Size takes a tuple of numbers", byte);
      }
      return Status();
    }
    case GlobalKind::kDevice:
      if (!args[0].is(Kind::kString) || !IsDeviceName(args[0].text()) ||
          (args.size() == 2 &&
           (args[0].text().find(':') != std::string_view::npos ||
            !args[1].is(Kind::kInt) || args[1].integer() < 0))) {
        return CorruptAt("torch.device takes a name and a number", byte);
      }
      return Status();
    case GlobalKind::kGetLayout:
      if (!args[0].is(Kind::kString) ||
          std::ranges::find(kLayouts, args[0].text()) == kLayouts.end()) {
        return CorruptAt("_get_layout takes the name of a layout", byte);
      }
      return Status();
    default:
      return Status();
  }
}

Status CheckQuantizer(DType dtype, const Value& quantizer, uint64_t rank,
                      uint64_t byte) {
  if (!IsQuantized(dtype)) {
    return CorruptAt(fmt::format("quantized tensor has dtype {}", Name(dtype)),
                     byte);
  }
  const auto parts = quantizer.is(Kind::kTuple) ? quantizer.sequence().items()
                                                : std::span<const Value>();
  const GlobalKind scheme = !parts.empty() && parts[0].is(Kind::kGlobal)
                                ? KindOf(parts[0].global())
                                : GlobalKind::kUnknown;
  bool is_right = false;
  switch (scheme) {
    case GlobalKind::kPerTensorAffine:
      is_right =
          parts.size() == 3 && IsNumber(parts[1]) && parts[2].is(Kind::kInt);
      break;
    case GlobalKind::kPerChannelAffine:
    case GlobalKind::kPerChannelAffineFloatQParams:
      is_right = parts.size() == 4 && IsRow(parts[1]) && IsRow(parts[2]) &&
                 parts[3].is(Kind::kInt) && parts[3].integer() >= 0 &&
                 static_cast<uint64_t>(parts[3].integer()) < rank;
      break;
    default:
      break;
  }
  return is_right ? Status()
                  : CorruptAt("quantizer is not one of torch's", byte);
}

bool TakesGradients(DType dtype) {
  return IsFloating(dtype) || IsComplex(dtype) || dtype == DType::kF4E2M1X2;
}

}  // namespace haulway::torch
