#include "testing/load_suite.h"

#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

#include "testing/goldens.h"
#include "testing/tensorizer_goldens.h"
#include "testing/zip_builder.h"

namespace haulway::test {

namespace {

std::string Noise(uint64_t size, uint32_t seed) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<char>(seed >> 24);
  }
  return bytes;
}

// Sizes near the limits for merging, splitting, gathering and aligning.
constexpr uint64_t kSizes[] = {5,     0,       64,     300'001, 1,
                               4'096, 700'000, 33'333, 0,       3'000'000};

LoadFile Zip(std::string name, const ZipOptions& options, bool deflated) {
  std::vector<std::pair<std::string, std::string>> storages;
  std::vector<NamedTensor> tensors;
  for (const uint64_t size : kSizes) {
    const auto i = static_cast<uint32_t>(storages.size());
    std::string bytes = Noise(size, i + 1);
    // Half of it is compressible.
    if (deflated) bytes.replace(0, size / 2, size / 2, 'x');
    const std::string key = std::to_string(i);
    tensors.push_back({.name = "t" + key,
                       .storage_class = "ByteStorage",
                       .key = key,
                       .numel = size,
                       .shape = {size}});
    storages.emplace_back(key, std::move(bytes));
  }
  auto records = CheckpointRecords("a", PickleStateDict(tensors), storages);
  for (auto& record : records) record.deflated = deflated;
  return {std::move(name), BuildZip(records, options).bytes, {}};
}

// Tensors of two dtypes, whose offsets the JSON header does not align.
LoadFile Safetensors(std::string name, bool odd) {
  std::string header = "{";
  std::string data;
  for (const uint64_t size : kSizes) {
    const uint64_t bytes = size / 4 * 4;
    if (data.size() > 0) header += ',';
    header += fmt::format(
        "{}\"t{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}"
        "}",
        header.size() > 1 && data.empty() ? "," : "", header.size(),
        size % 2 == 0 ? "F32" : "I16", size % 2 == 0 ? bytes / 4 : bytes / 2,
        data.size(), data.size() + bytes);
    data += Noise(bytes, static_cast<uint32_t>(size + 1));
  }
  header += '}';
  while (header.size() % 8 != (odd ? 3u : 0u)) header += ' ';
  return {std::move(name), Little(header.size(), 8) + header + data, {}};
}

void Append(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::app);
  out << bytes;
}

std::shared_ptr<const ByteSource> Opened(
    Result<std::shared_ptr<const ByteSource>> source) {
  return source.ok() ? *std::move(source) : nullptr;
}

std::string TextOf(const Buffer& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::vector<LoadFile> LoadFiles() {
  std::vector<LoadFile> files;
  files.push_back(Zip("Torch", {}, false));
  files.push_back(Zip("TorchPages", {.alignment = 4096}, false));
  files.push_back(
      Zip("TorchRezipped",
          {.padding = false, .descriptors = false, .zip64_end = false}, false));
  files.push_back(Zip("TorchDeflated", {}, true));
  files.push_back(Safetensors("Safetensors", false));
  files.push_back(Safetensors("SafetensorsOdd", true));
  // One golden file of each other format.
  std::set<Format> seen = {Format::kTorch, Format::kSafetensors};
  for (const std::string& golden : GoldenNames(".pt")) {
    const std::string bytes = ReadGolden(golden);
    const auto opened = Checkpoint::Open(
        MakeMemorySource(std::as_bytes(std::span<const char>(bytes))));
    if (!opened.ok() || (*opened)->index().storages.empty()) continue;
    const Format format = (*opened)->index().format;
    if (!seen.insert(format).second) continue;
    std::string name = "Golden";
    for (const char c : haulway::Name(format)) {
      if (c != '-') name += c;
    }
    files.push_back({name, bytes, {}});
  }
  for (const std::string& golden : haulway::test::TensorizerFiles()) {
    LoadFile file{"Tensorizer" + haulway::test::TestName(golden),
                  haulway::test::TensorizerFile(golden),
                  {}};
    if (golden.find("passphrase") != golden.npos) {
      file.open.key.passphrase = Secret("test");
    } else if (golden.find("key") != golden.npos) {
      std::array<std::byte, kKeyBytes> key;
      for (size_t i = 0; i < key.size(); ++i) key[i] = std::byte(i);
      file.open.key.key = Secret(key);
    }
    // Larger ones would take long without testing more.
    if (golden.find("long") == golden.npos) files.push_back(std::move(file));
  }
  return files;
}

std::vector<LoadSource> LoadSources(const std::string& bytes,
                                    const std::string& folder) {
  const auto in_memory = std::as_bytes(std::span<const char>(bytes));
  const std::string whole = folder + "/whole";
  const std::string part = folder + "/part";
  Append(whole, bytes);
  Append(part, std::string(4'096 + 17, 'x') + bytes + "more");
  const std::vector<IoMode> local = {IoMode::kPread, IoMode::kMmap};
  const std::vector<IoMode> perhaps = {IoMode::kDirect, IoMode::kUring};
  std::vector<LoadSource> sources;
  sources.push_back({"memory",
                     {IoMode::kPread, IoMode::kMmap},
                     {},
                     MakeMemorySource(in_memory)});
  sources.push_back(
      {"function",
       {IoMode::kPread},
       {},
       MakeFunctionSource(
           bytes.size(),
           [in_memory](uint64_t offset, std::span<std::byte> out) {
             std::memcpy(out.data(), in_memory.data() + offset, out.size());
             return Status();
           },
           "function")});
  sources.push_back({"file", local, perhaps, Opened(OpenFileSource(whole))});
  sources.push_back({"mapped", local, perhaps, Opened(OpenMmapSource(whole))});
  auto larger = Opened(OpenFileSource(part));
  sources.push_back(
      {"slice", local, perhaps,
       Opened(MakeSliceSource(std::move(larger), 4'096 + 17, bytes.size()))});
  return sources;
}

const char* Name(Destination destination) {
  constexpr const char* kNames[] = {"memory", "allocated", "each", "completion",
                                    "pieces"};
  return kNames[static_cast<int>(destination)];
}

Result<LoadedText> LoadVia(const Checkpoint& checkpoint,
                           std::span<const uint32_t> rows,
                           const LoadOptions& options,
                           Destination destination) {
  LoadedText loaded;
  loaded.storages.resize(rows.size());
  LoadOptions adapted = options;
  if (destination == Destination::kAllocated) {
    adapted.allocate = [](uint64_t bytes) -> Result<Buffer> {
      auto memory = std::make_shared<std::vector<std::byte>>(bytes + 4'096,
                                                             std::byte{0x55});
      const auto address = reinterpret_cast<uintptr_t>(memory->data());
      const std::span<std::byte> page(
          memory->data() + (4'096 - address % 4'096) % 4'096, bytes);
      return Buffer(std::move(memory), page, /*writable=*/true);
    };
  }
  if (destination == Destination::kMemory ||
      destination == Destination::kAllocated) {
    HAULWAY_ASSIGN(const LoadedStorages all,
                   LoadStorages(checkpoint, rows, adapted));
    for (size_t i = 0; i < rows.size(); ++i) {
      loaded.storages[i] = TextOf(all.buffers[i]);
    }
    loaded.stats = all.stats;
    return loaded;
  }
  if (destination == Destination::kPieces) {
    std::mutex mutex;
    for (size_t i = 0; i < rows.size(); ++i) {
      loaded.storages[i].assign(checkpoint.index().storages[rows[i]].nbytes,
                                '?');
    }
    HAULWAY_ASSIGN(
        loaded.stats,
        LoadPieces(checkpoint, rows, adapted, 64 * kKiB,
                   [&](Piece piece) -> Status {
                     const std::lock_guard lock(mutex);
                     std::string& whole = loaded.storages[piece.position];
                     if (piece.offset > whole.size() ||
                         piece.bytes.size() > whole.size() - piece.offset ||
                         piece.bytes.size() > 64 * kKiB) {
                       return Status(Code::kInternal, "piece does not fit");
                     }
                     whole.replace(piece.offset, piece.bytes.size(),
                                   TextOf(piece.bytes));
                     return Status();
                   }));
    return loaded;
  }
  std::vector<int> taken(rows.size());
  HAULWAY_ASSIGN(loaded.stats, LoadEach(checkpoint, rows, adapted,
                                        destination == Destination::kEach
                                            ? LoadOrder::kPlan
                                            : LoadOrder::kCompletion,
                                        [&](size_t position, Buffer bytes) {
                                          loaded.storages[position] =
                                              TextOf(bytes);
                                          ++taken[position];
                                          return Status();
                                        }));
  for (const int count : taken) {
    if (count != 1) return Status(Code::kInternal, "not taken once");
  }
  return loaded;
}

std::vector<uint32_t> AllRows(const Checkpoint& checkpoint) {
  std::vector<uint32_t> rows(checkpoint.index().storages.size());
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

}  // namespace haulway::test
