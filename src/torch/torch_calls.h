// Checks calls in a pickle: whether torch's functions accept the given
// arguments.

#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "haulway/dtype.h"
#include "haulway/status.h"
#include "haulway/tree.h"
#include "pickle/pickle_globals.h"

namespace haulway::torch {

// Fails with kCorrupt for fewer or more arguments than a function takes, and
// for arguments of torch.Size, torch.device and _get_layout that have the wrong
// type. Accepts any arguments of functions that it does not know.
Status CheckCall(GlobalKind kind, std::span<const Value> args, uint64_t byte);

// Checks a quantizer, which maps the elements of a quantized tensor to numbers:
// a scheme and its parameters. Fails with kCorrupt if torch would refuse it, as
// far as that can be determined without the elements of other tensors.
Status CheckQuantizer(DType dtype, const Value& quantizer, uint64_t rank,
                      uint64_t byte);

// Returns the items of a value that should be numbers, such as a shape: those
// of a tuple, a list or a torch.Size, of any kind; nullopt for anything else.
std::optional<std::span<const Value>> Ints(Value value);

// Returns whether a tensor of this dtype can require gradients.
bool TakesGradients(DType dtype);

}  // namespace haulway::torch
