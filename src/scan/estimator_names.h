// The classes of scikit-learn that skops files are made of.

#pragma once

#include <string_view>

namespace haulway::scan {

// Whether `name` in `module` is a class of scikit-learn that skops loads
// without asking: an estimator, a loss, or what those are made of. Making an
// object of such a class, and giving it any state, runs none but its own code.
// Its methods may run more, once somebody calls them.
bool IsEstimator(std::string_view module, std::string_view name);

}  // namespace haulway::scan
