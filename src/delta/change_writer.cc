// Design: a tensor passes in blocks that stay in the processor's cache: mask,
// frame, checksum and copy of a block are made before the next one is read.
// MaskEncoder makes the blocks of the frame.
//
// A tensor that changed densely from its start has no runs of zeros. zstd's own
// search compresses it, as a stream.

#include "delta/change_writer.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "delta/frame_reader.h"
#include "delta/mask_encoder.h"
#include "delta/zstd_codes.h"
#include "haulway/options.h"

namespace haulway::delta {

namespace {

using Bytes = std::span<const std::byte>;

constexpr int kWindowLog = 17;
constexpr int kLevel = 1;
constexpr uint64_t kMostPositions = uint64_t{1} << 32;
constexpr size_t kBlock = MaskEncoder::kMostBytes;
// For what zstd writes of a stream.
constexpr size_t kPiece = 64 * kKiB;

struct FreeCompressor {
  void operator()(ZSTD_CCtx* compressor) const { ZSTD_freeCCtx(compressor); }
};
using Compressor = std::unique_ptr<ZSTD_CCtx, FreeCompressor>;

Status CannotCompress(size_t code) {
  return Status(Code::kInternal, fmt::format("zstd cannot compress: {}",
                                             ZSTD_getErrorName(code)));
}

// Writes a little-endian number.
void SetNumber(std::byte* at, uint64_t number, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    at[i] = static_cast<std::byte>(number >> (8 * i));
  }
}

// Returns a frame header for content of a tensor (RFC 8878, 3.1.1.1).
std::vector<std::byte> FrameHeader(uint64_t size) {
  const bool is_long = size > UINT32_MAX;
  std::vector<std::byte> header(is_long ? 14 : 10);
  SetNumber(header.data(), kFrameMagic, 4);
  // The flag of the content's size; the window's exponent.
  header[4] = static_cast<std::byte>(is_long ? 0xC0 : 0x80);
  header[5] = static_cast<std::byte>((kWindowLog - 10) << 3);
  SetNumber(header.data() + 6, size, is_long ? 8 : 4);
  return header;
}

}  // namespace

struct ChangeWriter::State {
  explicit State(MaskEncoder made) : encoder(std::move(made)) {}

  MaskEncoder encoder;
  // Compresses by zstd's own search; made when it is needed.
  Compressor searching;
  std::vector<std::byte> packed;

  // Begins a frame by zstd's own search, for content of this size.
  Status BeginStream(uint64_t size) {
    if (searching == nullptr) searching.reset(ZSTD_createCCtx());
    packed.resize(kPiece);
    if (searching == nullptr) {
      return Status(Code::kLimit, "no memory for the writer of changes");
    }
    ZSTD_CCtx_reset(searching.get(), ZSTD_reset_session_only);
    ZSTD_CCtx_setParameter(searching.get(), ZSTD_c_compressionLevel, kLevel);
    const size_t set = ZSTD_CCtx_setPledgedSrcSize(searching.get(), size);
    return ZSTD_isError(set) ? CannotCompress(set) : Status();
  }

  Status WriteStream(Bytes content, ZSTD_EndDirective directive,
                     const FrameOut& out) {
    ZSTD_inBuffer in{content.data(), content.size(), 0};
    while (true) {
      ZSTD_outBuffer to{packed.data(), packed.size(), 0};
      const size_t left =
          ZSTD_compressStream2(searching.get(), &to, &in, directive);
      if (ZSTD_isError(left)) return CannotCompress(left);
      if (to.pos != 0) HAULWAY_TRY(out(Bytes(packed).first(to.pos)));
      const bool is_done =
          directive == ZSTD_e_continue ? in.pos == in.size : left == 0;
      if (is_done) return Status();
    }
  }

  // How a frame is made: of blocks, or by zstd as a stream.
  enum class Way { kNone, kBlocks, kStream };

  // Begins the frame of a tensor whose first changed block is compared, after
  // `equal` others.
  Status BeginFrame(uint64_t size, uint64_t* equal, Way* way,
                    const FrameOut& out) {
    if (encoder.has_runs()) {
      *way = Way::kBlocks;
      return out(FrameHeader(size));
    }
    *way = Way::kStream;
    HAULWAY_TRY(BeginStream(size));
    const std::vector<std::byte> zeros(*equal == 0 ? 0 : kBlock);
    for (; *equal > 0; --*equal) {
      HAULWAY_TRY(WriteStream(zeros, ZSTD_e_flush, out));
    }
    return Status();
  }

  static void AddTo(Checksum* checksum, Bytes bytes) {
    if (checksum != nullptr) checksum->Update(bytes);
  }

  template <bool kCopies, class Byte>
  Result<bool> WriteXor(std::span<Byte> before, Bytes after, Checksum* checksum,
                        const FrameOut& out, uint64_t* done);
  Result<bool> WriteOverwrite(Bytes before, Bytes after, Checksum* checksum,
                              const FrameOut& out);
};

template <bool kCopies, class Byte>
Result<bool> ChangeWriter::State::WriteXor(std::span<Byte> before, Bytes after,
                                           Checksum* checksum,
                                           const FrameOut& out,
                                           uint64_t* done) {
  const uint64_t size = before.size();
  // What the checksum is of: these bytes do not change meanwhile.
  const Bytes newer = kCopies ? Bytes(before) : after;
  Way way = Way::kNone;
  uint64_t equal = 0;  // Blocks without a change, not written yet.
  for (uint64_t begin = 0; begin < size; begin += kBlock) {
    const size_t length =
        static_cast<size_t>(std::min<uint64_t>(kBlock, size - begin));
    const bool is_last = begin + length == size;
    const std::span<Byte> old = before.subspan(begin, length);
    const Bytes news = after.subspan(begin, length);
    bool differs;
    if constexpr (kCopies) {
      differs = encoder.Replace(old, news);
    } else {
      differs = encoder.Compare(old, news);
    }
    if (!differs && (way == Way::kNone || (way == Way::kBlocks && !is_last))) {
      ++equal;
      if (way != Way::kNone) AddTo(checksum, newer.subspan(begin, length));
      continue;
    }
    const auto write = [&]() -> Status {
      if (way == Way::kNone) {
        HAULWAY_TRY(BeginFrame(size, &equal, &way, out));
        AddTo(checksum, newer.first(begin));
      }
      AddTo(checksum, newer.subspan(begin, length));
      if (way == Way::kBlocks) {
        const auto unchanged = MaskEncoder::Unchanged(kBlock);
        for (; equal > 0; --equal) HAULWAY_TRY(out(unchanged));
        return out(encoder.Encode(is_last));
      }
      return WriteStream(encoder.mask(), is_last ? ZSTD_e_end : ZSTD_e_flush,
                         out);
    };
    Status status = write();
    if constexpr (kCopies) {
      if (!status.ok()) {
        const Bytes mask = encoder.mask();
        for (size_t i = 0; i < length; ++i) old[i] ^= mask[i];
      } else {
        *done = begin + length;
      }
    }
    HAULWAY_TRY(std::move(status));
  }
  return way != Way::kNone;
}

Result<bool> ChangeWriter::State::WriteOverwrite(Bytes before, Bytes after,
                                                 Checksum* checksum,
                                                 const FrameOut& out) {
  if (before.size() >= kMostPositions) {
    return Status(Code::kUnsupported,
                  fmt::format("overwrite has positions of 32 bits: expected a "
                              "tensor of less than {} bytes, found {}; use xor",
                              kMostPositions, before.size()));
  }
  uint64_t count = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    count += before[i] == after[i] ? 0 : 1;
  }
  if (count == 0) return false;
  constexpr size_t kNumber = sizeof(uint32_t);
  HAULWAY_TRY(BeginStream(kNumber + count * (kNumber + 1)));
  std::vector<std::byte> piece;
  piece.reserve(kPiece + kNumber);
  const auto add = [&](uint64_t number, size_t bytes) -> Status {
    piece.resize(piece.size() + bytes);
    SetNumber(piece.data() + piece.size() - bytes, number, bytes);
    if (piece.size() < kPiece) return Status();
    HAULWAY_TRY(WriteStream(piece, ZSTD_e_continue, out));
    piece.clear();
    return Status();
  };
  HAULWAY_TRY(add(count, kNumber));
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] != after[i]) HAULWAY_TRY(add(i, kNumber));
  }
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] == after[i]) continue;
    HAULWAY_TRY(add(std::to_integer<uint64_t>(after[i]), 1));
  }
  HAULWAY_TRY(WriteStream(piece, ZSTD_e_end, out));
  if (checksum != nullptr) checksum->Update(after);
  return true;
}

ChangeWriter::ChangeWriter(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
ChangeWriter::ChangeWriter(ChangeWriter&&) noexcept = default;
ChangeWriter::~ChangeWriter() = default;

Result<ChangeWriter> ChangeWriter::Make() {
  HAULWAY_ASSIGN(MaskEncoder encoder, MaskEncoder::Make());
  return ChangeWriter(std::make_unique<State>(std::move(encoder)));
}

Result<bool> ChangeWriter::Write(Change change, Bytes before, Bytes after,
                                 Checksum* checksum, const FrameOut& out) {
  if (change == Change::kOverwrite) {
    return state_->WriteOverwrite(before, after, checksum, out);
  }
  return state_->WriteXor<false>(before, after, checksum, out, nullptr);
}

Result<bool> ChangeWriter::Replace(std::span<std::byte> tensor, Bytes after,
                                   Checksum* checksum, const FrameOut& out,
                                   uint64_t* done) {
  *done = 0;
  return state_->WriteXor<true>(tensor, after, checksum, out, done);
}

Status Undo(Bytes frame, std::span<std::byte> tensor, uint64_t done) {
  if (done == 0) return Status();
  HAULWAY_ASSIGN(FrameReader reader, FrameReader::Open(frame));
  std::vector<std::byte> mask(kPiece);
  for (uint64_t at = 0; at < done;) {
    const auto length =
        static_cast<size_t>(std::min<uint64_t>(mask.size(), done - at));
    HAULWAY_TRY(reader.Fill(std::span(mask).first(length)));
    for (size_t i = 0; i < length; ++i) tensor[at + i] ^= mask[i];
    at += length;
  }
  return Status();
}

Result<std::vector<std::byte>> MakeChange(Change change, Bytes before,
                                          Bytes after) {
  HAULWAY_ASSIGN(ChangeWriter writer, ChangeWriter::Make());
  std::vector<std::byte> frame;
  const auto made =
      writer.Write(change, before, after, nullptr, [&](Bytes bytes) {
        frame.insert(frame.end(), bytes.begin(), bytes.end());
        return Status();
      });
  if (!made.ok()) return made.status();
  return frame;
}

}  // namespace haulway::delta
