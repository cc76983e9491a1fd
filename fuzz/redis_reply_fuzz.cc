// Property: any answer of a Redis server, in any pieces, read as each kind of
// reply, results in that reply or in a typed error.
//
// The first byte of the input determines the length of the pieces, the next
// eight the expected replies.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "redis/redis_connection.h"
#include "redis/redis_stream.h"

namespace {

using haulway::Code;
using haulway::Result;
using haulway::Status;

class Answers : public haulway::redis::Stream {
 public:
  Answers(std::span<const uint8_t> bytes, size_t piece)
      : bytes_(bytes), piece_(piece) {}

  Result<size_t> Read(std::span<std::byte> out) override {
    const size_t length = std::min({out.size(), bytes_.size(), piece_});
    if (length == 0) return Status(Code::kUnavailable, "the server closed");
    std::memcpy(out.data(), bytes_.data(), length);
    bytes_ = bytes_.subspan(length);
    return length;
  }
  Status Write(std::span<const std::byte>,
               std::span<const std::byte>) override {
    return Status();
  }
  Status WriteFile(const haulway::FileBytes&, uint64_t) override {
    return Status();
  }

 private:
  std::span<const uint8_t> bytes_;
  const size_t piece_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kReplies = 8;
  if (size <= kReplies) return 0;
  haulway::redis::Connection connection(std::make_unique<Answers>(
      std::span(data, size).subspan(1 + kReplies), data[0] % 64 + 1));
  std::array<std::byte, 300> value;
  for (size_t i = 1; i <= kReplies; ++i) {
    switch (data[i] % 5) {
      case 0:
        (void)connection.ReadOk();
        break;
      case 1:
        (void)connection.ReadWhetherSet();
        break;
      case 2:
        (void)connection.ReadInteger();
        break;
      case 3:
        (void)connection.ReadArray();
        break;
      default:
        (void)connection.ReadValue(std::span(value).first(data[i]));
    }
  }
  return 0;
}
