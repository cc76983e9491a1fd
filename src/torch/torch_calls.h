// Whether what a pickle calls can be called so: torch's own functions, with
// the arguments that stand there.

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
// for those of torch.Size, torch.device and _get_layout that are of another
// kind. Knows nothing about functions that it does not know.
Status CheckCall(GlobalKind kind, std::span<const Value> args, uint64_t byte);

// How the elements of a quantized tensor mean numbers: a scheme and what it
// takes. Fails with kCorrupt where torch makes no such tensor, as far as that
// can be told without the elements of other tensors.
Status CheckQuantizer(DType dtype, const Value& quantizer, uint64_t rank,
                      uint64_t byte);

// What stands where numbers do, as those of a shape: the items of a tuple, a
// list or a torch.Size, of whatever kind; nullopt for anything else.
std::optional<std::span<const Value>> Ints(Value value);

// Whether a tensor of that type can require gradients.
bool TakesGradients(DType dtype);

}  // namespace haulway::torch
