// Whole numbers, as rules write them: "num_attention_heads*head_dim".

#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "haulway/status.h"

namespace haulway::arithmetic {

// Returns the number that a name stands for.
using NamedNumber = std::function<Result<int64_t>(std::string_view name)>;

// Computes an expression of whole numbers, names, + - * /, a minus before a
// number, and parentheses. A name begins with a letter or an underscore, and
// has digits and dots as well. Fails with kInvalidArgument for what is no
// expression; with kMismatch for a number that passes 2^63 and a division that
// leaves a rest; and as `named` does.
Result<int64_t> Evaluate(std::string_view expression, const NamedNumber& named);

}  // namespace haulway::arithmetic
