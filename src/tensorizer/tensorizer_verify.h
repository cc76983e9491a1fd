// Verifies tensorizer files: checks every digest, in parallel, without loading.

#pragma once

#include <memory>

#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::tensorizer {

Result<VerifyReport> VerifyTensorizer(std::shared_ptr<const ByteSource> source,
                                      const VerifyOptions& options);

}  // namespace haulway::tensorizer
