// What rules do to tensors.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arithmetic/expression.h"
#include "arithmetic/made_tensor.h"
#include "haulway/dtype.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

// The tensors of a group on their way from sources to targets: a list for each
// pattern, with a tensor for each number, or a single one.
using Members = std::vector<MadeTensor>;
struct Tensors {
  std::vector<Members> lists;
  bool is_numbered = false;  // Lists have a tensor for each number.
};

// The parameters of an operation, computed.
struct Parameters {
  int64_t dim = 0;
  std::vector<int64_t> numbers;
  double value = 0;
  DType dtype = DType::kF32;
  size_t targets = 1;  // How many patterns the rule has for its results.
  std::shared_ptr<KeptPanels> kept;
};

struct OperationRow {
  std::string_view name;
  // "dim", which is 0 by default, and another one, which must be there; ""
  // where there is none.
  std::string_view dim;
  std::string_view other;
  // Fails with kMismatch for tensors that do not fit.
  Status (*apply)(const Parameters& parameters, Tensors* tensors);
};
// All operations.
std::span<const OperationRow> Operations();

// An operation as written: whole numbers are expressions.
struct RuleOperation {
  const OperationRow* row = nullptr;
  std::string dim = "0";
  std::vector<std::string> numbers;
  double value = 0;
  DType dtype = DType::kF32;
};

// Applies an operation to the tensors of a group. `base`: has the number of
// targets, and the kept panels. Fails as Evaluate() and OperationRow::apply do.
Status Apply(const RuleOperation& operation, Parameters base,
             const NamedNumber& named, Tensors* tensors);

}  // namespace haulway::arithmetic
