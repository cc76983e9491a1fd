// The pickle machine: turns a pickle into plain data, and runs nothing.
//
// It takes bytes and returns facts: no I/O, no imports, no calls. A global is
// a name looked up in a table; a reduction is kept as an Object, or turned
// into data at once where it means plain Python data.

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

// How much memory a tree may take, and which cap of ParseLimits says so.
struct TreeBudget {
  uint64_t bytes;
  std::string_view cap;
  uint64_t cap_value;
};
// `stored_bytes`: what the file holds of the pickle; less if it is deflated.
TreeBudget TreeBudgetOf(const ParseLimits& limits, uint64_t pickle_bytes,
                        uint64_t stored_bytes);

struct PickleOptions {
  ParseLimits limits;
  // What the file holds of the pickle; 0: all of it.
  uint64_t stored_bytes = 0;
  const GlobalTable* globals = nullptr;  // Null: the default table.
  // Do not stop at what is unsafe, and keep what was found before a fault:
  // both are findings then, and ParsePickle() never fails.
  bool scan = false;
  // Go on after a name that is not allowed: it, and what is called or built
  // with it, stays in the tree as an opaque Object, and the first such thing
  // is PickleResult::unsafe. All else that is unsafe fails as ever.
  bool keep_opaque = false;
  // The bytes are the start of more: where they end early, that is said, and
  // not what is opaque before.
  bool more_follows = false;
};

// Whether only code could make it: a name that is not allowed, or an Object
// that calls one or what another call made.
bool IsOpaque(const Value& value);

// One place at which a pickle names a global.
struct GlobalMention {
  const Global* global;
  uint64_t byte;  // Where the opcode stands.
};

struct PickleResult {
  Value root;
  size_t consumed = 0;  // Bytes up to and including STOP.
  int protocol = 0;     // The argument of PROTO; 0 without PROTO.
  std::vector<GlobalMention> mentions;
  std::array<uint64_t, 256> opcodes{};  // How often each opcode stands in it.
  // With scan or keep_opaque: the first thing that is unsafe or opaque.
  Status unsafe;
  // Scanning only: everything unsafe, and last the fault that ended parsing.
  std::vector<Finding> findings;
  bool complete = false;  // False if a fault ended a scan; root is None then.
};

// Parses the pickle at the start of `bytes`, protocols 0 to 5; more bytes may
// follow its STOP. The whole stream is parsed before anything is returned.
// Containers are made in `arena`; strings are views of `bytes`, which must
// live as long as the tree.
//
// Fails, always at the byte of an opcode, with
//   kTruncated    if the bytes end before STOP or within an argument,
//   kCorrupt      if they are no pickle,
//   kUnsafe       for a name that is not allowed, and anything done to what
//                 only code could handle; with keep_opaque also where one
//                 and then another fault is met,
//   kLimit        if a cap is passed,
//   kUnsupported  for out-of-band buffers, which no file can hold.
Result<PickleResult> ParsePickle(std::span<const std::byte> bytes,
                                 TreeArena& arena,
                                 const PickleOptions& options = {});

}  // namespace haulway
