#include "scan/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "base/zstd.h"
#include "haulway/options.h"

namespace haulway::scan {

namespace {

// Returns windowBits for deflateInit2() (zlib.h): a 32 KiB window, and the
// wrapper around the stream.
int WindowBits(Deflated form) {
  switch (form) {
    case Deflated::kRaw:
      return -MAX_WBITS;
    case Deflated::kZlib:
      return MAX_WBITS;
    case Deflated::kGzip:
      return MAX_WBITS + 16;
    case Deflated::kZstd:
      break;
  }
  return 0;
}

Result<Inflated> InflateZstd(std::span<const std::byte> frames, uint64_t most) {
  HAULWAY_ASSIGN(ZstdDecoder decoder, ZstdDecoder::Make());
  Inflated result;
  while (!frames.empty() || !decoder.is_between_frames()) {
    const uint64_t held = result.bytes.size();
    if (held == most) return result;
    const size_t given = frames.size();
    result.bytes.resize(
        held + std::min(most - held, std::max<uint64_t>(held, 64 * kKiB)));
    std::span<std::byte> room = std::span(result.bytes).subspan(held);
    const Status status = decoder.Next(&frames, &room);
    result.bytes.resize(result.bytes.size() - room.size());
    const bool is_stuck = frames.size() == given && result.bytes.size() == held;
    if (status.ok() && !is_stuck) continue;
    if (status.code() == Code::kLimit) return status;
    result.damaged = true;
    return result;
  }
  result.whole = true;
  return result;
}

}  // namespace

Result<Inflated> Inflate(std::span<const std::byte> deflated, Deflated form,
                         uint64_t most) {
  if (form == Deflated::kZstd) return InflateZstd(deflated, most);
  Inflated result;
  z_stream stream{};
  if (inflateInit2(&stream, WindowBits(form)) != Z_OK) {
    return Status(Code::kLimit, "no memory to inflate");
  }
  size_t used = 0;
  while (true) {
    const uint64_t held = result.bytes.size();
    if (held == most) break;
    const uint64_t room =
        std::min(most - held, std::max<uint64_t>(held, 64 * kKiB));
    const auto chunk = static_cast<uInt>(
        std::min<uint64_t>(room, std::numeric_limits<uInt>::max() / 2));
    result.bytes.resize(held + chunk);
    const auto given = static_cast<uInt>(std::min<size_t>(
        deflated.size() - used, std::numeric_limits<uInt>::max() / 2));
    // zlib takes the input through a pointer to non-const, but does not change
    // it.
    stream.next_in = const_cast<Bytef*>(
        reinterpret_cast<const Bytef*>(deflated.data() + used));
    stream.avail_in = given;
    stream.next_out = reinterpret_cast<Bytef*>(result.bytes.data() + held);
    stream.avail_out = chunk;
    const int code = inflate(&stream, Z_NO_FLUSH);
    used += given - stream.avail_in;
    result.bytes.resize(held + (chunk - stream.avail_out));
    if (code == Z_STREAM_END) {
      // Readers of gzip skip zeros between members and continue with the next
      // one. joblib continues with the next zlib stream.
      size_t next = used;
      while (form == Deflated::kGzip && next < deflated.size() &&
             deflated[next] == std::byte{0}) {
        ++next;
      }
      if (form == Deflated::kRaw || next == deflated.size()) {
        result.whole = true;
        break;
      }
      used = next;
      if (inflateReset(&stream) == Z_OK) continue;
    }
    if (code == Z_OK && (stream.avail_out == 0 || used < deflated.size())) {
      continue;
    }
    result.damaged = true;
    break;
  }
  inflateEnd(&stream);
  return result;
}

}  // namespace haulway::scan
