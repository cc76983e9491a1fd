// A program that makes batches for a Python process, which starts it:
//
//   from haulway.ipc import SharedMemoryArena, iterate_in_program
//
//   batches = iterate_in_program(
//       ["./arena_producer", "10"], arena=SharedMemoryArena(1 << 28))
//   for batch in batches:
//       print(batch["index"], batch["image"].shape, batch["tokens"].dtype)
//
// The image is made in shared memory, where Python sees it as a NumPy array
// without a copy; the tokens are copied there.

#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "haulway/items.h"
#include "haulway/worker.h"

using namespace haulway;

namespace {

constexpr uint64_t kSide = 256;

Status MakeBatch(int64_t index, ChannelSender& sender, ArenaWriter& arena,
                 uint32_t epoch, bool* wanted) {
  constexpr uint64_t kWaitNs = 10'000'000'000;
  HAULWAY_ASSIGN(const ArenaRange loan,
                 arena.Lend(kSide * kSide * sizeof(float), kWaitNs));
  const std::span<std::byte> memory = arena.At(loan);
  auto* image = reinterpret_cast<float*>(memory.data());
  for (uint64_t i = 0; i < kSide * kSide; ++i) {
    image[i] = static_cast<float>(index) + static_cast<float>(i % kSide);
  }
  const std::vector<int64_t> tokens(1000, index);
  const std::span<const std::byte> parts[] = {memory,
                                              std::as_bytes(std::span(tokens))};

  const Item item =
      Item::Dict({{"index", Item::Integer(index)},
                  {"image", Item::Tensor(0, DType::kF32, {kSide, kSide})},
                  {"tokens", Item::Tensor(1, DType::kI64, {tokens.size()})},
                  {"name", Item::Text("batch " + std::to_string(index))}});
  const Result<bool> sent = SendItem(sender, &arena, epoch, item, parts);
  // From here on the parent owns the image.
  arena.DropLoan(loan.unit);
  HAULWAY_TRY(sent.status());
  *wanted = *sent;
  return Status();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: arena_producer COUNT LINK\n");
    return 2;
  }
  const long count = std::atol(argv[1]);
  const Result<WorkerLink> link = ParseWorkerLink(argv[2]);
  if (!link.ok()) {
    std::fprintf(stderr, "%s\n", link.status().message().data());
    return 2;
  }
  const Status served = ServeParent(
      *link,
      [count](ChannelSender& sender, ArenaWriter* arena,
              uint32_t epoch) -> Status {
        if (arena == nullptr) {
          return Status(Code::kInvalidArgument, "this needs an arena");
        }
        if (count < 0) return Status(Code::kInvalidArgument, "nothing to make");
        bool wanted = true;
        for (long i = 0; i < count && wanted; ++i) {
          HAULWAY_TRY(MakeBatch(i, sender, *arena, epoch, &wanted));
        }
        return Status();
      });
  return served.ok() ? 0 : 1;
}
