#include "zip/inflate_part.h"

// Makes zlib declare its input as const.
#define ZLIB_CONST
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace haulway::zip {

namespace {

constexpr int kRawDeflate = -MAX_WBITS;  // Without zlib's own header.
constexpr size_t kMostAtOnce = std::numeric_limits<uInt>::max();

class Inflater {
 public:
  explicit Inflater(std::span<const std::byte> deflated)
      : left_(deflated), ok_(inflateInit2(&stream_, kRawDeflate) == Z_OK) {}
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() {
    if (ok_) inflateEnd(&stream_);
  }

  // Fills as much of `out` as the payload has. Returns the number of bytes.
  Result<size_t> Next(std::span<std::byte> out) {
    if (!ok_) return Status(Code::kLimit, "no memory to inflate");
    size_t made = 0;
    // When `out` is full, inflate() is called once more to detect the end.
    while (!ended_) {
      const size_t in = std::min(left_.size(), kMostAtOnce);
      const size_t room = std::min(out.size() - made, kMostAtOnce);
      stream_.next_in = reinterpret_cast<const Bytef*>(left_.data());
      stream_.avail_in = static_cast<uInt>(in);
      stream_.next_out = reinterpret_cast<Bytef*>(out.data() + made);
      stream_.avail_out = static_cast<uInt>(room);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      const size_t used = in - stream_.avail_in;
      const size_t came = room - stream_.avail_out;
      left_ = left_.subspan(used);
      made += came;
      if (result == Z_STREAM_END) {
        ended_ = true;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return Status(Code::kCorrupt, "payload is not deflated rightly");
      } else if (used == 0 && came == 0) {
        break;
      }
    }
    return made;
  }

  // Returns whether the stream ended exactly at the end of the input.
  bool is_done() const { return ended_ && left_.empty(); }

 private:
  std::span<const std::byte> left_;
  z_stream stream_{};
  const bool ok_;
  bool ended_ = false;
};

}  // namespace

Result<size_t> InflateStart(std::span<const std::byte> deflated,
                            std::span<std::byte> out) {
  return Inflater(deflated).Next(out);
}

Status InflateAfter(std::span<const std::byte> head,
                    std::span<const std::byte> deflated,
                    std::span<std::byte> out) {
  Inflater inflater(deflated);
  std::vector<std::byte> found(head.size());
  HAULWAY_ASSIGN(const size_t before, inflater.Next(found));
  if (before != head.size() || !std::ranges::equal(found, head)) {
    return Status(Code::kCorrupt, "payload begins otherwise than it did");
  }
  HAULWAY_ASSIGN(const size_t made, inflater.Next(out));
  // If the payload ends exactly here, this read reaches the end of the stream.
  std::byte more;
  HAULWAY_ASSIGN(const size_t rest, inflater.Next({&more, 1}));
  if (made == out.size() && rest == 0 && inflater.is_done()) return Status();
  return Status(Code::kCorrupt,
                fmt::format("payload does not inflate to its size {}",
                            head.size() + out.size()));
}

}  // namespace haulway::zip
