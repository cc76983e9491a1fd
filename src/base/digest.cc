#include "base/digest.h"

#include <libdeflate.h>

#include <array>

namespace haulway {

namespace {

// Polynomials over GF(2) modulo the CRC's, bit 31 the lowest power, as the
// reflected CRC orders them.
constexpr uint32_t kPolynomial = 0xEDB88320;

constexpr uint32_t MultiplyModulo(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

// x^(8 * 2^n) for each n: what appending 2^n zero bytes multiplies by.
constexpr std::array<uint32_t, 64> kZeroBytePowers = [] {
  std::array<uint32_t, 64> powers{};
  powers[0] = uint32_t{1} << (31 - 8);
  for (size_t n = 1; n < powers.size(); ++n) {
    powers[n] = MultiplyModulo(powers[n - 1], powers[n - 1]);
  }
  return powers;
}();

}  // namespace

uint32_t Crc32(uint32_t crc, std::span<const std::byte> bytes) {
  if (bytes.empty()) return crc;
  return libdeflate_crc32(crc, bytes.data(), bytes.size());
}

uint32_t Crc32Join(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) {
  for (size_t n = 0; length_b != 0; ++n, length_b >>= 1) {
    if ((length_b & 1) != 0) crc_a = MultiplyModulo(kZeroBytePowers[n], crc_a);
  }
  return crc_a ^ crc_b;
}

}  // namespace haulway
