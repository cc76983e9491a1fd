// Makes zstd frames.

#pragma once

#include <zstd.h>

#include <cstddef>
#include <vector>

namespace haulway::test {

struct FrameOptions {
  int level = 1;
  int window_log = 0;  // The level's own if 0.
  bool has_size = true;
  bool has_checksum = false;
};

inline std::vector<std::byte> Compress(const std::vector<std::byte>& content,
                                       FrameOptions options = {}) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, options.level);
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, options.has_checksum);
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, options.has_size);
  if (options.window_log != 0) {
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, options.window_log);
  }
  std::vector<std::byte> frame(ZSTD_compressBound(content.size()));
  const size_t size = ZSTD_compress2(context, frame.data(), frame.size(),
                                     content.data(), content.size());
  ZSTD_freeCCtx(context);
  frame.resize(size);
  return frame;
}

}  // namespace haulway::test
