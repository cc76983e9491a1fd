#include "delta/checksum.h"

#include <fmt/format.h>
#include <libdeflate.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "base/text.h"
#include "delta/blake3.h"

namespace haulway::delta {

namespace {

// Number of hexadecimal digits, by kind.
constexpr std::array<size_t, 3> kDigits = {32, 64, 8};

using XxhState =
    std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)>;

}  // namespace

struct Checksum::State {
  explicit State(ChecksumKind its) : kind(its) {
    if (kind != ChecksumKind::kXxh3) return;
    xxh.reset(XXH3_createState());
    if (xxh == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(xxh.get());
  }

  const ChecksumKind kind;
  XxhState xxh{nullptr, XXH3_freeState};
  Blake3 blake3;
  uint32_t adler32 = 1;
};

Checksum::Checksum(ChecksumKind kind) : state_(std::make_unique<State>(kind)) {}
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum::~Checksum() = default;

void Checksum::Update(std::span<const std::byte> bytes) {
  switch (state_->kind) {
    case ChecksumKind::kXxh3:
      XXH3_128bits_update(state_->xxh.get(), bytes.data(), bytes.size());
      return;
    case ChecksumKind::kBlake3:
      state_->blake3.Update(bytes);
      return;
    case ChecksumKind::kAdler32:
      break;
  }
  // libdeflate returns 1 for a null pointer.
  if (bytes.empty()) return;
  state_->adler32 =
      libdeflate_adler32(state_->adler32, bytes.data(), bytes.size());
}

std::string Checksum::Finish() {
  switch (state_->kind) {
    case ChecksumKind::kXxh3: {
      XXH128_canonical_t canonical;
      XXH128_canonicalFromHash(&canonical,
                               XXH3_128bits_digest(state_->xxh.get()));
      return Hex(std::as_bytes(std::span(canonical.digest)));
    }
    case ChecksumKind::kBlake3:
      return Hex(state_->blake3.Finish());
    case ChecksumKind::kAdler32:
      break;
  }
  return fmt::format("{:08x}", state_->adler32);
}

bool IsChecksum(ChecksumKind kind, std::string_view text) {
  return text.size() == kDigits[static_cast<size_t>(kind)] &&
         std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

Status CompareChecksums(ChecksumKind kind, std::string_view expected,
                        std::string_view found) {
  if (expected == found) return Status();
  return Status(Code::kMismatch,
                fmt::format("{} of the tensor differs: expected {}, found {}; "
                            "the frame is damaged, or the version builds on "
                            "other weights",
                            Name(kind), expected, found));
}

}  // namespace haulway::delta
