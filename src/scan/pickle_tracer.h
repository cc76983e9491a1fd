// Traces a pickle as Python's unpicklers would execute it, and reports what
// they would import. The tracer keeps only the shape of the stack, not the
// objects.
//
// Python has two unpicklers, one in C and one in Python, and the kind of input
// (bytes, a file, a buffered file) changes what they read. The tracer goes on
// wherever one of them would, so it sees at least what each of them sees. Where
// they would read different opcodes, it reports that.

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
  // True if the reader resolves persistent ids. Otherwise a persistent id ends
  // the pickle.
  bool persistent_ids = false;
  // True if the reader may be joblib, which reads arrays from the middle of the
  // pickle. The tracer then follows both joblib and pickle.load().
  bool arrays = false;
};

enum class TraceEnd : uint8_t {
  kStop,     // STOP: the pickle is complete.
  kBroken,   // Every unpickler fails here.
  kCut,      // The bytes end here, so every unpickler fails.
  kUnclear,  // The bytes after this point were not checked.
};

struct NamedGlobal {
  std::string module;  // As Python would import it.
  std::string name;
  std::string written;  // As written in the pickle: module, dot, name.
  uint64_t byte;        // Offset from the start of the pickle.
  bool allowed;
};

struct Trace {
  TraceEnd end = TraceEnd::kBroken;
  std::string why;  // Reason for the end; empty for kStop.
  // The module that unpicklers would import if a file with such a name exists,
  // for text that happens to begin like a pickle: "opyright (c) 2026"; else "".
  std::string prose;
  std::string doubt;  // Why a complete pickle is not known to be safe; else "".
  uint64_t length = 0;  // Bytes up to and including STOP, or to the end.
  // The highest protocol in a PROTO opcode; 0 without one.
  int protocol = 0;
  uint64_t opcode_count = 0;  // Number of executed opcodes.
  std::array<uint64_t, 256> opcodes{};
  std::vector<NamedGlobal> globals;
  uint64_t global_count = 0;  // May exceed globals.size(), which is limited.
  // Findings that make the pickle UNSAFE: names that are not allowed, calls of
  // values that are not names, bytes that unpicklers read differently. `byte`
  // is the offset from the start of the pickle.
  std::vector<Finding> faults;
};

// Traces the pickle that begins at `begin` and ends before `end`. Keeps at most
// some ten million values in memory, whatever the pickle contains. Requires:
// begin <= end <= source.size(). Fails only if reading the source fails.
Result<Trace> TracePickle(const ByteSource& source, uint64_t begin,
                          uint64_t end, const TraceOptions& options);

// A PickleRow traces consecutive pickles as one Unpickler reads them whose
// load() is called repeatedly: the memo is kept from one pickle to the next.
class PickleRow {
 public:
  // As TracePickle(). Requires: `source` and what `options` points to outlive
  // this.
  PickleRow(const ByteSource& source, uint64_t begin);
  ~PickleRow();

  // Traces the next pickle.
  Result<Trace> Next(const TraceOptions& options);
  // Returns whether the memo can change the trace of the next pickle.
  bool remembers() const;

 private:
  const ByteSource& source_;
  const uint64_t begin_;
  std::unique_ptr<Tracer> tracer_;  // Null before the first pickle.
};

}  // namespace haulway::scan
