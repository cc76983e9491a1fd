// Opens models with the signature that SourceOptions asks for.

#pragma once

#include <memory>
#include <string_view>

#include "haulway/open.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// Returns the options with the signed model that they ask for, which OpenSource
// needs; as they are if they ask for none, or have one.
Result<SourceOptions> WithSignedModel(std::string_view uri,
                                      const SourceOptions& options);

// Returns a source that compares the file `uri` with the signed model of the
// options, if they have one.
Result<std::shared_ptr<const ByteSource>> ComparedWithSignature(
    std::shared_ptr<const ByteSource> source, std::string_view uri,
    const SourceOptions& options);

// As ByteSource::BeginParsing(), for all files of the options' signed model.
std::shared_ptr<const void> BeginParsingOf(const SourceOptions& options);

}  // namespace haulway
