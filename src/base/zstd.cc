#include "base/zstd.h"

#include <fmt/format.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <utility>

namespace haulway {

namespace {

// The largest window that readers in Python accept.
constexpr int kLargestWindowLog = 27;
// RFC 8878 section 3.1.1.
constexpr std::array<uint8_t, 4> kMagic = {0x28, 0xB5, 0x2F, 0xFD};

Status Failed(size_t error) {
  if (ZSTD_getErrorCode(error) == ZSTD_error_dictionary_wrong) {
    return Status(Code::kUnsupported, "zstd frame needs a dictionary");
  }
  if (ZSTD_getErrorCode(error) == ZSTD_error_memory_allocation) {
    return Status(Code::kLimit, "no memory to decompress a zstd frame");
  }
  return Status(Code::kCorrupt,
                fmt::format("zstd frame cannot be decompressed: {}",
                            ZSTD_getErrorName(error)));
}

}  // namespace

bool BeginsAsZstdFrame(std::span<const std::byte> head) {
  const auto magic = std::as_bytes(std::span(kMagic));
  const size_t compared = std::min(magic.size(), head.size());
  return compared != 0 &&
         std::ranges::equal(head.first(compared), magic.first(compared));
}

struct ZstdDecoder::State {
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context{nullptr,
                                                             ZSTD_freeDCtx};
};

ZstdDecoder::ZstdDecoder(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
ZstdDecoder::ZstdDecoder(ZstdDecoder&&) noexcept = default;
ZstdDecoder& ZstdDecoder::operator=(ZstdDecoder&&) noexcept = default;
ZstdDecoder::~ZstdDecoder() = default;

Result<ZstdDecoder> ZstdDecoder::Make() {
  auto state = std::make_unique<State>();
  state->context.reset(ZSTD_createDCtx());
  if (state->context == nullptr) {
    return Status(Code::kLimit, "no memory to decompress a zstd frame");
  }
  ZSTD_DCtx_setParameter(state->context.get(), ZSTD_d_windowLogMax,
                         kLargestWindowLog);
  return ZstdDecoder(std::move(state));
}

Status ZstdDecoder::Next(std::span<const std::byte>* in,
                         std::span<std::byte>* out) {
  ZSTD_inBuffer from = {in->data(), in->size(), 0};
  ZSTD_outBuffer to = {out->data(), out->size(), 0};
  while (true) {
    const size_t before = from.pos + to.pos;
    const size_t left =
        ZSTD_decompressStream(state_->context.get(), &to, &from);
    if (ZSTD_isError(left)) return Failed(left);
    const bool is_used = from.pos + to.pos != before;
    if (is_used) is_between_frames_ = left == 0;
    if (!is_used || left == 0 || to.pos == to.size) break;
  }
  *in = in->subspan(from.pos);
  *out = out->subspan(to.pos);
  return Status();
}

struct ZstdEncoder::State {
  std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context{nullptr,
                                                             ZSTD_freeCCtx};
  std::vector<std::byte> buffer;
};

ZstdEncoder::ZstdEncoder(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
ZstdEncoder::ZstdEncoder(ZstdEncoder&&) noexcept = default;
ZstdEncoder::~ZstdEncoder() = default;

Result<ZstdEncoder> ZstdEncoder::Make(uint64_t content_bytes, int level,
                                      int workers) {
  auto state = std::make_unique<State>();
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  if (context == nullptr) {
    return Status(Code::kLimit, "no memory to compress a zstd frame");
  }
  state->context.reset(context);
  state->buffer.resize(ZSTD_CStreamOutSize());
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
  // Without threads in libzstd this fails, and one thread compresses.
  ZSTD_CCtx_setParameter(context, ZSTD_c_nbWorkers, workers);
  ZSTD_CCtx_setPledgedSrcSize(context, content_bytes);
  return ZstdEncoder(std::move(state));
}

Status ZstdEncoder::Pass(std::span<const std::byte> piece, bool is_last,
                         const Emit& emit) {
  ZSTD_inBuffer from = {piece.data(), piece.size(), 0};
  while (true) {
    ZSTD_outBuffer to = {state_->buffer.data(), state_->buffer.size(), 0};
    const size_t left =
        ZSTD_compressStream2(state_->context.get(), &to, &from,
                             is_last ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(left)) {
      return Status(Code::kLimit, ZSTD_getErrorName(left));
    }
    if (to.pos != 0) {
      HAULWAY_TRY(emit(std::span(state_->buffer).first(to.pos)));
    }
    if (is_last ? left == 0 : from.pos == from.size) return Status();
  }
}

Status ZstdEncoder::Add(std::span<const std::byte> piece, const Emit& emit) {
  return Pass(piece, /*is_last=*/false, emit);
}

Status ZstdEncoder::Finish(const Emit& emit) {
  return Pass({}, /*is_last=*/true, emit);
}

Result<std::vector<std::byte>> CompressZstd(std::span<const std::byte> content,
                                            int level) {
  std::vector<std::byte> frame(ZSTD_compressBound(content.size()));
  const size_t size = ZSTD_compress(frame.data(), frame.size(), content.data(),
                                    content.size(), level);
  if (ZSTD_isError(size)) {
    return Status(Code::kLimit, ZSTD_getErrorName(size));
  }
  frame.resize(size);
  return frame;
}

}  // namespace haulway
