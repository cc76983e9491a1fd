// The names that a SAFE pickle may contain.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "pickle/pickle_globals.h"

namespace haulway::scan {

// Returns whether the class with this name is an allowed enumeration. Its
// attributes in capital letters are its members.
bool IsEnumeration(std::string_view module, std::string_view name);

// What a call of an allowed name does beyond describing data.
enum class Care : uint8_t {
  kNone,
  kCodec,     // The second argument names a codec, which Python imports.
  kSame,      // Returns its first argument.
  kMakes,     // Creates an object of the class in its first argument.
  kNumber,    // Makes an array of its argument, which may name an address.
  kRebuilds,  // Calls its first argument.
  kEmpty,     // Does work if called; NEWOBJ only makes an object for a state.
};
Care CareOf(std::string_view module, std::string_view name);

// The names that loading allows, and classes and functions of other libraries
// that only describe data: calling them with any arguments, or setting state on
// the result, runs only their own code and imports nothing. There are three
// exceptions. Keyword arguments are not covered, because torch accepts
// addresses through them. NumPy classes trust their state, so the tracer checks
// it (tracer_numpy.cc). And a few names act on their arguments (CareOf(),
// tracer_calls.cc).
class PickleNames {
 public:
  // `also`: see GlobalTable.
  explicit PickleNames(std::span<const std::string> also) : table_(also) {}

  // Allows the names that TorchScript archives use.
  void AllowTorchScript() { table_.AllowTorchScript(); }

  // Returns whether a name is allowed, resolved as Python 3 would import it.
  bool Allows(std::string_view module, std::string_view name) const;
  // Returns whether the name is allowed only because the caller listed it. The
  // caller is then responsible for what is done with it.
  bool IsCallers(std::string_view module, std::string_view name) const;

 private:
  GlobalTable table_;
};

}  // namespace haulway::scan
