// The names that a pickle may hold and still be called SAFE.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "pickle/pickle_globals.h"

namespace haulway::scan {

// Whether the class of this name is an enumeration that is allowed, whose
// attributes of capital letters are its members.
bool IsEnumeration(std::string_view module, std::string_view name);

// What a call of an allowed name does beyond describing data.
enum class Care : uint8_t {
  kNone,
  kCodec,     // Its second argument names a codec, which Python imports.
  kSame,      // It returns its first argument.
  kMakes,     // It makes an object of the class that is its first argument.
  kRebuilds,  // It calls its first argument.
};
Care CareOf(std::string_view module, std::string_view name);

// The names that loading allows, and those of classes and functions of others
// that only describe data: calling them with any arguments, or giving state to
// what they return, runs no code but their own and imports nothing. Keywords
// are no such arguments, as torch takes addresses by them; classes of NumPy
// believe their state, so that the tracer looks at it (tracer_numpy.cc); and a
// few do what their arguments say (CareOf(), tracer_calls.cc).
class PickleNames {
 public:
  // `also`: as GlobalTable's.
  explicit PickleNames(std::span<const std::string> also) : table_(also) {}

  // For archives of TorchScript.
  void AllowTorchScript() { table_.AllowTorchScript(); }

  // Looks up a name as Python 3 would import it.
  bool Allows(std::string_view module, std::string_view name) const;
  // Whether it is allowed only because the caller said so, who then answers
  // for whatever is done with it.
  bool IsCallers(std::string_view module, std::string_view name) const;

 private:
  GlobalTable table_;
};

}  // namespace haulway::scan
