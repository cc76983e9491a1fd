// Follows a pickle as Python's unpicklers would, and says what they would
// import; nothing of what the pickle builds is kept but the shape of a stack.
//
// There are two unpicklers, in C and in Python, and what they are given (bytes,
// a file, a buffered file) changes what they read. The tracer goes on wherever
// one of them would, so it sees at least what each of them sees; where they
// would read different opcodes it says so.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "haulway/source.h"
#include "haulway/status.h"
#include "scan/pickle_names.h"

namespace haulway::scan {

class Tracer;

struct TraceOptions {
  const PickleNames* names = nullptr;
  // Whether the reader resolves persistent ids; else one ends the pickle.
  bool persistent_ids = false;
  // Whether joblib may be the reader, for whom arrays stand in the pickle. Then
  // what joblib reads and what pickle.load() reads are both followed.
  bool arrays = false;
};

enum class TraceEnd : uint8_t {
  kStop,     // STOP: the pickle is whole.
  kBroken,   // Every unpickler ends here with an error.
  kCut,      // The bytes end; every unpickler ends with an error.
  kUnclear,  // What follows was not looked into.
};

struct NamedGlobal {
  std::string module;  // As it would be imported.
  std::string name;
  std::string written;  // As it stands in the pickle, with a dot between.
  uint64_t byte;        // From the first byte of the pickle.
  bool allowed;
};

struct Trace {
  TraceEnd end = TraceEnd::kBroken;
  std::string why;  // The reason; empty for kStop.
  // The module that unpicklers would import where a text begins with its name,
  // if there is a file of such a name: "opyright (c) 2026"; else "".
  std::string prose;
  std::string doubt;  // Why a whole pickle is not known to be safe, if not "".
  uint64_t length = 0;        // Bytes up to and including STOP, or to the end.
  int protocol = 0;           // The highest that a PROTO names, 0 without.
  uint64_t opcode_count = 0;  // That were carried out.
  std::array<uint64_t, 256> opcodes{};
  std::vector<NamedGlobal> globals;
  uint64_t global_count = 0;  // More than there are in `globals` if many.
  // What makes the pickle UNSAFE, `byte` from its first byte: names that are
  // not allowed, calls of what is no name, bytes that unpicklers read
  // differently.
  std::vector<Finding> faults;
};

// Follows the pickle that begins at `begin` of `source` and ends before `end`
// at the latest. Takes memory for at most some ten million values, whatever
// the pickle claims. Requires: begin <= end <= source.size(). Fails only if
// the source does.
Result<Trace> TracePickle(const ByteSource& source, uint64_t begin,
                          uint64_t end, const TraceOptions& options);

// Pickles in a row, as one Unpickler reads them whose load() is called again
// and again: it keeps the memo from one to the next.
class PickleRow {
 public:
  // As TracePickle(). Requires: `source` and what `options` point to live on.
  PickleRow(const ByteSource& source, uint64_t begin);
  ~PickleRow();

  // Traces the next pickle.
  Result<Trace> Next(const TraceOptions& options);
  // Whether the memo would change what the next one says.
  bool remembers() const;

 private:
  const ByteSource& source_;
  const uint64_t begin_;
  std::unique_ptr<Tracer> tracer_;  // Null before the first.
};

}  // namespace haulway::scan
