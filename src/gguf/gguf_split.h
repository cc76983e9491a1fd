// Models in several GGUF files, as llama.cpp's gguf-split writes them: the
// keys split.no, split.count and split.tensors.count say which part of the
// model a file is.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/index.h"

namespace haulway::gguf {

// The place of a file in a model of several files.
struct Split {
  uint64_t number = 0;  // From 0 on.
  uint64_t count = 0;   // Of files.
  // Of tensors in all files. Files may omit it.
  std::optional<uint64_t> tensors = std::nullopt;
};

// Returns the place that a file's metadata states; nullopt if it is a whole
// model.
std::optional<Split> SplitOf(std::span<const Fact> metadata);

// Replaces the place in a file's metadata.
void SetSplit(const Split& split, std::vector<Fact>* metadata);

// Returns whether a key states the place of a file.
bool IsOfSplit(std::string_view key);

// Returns whether files are named as the parts of one model,
// "model-00001-of-00003.gguf".
bool AreNamedAsSplit(std::span<const std::string_view> names);

}  // namespace haulway::gguf
