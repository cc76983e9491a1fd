// How quantized weights and their scales are named in files that hold each as a
// tensor of its own.

#pragma once

#include <array>
#include <span>
#include <string_view>

#include "haulway/status.h"

namespace haulway {

// How one way to quantize names the tensors of a weight. Every name is a common
// stem and one of these endings.
struct ScaledLayout {
  std::string_view called;  // For messages.
  std::string_view weight;
  std::string_view scales;  // A weight with this tensor beside it is quantized.
  // Whether the weight holds floats of 8 bits or whole numbers of at most 32
  // bits; false: any dtype.
  bool is_coded = true;
  // Tensors that belong to the weight, if they are there.
  std::array<std::string_view, 3> others = {};
};

// The layouts that are known.
HAULWAY_EXPORT std::span<const ScaledLayout> ScaledLayouts();

}  // namespace haulway
