// The pickle machine turns a pickle into plain data, and executes nothing.
//
// It takes bytes and returns facts: no I/O, no imports, no calls. A global is a
// name looked up in a table. A reduction is kept as an Object, or evaluated at
// once if it means plain Python data.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"
#include "pickle/pickle_globals.h"

namespace haulway {

// The maximum memory of a tree, and the field of ParseLimits that determines
// it.
struct TreeBudget {
  uint64_t bytes;
  std::string_view cap;
  uint64_t cap_value;
};
// `stored_bytes`: bytes that the pickle takes in the file; fewer than
// `pickle_bytes` if it is deflated.
TreeBudget TreeBudgetOf(const ParseLimits& limits, uint64_t pickle_bytes,
                        uint64_t stored_bytes);

struct PickleOptions {
  ParseLimits limits;
  // Bytes that the pickle takes in the file; 0 means its own size.
  uint64_t stored_bytes = 0;
  const GlobalTable* globals = nullptr;  // Null: the default table.
  // Continue after unsafe parts, and keep what was parsed before a fault. Both
  // become findings, and ParsePickle() never fails.
  bool scan = false;
  // Continue after a name that is not allowed: it, and everything called or
  // built with it, stays in the tree as an opaque Object, and
  // PickleResult::unsafe has the first one. Other unsafe parts still fail.
  bool keep_opaque = false;
  // The bytes are the start of a longer pickle: if they end early, report that,
  // and not opaque parts before it.
  bool more_follows = false;
};

// Returns whether only code could create the value: a name that is not allowed,
// or an Object that calls one or the result of another call.
bool IsOpaque(const Value& value);

// A place where a pickle names a global.
struct GlobalMention {
  const Global* global;
  uint64_t byte;  // Offset of the opcode.
};

struct PickleResult {
  Value root;
  size_t consumed = 0;  // Bytes up to and including STOP.
  int protocol = 0;     // The argument of PROTO; 0 without PROTO.
  std::vector<GlobalMention> mentions;
  std::array<uint64_t, 256> opcodes{};  // Number of occurrences of each opcode.
  // With scan or keep_opaque: the first unsafe or opaque part.
  Status unsafe;
  // Only when scanning: all unsafe parts, and last the fault that ended
  // parsing.
  std::vector<Finding> findings;
  bool complete = false;  // False if a fault ended a scan; root is None then.
};

// Parses the pickle at the start of `bytes`, protocols 0 to 5; more bytes may
// follow its STOP. Parses the whole stream before it returns anything.
// Containers are allocated in `arena`; strings are views of `bytes`, which must
// outlive the tree.
//
// Fails, always at the byte of an opcode, with
//   kTruncated    if the bytes end before STOP or within an argument,
//   kCorrupt      if they are not a pickle,
//   kUnsafe       for a name that is not allowed, and for operations on values
//                 that only code could handle; with keep_opaque also for an
//                 opaque part that another fault follows,
//   kLimit        if a cap is exceeded,
//   kUnsupported  for out-of-band buffers, which a file cannot contain.
Result<PickleResult> ParsePickle(std::span<const std::byte> bytes,
                                 TreeArena& arena,
                                 const PickleOptions& options = {});

}  // namespace haulway
