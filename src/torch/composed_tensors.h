// Tensors that are made of others: whether their parts agree.

#pragma once

#include "haulway/format.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::torch {

// Reads the indices of every sparse tensor of the object, and the places of
// the components of every nested one, and fails with kCorrupt where one leads
// out of the tensor or contradicts its shape: whoever loads the object refuses
// it then. Fails with kLimit where so few bytes are
// seen as so many indices that reading them is out of proportion, else as
// reading does.
//
// Tensors of other kinds cost nothing but a walk over the object.
Status CheckComposedTensors(const FormatReader& reader);

// The same, where what is wrong is a finding: fails only if the source does.
Status VerifyComposedTensors(const FormatReader& reader, VerifyReport* report);

}  // namespace haulway::torch
