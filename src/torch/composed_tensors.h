// Checks tensors that consist of other tensors: whether the parts agree.

#pragma once

#include "haulway/format.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::torch {

// Reads the indices of every sparse tensor in the object, and the positions of
// the components of every nested one. Fails with kCorrupt if one is out of
// bounds or contradicts the tensor's shape; torch then refuses to load the
// object. Fails with kLimit if few bytes are shown as so many indices that
// reading them is out of proportion, and otherwise as reading does.
//
// Other tensors cost only a walk over the object.
Status CheckComposedTensors(const FormatReader& reader);

// As CheckComposedTensors(), but adds faults as findings, and a note if the
// object needs code. Fails only if the source does.
Status VerifyComposedTensors(const FormatReader& reader, VerifyReport* report);

}  // namespace haulway::torch
