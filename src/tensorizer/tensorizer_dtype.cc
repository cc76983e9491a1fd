#include "tensorizer/tensorizer_dtype.h"

#include <fmt/format.h>

#include "base/text.h"
#include "tensor/dtype_kind.h"

namespace haulway::tensorizer {

namespace {

// Returns NumPy's byte order character.
char OrderOf(DType dtype) { return ItemBytes(dtype) == 1 ? '|' : '<'; }

constexpr std::string_view kTorch = "torch.";

Status WrongDType(std::string_view what, std::string_view text) {
  return Status(Code::kCorrupt, fmt::format("dtype {} {}", Quote(text), what));
}

Status NeedsParameters(DType dtype) {
  return Status(Code::kUnsupported,
                fmt::format("dtype {} needs parameters that the format cannot "
                            "hold",
                            Name(dtype)));
}

}  // namespace

Result<DTypeSpelling> ParseDType(std::string_view text) {
  if (text.empty()) return WrongDType("is not one the format has", text);
  const auto plain = DTypeFromNumpyCode(text.substr(1));
  if (plain.has_value() && text[0] == OrderOf(*plain)) {
    return DTypeSpelling{*plain, false};
  }
  const size_t nul = text.find('\0');
  const std::string_view type = text.substr(0, nul);
  if (type.size() < 2 || (type[0] != '<' && type[0] != '|') || type[1] != 'V') {
    if (type.starts_with('>')) return WrongDType("is big-endian", text);
    return WrongDType("is not one the format has", text);
  }
  if (nul == text.npos) return WrongDType("has no name of a type", text);
  std::string_view name = text.substr(nul + 1);
  if (name.find('\0') != name.npos) return WrongDType("has two NULs", text);
  if (!name.starts_with(kTorch)) return WrongDType("is not one of torch", text);
  name.remove_prefix(kTorch.size());
  const auto dtype = DTypeFromTorchName(name);
  if (name.empty() || !dtype.has_value()) {
    return WrongDType("is not one of torch", text);
  }
  if (IsQuantized(*dtype)) return NeedsParameters(*dtype);
  if (type.substr(2) != fmt::format("{}", ItemBytes(*dtype))) {
    return WrongDType(
        fmt::format("has another size: expected {} bytes", ItemBytes(*dtype)),
        text);
  }
  return DTypeSpelling{*dtype, true};
}

bool IsOpaque(DType dtype) {
  return Describe(dtype).in_numpy != InNumpy::kItself;
}

Result<std::string> EncodeDType(DType dtype) {
  if (!IsOpaque(dtype)) return OrderOf(dtype) + NumpyCode(dtype);
  if (IsQuantized(dtype)) return NeedsParameters(dtype);
  if (Describe(dtype).torch_name.empty()) {
    return Status(Code::kUnsupported,
                  fmt::format("dtype {} is not one of torch", Name(dtype)));
  }
  const uint64_t bytes = ItemBytes(dtype);
  std::string text = fmt::format("{}V{}", bytes == 1 ? '|' : '<', bytes);
  text += '\0';
  text += kTorch;
  text += Describe(dtype).torch_name;
  return text;
}

}  // namespace haulway::tensorizer
