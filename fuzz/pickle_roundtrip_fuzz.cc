// Property: what any pickle parses to can be written and parsed again, and is
// the same tree; and the pickle written is a fixed point.

#include <cstdint>
#include <cstdlib>
#include <span>

#include "haulway/pickle.h"
#include "pickle/pickle_vm.h"
#include "testing/tree_equality.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  haulway::TreeArena arena;
  const auto parsed =
      haulway::ParsePickle(std::as_bytes(std::span(data, size)), arena);
  if (!parsed.ok()) return 0;
  const auto written = haulway::WritePickle(parsed.value().root);
  if (!written.ok()) {
    // Only a set or Counter that holds itself has no form in protocol 2.
    if (written.status().code() != haulway::Code::kLimit) abort();
    return 0;
  }
  haulway::PickleOptions options;
  // The memory of a tree is judged by the size of its pickle, and this pickle
  // may be the shorter one.
  options.limits.max_tree_bytes_per_byte = 1 << 20;
  haulway::TreeArena again_arena;
  const auto again = haulway::ParsePickle(
      std::as_bytes(std::span(written.value())), again_arena, options);
  if (!again.ok()) abort();
  if (!haulway::test::TreeComparer().Same(parsed.value().root,
                                          again.value().root)) {
    abort();
  }
  const auto rewritten = haulway::WritePickle(again.value().root);
  if (!rewritten.ok() || rewritten.value() != written.value()) abort();
  return 0;
}
