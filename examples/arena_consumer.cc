// A program that starts a Python worker and reads the tensors that the worker
// makes, in place:
//
//   ./arena_consumer python3 arena_producer.py
//
// Prints a line for each item: its keys, and the sum of each float32 tensor.

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "haulway/items.h"
#include "haulway/worker.h"

using namespace haulway;

namespace {

double Sum(const ItemTensor& tensor, const Buffer& part) {
  uint64_t count = 1;
  for (const uint64_t size : tensor.shape) count *= size;
  double sum = 0;
  for (uint64_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, part.data() + tensor.offset + i * sizeof(value),
                sizeof(value));
    sum += value;
  }
  return sum;
}

void Print(const ReceivedItem& received) {
  const Item& item = received.item;
  for (size_t i = 0; i < item.items.size(); ++i) {
    const Item& value = item.items[i];
    std::printf("%s%s=", i == 0 ? "" : " ", item.keys[i].text.c_str());
    if (value.kind == Item::Kind::kInteger) {
      std::printf("%lld", static_cast<long long>(value.integer));
    } else if (value.kind == Item::Kind::kText) {
      std::printf("%s", value.text.c_str());
    } else if (value.kind == Item::Kind::kTensor &&
               value.tensor.dtype == DType::kF32) {
      std::printf("%.1f", Sum(value.tensor, received.parts[value.tensor.part]));
    } else {
      std::printf("?");
    }
  }
  std::printf("\n");
}

Status Run(std::vector<std::string> command) {
  ArenaOptions options;
  options.max_bytes = uint64_t{1} << 26;
  HAULWAY_ASSIGN(const auto arena, Arena::Create(options));
  HAULWAY_ASSIGN(const auto reader, arena->OpenReader());
  HAULWAY_ASSIGN(const auto channel, Channel::Create({}));
  HAULWAY_ASSIGN(const auto worker,
                 Worker::Spawn(channel, arena, std::move(command)));
  ChannelReceiver& receiver = worker->receiver();
  receiver.WakeWhenStarving(arena);
  const uint32_t epoch = receiver.StartPass();
  while (true) {
    HAULWAY_ASSIGN(const Message message, receiver.Receive(UINT64_MAX));
    switch (message.kind) {
      case MessageKind::kReady:
        break;
      case MessageKind::kItem: {
        HAULWAY_ASSIGN(const ReceivedItem item,
                       OpenItem(message, reader.get()));
        Print(item);
        break;
      }
      case MessageKind::kFinished:
        if (message.epoch == epoch) return Status();
        break;
      case MessageKind::kRefused:
      case MessageKind::kFailed:
        std::fwrite(message.bytes.data(), 1, message.bytes.size(), stderr);
        return Status(Code::kInternal, "the worker failed");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Status done = Run({argv + 1, argv + argc});
  if (done.ok()) return 0;
  std::fprintf(stderr, "%s\n", done.message().data());
  return 1;
}
