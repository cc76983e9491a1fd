// Writes a tree of plain data as a pickle of protocol 2.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "haulway/limits.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway {

struct PickleWriteOptions {
  uint32_t max_depth = ParseLimits().max_depth;
  // What to write in place of a kPersistent or kObject, or nullopt to write it
  // as it is: how storages get new keys and tensors new offsets. May be empty.
  std::function<std::optional<Value>(const Value&)> replace;
};

// Writes `root` as torch.save writes such an object. ParsePickle() of the
// result gives an equal tree; shared references and cycles stay. A pickle that
// torch.save wrote comes back byte for byte, except where Python shared the
// text of a one-byte `bytes`. What protocol 2 has no word for (Python 2
// strings, keywords of __new__) takes the opcode that does.
//
// Texts at one address are one string, as in a tree that was parsed.
//
// Fails with
//   kLimit        if the tree is deeper than max_depth, or a set or Counter
//                 holds itself so that Python could not write it either,
//   kUnsupported  for bytes of which the text form would pass 4 GiB, and a
//                 Python 2 string of 2 GiB.
Result<std::string> WritePickle(const Value& root,
                                const PickleWriteOptions& options = {});

}  // namespace haulway
