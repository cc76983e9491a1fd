// What is signed of a model: an in-toto statement with a digest of every file,
// or of every piece of every file. Source: sigstore/model-transparency,
// src/model_signing/_signing/signing.py. See docs/signing.md.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/signing.h"
#include "haulway/status.h"

namespace haulway::signing {

inline constexpr size_t kMostResources = 1'000'000;
inline constexpr std::string_view kPredicateType =
    "https://model_signing/signature/v1.0";
// Of version 0.2.0, with a subject for each file.
inline constexpr std::string_view kOldPredicateType =
    "https://model_signing/Digests/v0.1";
// The name of the only file of a model that is a file.
inline constexpr std::string_view kOneFile = ".";
inline constexpr std::string_view kGitPaths[] = {".git", ".gitattributes",
                                                 ".github", ".gitignore"};

// A file, or a piece of one.
struct Resource {
  std::string name;             // Relative, with '/'.
  uint64_t begin = 0, end = 0;  // Zeros for a whole file.
  std::string digest;
};

struct Statement {
  std::string predicate_type = std::string(kPredicateType);
  SignedSubject subject;
  bool has_pieces = false;  // Method "shards", not "files".
  ModelHash hash = ModelHash::kSha256;
  uint64_t piece_bytes = 0;  // Size of a piece.
  bool allow_symlinks = false;
  std::vector<std::string> ignore_paths;
  std::vector<Resource> resources;

  bool is_one_file() const {
    return resources.size() == 1 && resources[0].name == kOneFile;
  }
};

// Returns the number of bytes of a digest.
size_t DigestBytes(ModelHash hash);

// Compares paths part by part, as the reference orders files.
bool IsBefore(std::string_view a, std::string_view b);

// Returns why a path cannot be that of a file in a model, or "".
std::string_view WhyNoPath(std::string_view path);

// Parses and checks everything that the statement says of itself. Fails with
// kCorrupt, kLimit, and kUnsupported for another predicate, method or hash.
Result<Statement> ParseStatement(std::string_view text);

// Sorts the resources, sets the subject's digest, and returns the text to sign.
// Requires: every text is UTF-8.
std::string WriteStatement(Statement* statement);

}  // namespace haulway::signing
