// Models in several GGUF files, as llama.cpp's gguf-split writes them: the
// keys split.no, split.count and split.tensors.count say which part of the
// model a file is.

#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/format.h"
#include "haulway/index.h"

namespace haulway::gguf {

// Returns the place that a file's metadata states; nullopt if it is a whole
// model.
std::optional<FilePlace> SplitOf(std::span<const Fact> metadata);

// Replaces the place in a file's metadata.
void SetSplit(const FilePlace& split, std::vector<Fact>* metadata);

// Returns whether a key states the place of a file.
bool IsOfSplit(std::string_view key);

}  // namespace haulway::gguf
