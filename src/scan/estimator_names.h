// The scikit-learn classes that skops files consist of.

#pragma once

#include <string_view>

namespace haulway::scan {

// Returns whether `name` in `module` is a scikit-learn class that skops loads
// without asking: an estimator, a loss, or a class that these contain. Creating
// an object of such a class and setting any state runs only the class's own
// code. Methods that a program calls later may run more.
bool IsEstimator(std::string_view module, std::string_view name);

}  // namespace haulway::scan
