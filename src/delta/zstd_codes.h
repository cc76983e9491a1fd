// Numbers of zstd frames: the signature and the kinds of blocks (RFC 8878,
// 3.1.1 and 3.1.1.2), what the codes of sequences mean, and their default
// distributions (3.1.1.3.2.1.1 and 3.1.1.3.2.2).

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace haulway::delta {

inline constexpr uint32_t kFrameMagic = 0xFD2FB528;

enum class BlockKind : uint8_t { kRaw, kRun, kCompressed, kReserved };

// A code stands for `base` and the number in the next `extra` bits.
struct CodeMeaning {
  uint32_t base;
  uint8_t extra;
};

inline constexpr auto kLiteralLengths = [] {
  std::array<CodeMeaning, 36> table{};
  for (uint32_t i = 0; i < 16; ++i) table[i] = {i, 0};
  constexpr CodeMeaning kRest[] = {
      {16, 1},    {18, 1},    {20, 1},     {22, 1},     {24, 2},
      {28, 2},    {32, 3},    {40, 3},     {48, 4},     {64, 6},
      {128, 7},   {256, 8},   {512, 9},    {1024, 10},  {2048, 11},
      {4096, 12}, {8192, 13}, {16384, 14}, {32768, 15}, {65536, 16}};
  for (size_t i = 0; i < 20; ++i) table[16 + i] = kRest[i];
  return table;
}();
inline constexpr auto kMatchLengths = [] {
  std::array<CodeMeaning, 53> table{};
  for (uint32_t i = 0; i < 32; ++i) table[i] = {i + 3, 0};
  constexpr CodeMeaning kRest[] = {
      {35, 1},     {37, 1},     {39, 1},    {41, 1},    {43, 2},    {47, 2},
      {51, 3},     {59, 3},     {67, 4},    {83, 4},    {99, 5},    {131, 7},
      {259, 8},    {515, 9},    {1027, 10}, {2051, 11}, {4099, 12}, {8195, 13},
      {16387, 14}, {32771, 15}, {65539, 16}};
  for (size_t i = 0; i < 21; ++i) table[32 + i] = kRest[i];
  return table;
}();
inline constexpr auto kOffsets = [] {
  std::array<CodeMeaning, 32> table{};
  for (uint32_t i = 0; i < 32; ++i) {
    table[i] = {uint32_t{1} << i, static_cast<uint8_t>(i)};
  }
  return table;
}();

// In tables of 64 entries for lengths, and of 32 for offsets.
inline constexpr int16_t kLiteralLengthCounts[] = {
    4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,  1,  2,  2,
    2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
inline constexpr int16_t kMatchLengthCounts[] = {
    1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1,  1,  1,  1,  1,  1,  1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};
inline constexpr int16_t kOffsetCounts[] = {1, 1, 1, 1, 1,  1,  2,  2,  2, 1,
                                            1, 1, 1, 1, 1,  1,  1,  1,  1, 1,
                                            1, 1, 1, 1, -1, -1, -1, -1, -1};

}  // namespace haulway::delta
