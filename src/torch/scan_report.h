// Adding what a pickle names to a report.

#pragma once

#include "haulway/verify.h"
#include "pickle/pickle_vm.h"

namespace haulway::torch {

// Appends one scanned pickle. `scanned` says where it lies.
void AppendScan(const PickleResult& result, ScannedPickle scanned,
                ScanReport* report);

}  // namespace haulway::torch
