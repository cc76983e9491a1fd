// Tensorizer files in segments, for tests.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "haulway/source.h"
#include "haulway/tensorizer.h"
#include "tensor/payload_digest.h"
#include "tensorizer/tensorizer_reader.h"
#include "testing/layout_bytes.h"

namespace haulway::test {

inline constexpr uint64_t kMostBytes = uint64_t{4} << 20;

// Returns bytes in which any two positions differ, so that bytes from a wrong
// position are detected.
inline const std::string& Noise() {
  static const std::string noise = [] {
    std::string bytes(kMostBytes + 256, '\0');
    uint32_t state = 1;
    for (char& c : bytes) {
      state = state * 1664525 + 1013904223;
      c = static_cast<char>(state >> 24);
    }
    return bytes;
  }();
  return noise;
}

// Returns key A of the golden files.
inline Secret KeyA() {
  std::array<std::byte, 32> key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  return Secret(key);
}

// Returns a tensor whose bytes depend on its name. At most 4 MiB.
inline TensorizerInput FixedTensor(const std::string& key, uint64_t bytes) {
  TensorizerInput tensor;
  tensor.path = {{.is_position = false, .position = 0, .key = key}};
  tensor.dtype = DType::kU8;
  tensor.shape = {bytes};
  size_t at = 0;
  for (const char c : key) at = (at * 31 + static_cast<unsigned char>(c)) % 251;
  tensor.bytes = reinterpret_cast<const std::byte*>(Noise().data() + at);
  return tensor;
}

inline std::string FixedBytesOf(const std::string& key, uint64_t bytes) {
  return {reinterpret_cast<const char*>(FixedTensor(key, bytes).bytes), bytes};
}

// Returns every tensor of a file by name, checked against its digests, and all
// metadata as "#key". Reports failures to the test.
inline std::map<std::string, std::string> SegmentContents(
    const std::string& path, const EncryptionKey& key) {
  std::map<std::string, std::string> contents;
  auto source = OpenFileSource(path);
  EXPECT_TRUE(source.ok()) << source.status().message();
  if (!source.ok()) return contents;
  OpenOptions options;
  options.key = key;
  const auto opened = tensorizer::Reader::Open(*source, options);
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  if (!opened.ok()) return contents;
  const tensorizer::Reader& reader = **opened;
  const CheckpointIndex& index = reader.index();
  for (const Entry& entry : index.entries) {
    const StorageInfo& storage = index.storages[entry.tensor];
    std::string& bytes = contents[std::string(entry.name)];
    bytes.resize(storage.stored_bytes);
    const auto out = std::as_writable_bytes(std::span(bytes));
    Status status = reader.source()->ReadAt(storage.offset, out);
    if (status.ok() && storage.encoding == Encoding::kEncrypted) {
      status = reader.Decode(entry.tensor, {}, 0, out, out);
    }
    EXPECT_TRUE(status.ok()) << status.message();
    auto digests = reader.Digests(entry.tensor, {}, {});
    EXPECT_TRUE(digests.ok()) << digests.status().message();
    PayloadChecker checker(*std::move(digests));
    checker.Update(out);
    status = checker.Finish();
    EXPECT_TRUE(status.ok()) << entry.name << ": " << status.message();
  }
  if (index.metadata.has_value()) {
    for (const Fact& fact : *index.metadata) {
      contents["#" + fact.name] = std::get<std::string>(fact.value);
    }
  }
  return contents;
}

}  // namespace haulway::test
