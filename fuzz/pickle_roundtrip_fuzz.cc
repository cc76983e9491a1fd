// Property: the tree of any pickle can be written and parsed again to the same
// tree, and the written pickle is a fixed point.

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
    // Only a set or Counter that contains itself cannot be written at protocol
    // 2.
    if (written.status().code() != haulway::Code::kLimit) abort();
    return 0;
  }
  haulway::PickleOptions options;
  // The limit on a tree's memory depends on the size of its pickle, and this
  // pickle may be shorter.
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
