// Property: any pickles and storages as the files of the processes of a
// training result in one checkpoint, each of whose tensors can be read or is
// refused, or in a typed error. Names are unique, a part of a tensor is that of
// the whole, and a folder that verifies can be read whole. Scanning a file
// results in a verdict or in a typed error. Any names of files result in a
// choice of some of them, or in a typed error.
//
// Input: a byte of choices, then for each file the number of its storages,
// these, and its pickle, each after its length in two bytes. With the highest
// bit of the choices: names, one a line.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "haulway/checkpoint.h"
#include "haulway/source.h"
#include "haulway/verify.h"
#include "ranks/rank_list.h"
#include "ranks/rank_reader.h"
#include "ranks/zero_files.h"
#include "zip/zip_writer.h"

namespace {

using haulway::Checkpoint;
using haulway::OpenOptions;
using haulway::Result;
using haulway::Status;
using haulway::TensorInfo;
using haulway::ranks::ListKind;

using Bytes = std::vector<std::byte>;
using SourcePtr = std::shared_ptr<const haulway::ByteSource>;

constexpr size_t kMostFiles = 8;
constexpr uint64_t kMostRead = 1 << 20;

// Takes parts off the input.
class Input {
 public:
  explicit Input(std::span<const std::byte> rest) : rest_(rest) {}

  bool empty() const { return rest_.empty(); }
  std::span<const std::byte> Take(size_t size) {
    const auto taken = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  uint8_t Byte() {
    const auto taken = Take(1);
    return taken.empty() ? uint8_t{0} : std::to_integer<uint8_t>(taken[0]);
  }
  std::span<const std::byte> Part() {
    const size_t low = Byte();
    return Take(low | size_t{Byte()} << 8);
  }

 private:
  std::span<const std::byte> rest_;
};

// Appends a record to an archive, as torch.save() does.
void AddRecord(std::string name, std::span<const std::byte> data,
               std::vector<haulway::zip::NewEntry>* entries, Bytes* archive) {
  haulway::zip::NewEntry entry;
  entry.name = std::move(name);
  entry.header_offset = archive->size();
  entry.size = entry.stored_size = data.size();
  entry.crc32 = haulway::Crc32(0, data);
  haulway::zip::Place(&entry, "archive", 64);
  archive->resize(entry.payload_offset);
  haulway::zip::EncodeLocalHeader(
      entry, "archive", std::span(*archive).subspan(entry.header_offset));
  archive->insert(archive->end(), data.begin(), data.end());
  archive->resize(archive->size() + haulway::zip::DescriptorBytes(entry));
  haulway::zip::EncodeDescriptor(
      entry, std::span(*archive).subspan(entry.payload_end()));
  entries->push_back(std::move(entry));
}

// Takes a file off the input.
Bytes TakeFile(Input* input) {
  constexpr std::string_view kLittle = "little";
  constexpr std::string_view kVersion = "3\n";
  std::vector<std::span<const std::byte>> storages(input->Byte() % 16);
  for (auto& storage : storages) storage = input->Part();
  std::vector<haulway::zip::NewEntry> entries;
  Bytes archive;
  AddRecord("data.pkl", input->Part(), &entries, &archive);
  AddRecord("byteorder", std::as_bytes(std::span(kLittle)), &entries, &archive);
  for (size_t i = 0; i < storages.size(); ++i) {
    AddRecord("data/" + std::to_string(i), storages[i], &entries, &archive);
  }
  AddRecord("version", std::as_bytes(std::span(kVersion)), &entries, &archive);
  const uint64_t directory = archive.size();
  archive.resize(directory + haulway::zip::EndBytes(entries, "archive"));
  haulway::zip::EncodeEnd(entries, "archive", directory,
                          std::span(archive).subspan(directory));
  return archive;
}

std::string NameOf(ListKind kind, bool is_stage3, size_t i, size_t count) {
  if (kind == ListKind::kTorch) {
    return "model_world_size_" + std::to_string(count) + "_rank_" +
           std::to_string(i) + ".pt";
  }
  if (!is_stage3 && i == 0) return "mp_rank_00_model_states.pt";
  const size_t models = is_stage3 ? count / 2 : 1;
  const size_t rank = i < models ? i : i - models;
  return "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_" +
         (i < models ? "model" : "optim") + "_states.pt";
}

class Folder : public haulway::ByteSource {
 public:
  Folder(ListKind kind, std::vector<std::string> names,
         std::vector<Bytes> files)
      : names_(std::move(names)),
        files_(std::move(files)),
        list_(haulway::ranks::EncodeRankList(kind, names_)) {}

  std::string_view name() const override { return "memory"; }
  uint64_t size() const override { return list_.size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    return haulway::MakeMemorySource(std::as_bytes(std::span(list_)))
        ->ReadAt(offset, out);
  }
  Result<SourcePtr> OpenNeighbour(std::string_view name) const override {
    const auto found = std::ranges::find(names_, name);
    if (found == names_.end()) {
      return Status(haulway::Code::kNotFound, "no such file");
    }
    return haulway::MakeMemorySource(
        files_[static_cast<size_t>(found - names_.begin())], std::string(name));
  }
  const std::vector<Bytes>& files() const { return files_; }

 private:
  const std::vector<std::string> names_;
  const std::vector<Bytes> files_;
  const std::string list_;
};

// Reads every tensor of at most kMostRead bytes. Returns whether all could be.
bool ReadAll(const Checkpoint& checkpoint) {
  bool is_whole = true;
  std::set<std::string_view> names;
  for (const haulway::Entry& entry : checkpoint.entries()) {
    if (!names.insert(entry.name).second) abort();
    const TensorInfo& tensor = checkpoint.index().tensors[entry.tensor];
    if (tensor.nbytes > kMostRead) {
      is_whole = false;
      continue;
    }
    Bytes whole(tensor.nbytes);
    if (!checkpoint.Read(tensor, whole).ok()) {
      is_whole = false;
      continue;
    }
    const uint64_t item = haulway::ItemBytes(tensor.dtype);
    const uint64_t begin = whole.size() / item / 3 * item;
    Bytes part((whole.size() - begin) / item / 2 * item);
    if (!checkpoint.ReadStorageRange(tensor.storage, begin, part).ok() ||
        !std::ranges::equal(part,
                            std::span(whole).subspan(begin, part.size()))) {
      abort();
    }
  }
  return is_whole;
}

void CheckFolder(const std::shared_ptr<const Folder>& folder,
                 const OpenOptions& options) {
  const auto opened = Checkpoint::Open(folder, options);
  const auto report = haulway::Verify(folder, {.open = options, .threads = 1});
  const bool is_whole = opened.ok() && ReadAll(**opened);
  const bool is_small =
      !opened.ok() || std::ranges::all_of((*opened)->index().tensors,
                                          [](const TensorInfo& tensor) {
                                            return tensor.nbytes <= kMostRead;
                                          });
  if (report.ok() && report->ok && is_small && !is_whole) abort();
  for (const Bytes& file : folder->files()) {
    const auto scan = haulway::Scan(haulway::MakeMemorySource(file), options);
    if (scan.ok() && scan->safe() && !scan->findings.empty()) abort();
  }
}

// Any names, one a line.
void CheckNames(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                              bytes.size());
  std::vector<std::string> names;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view name = text.substr(at, end - at);
    if (name.find('\0') == name.npos) names.emplace_back(name);
    at = end + 1;
  }
  const std::string list =
      haulway::ranks::EncodeRankList(ListKind::kTorch, names);
  const auto parsed =
      haulway::ranks::ParseRankList(std::as_bytes(std::span(list)));
  if (!parsed.ok() || *parsed != names) abort();
  (void)haulway::ranks::ParseRankList(bytes);
  const auto is_one = [&](const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (const auto strictness :
       {haulway::Strictness::kStrict, haulway::Strictness::kLenient}) {
    for (const std::string_view part : {"", "model", "optim"}) {
      const auto chosen = haulway::ranks::ChooseRanks(names, part, strictness);
      if (!chosen.ok()) continue;
      for (const std::string& name : chosen->files) {
        if (!name.empty() && !is_one(name)) abort();
      }
    }
  }
  const auto zero = haulway::ranks::FindZeroFiles(names);
  if (zero.ok() && !(std::ranges::all_of(zero->models, is_one) &&
                     std::ranges::all_of(zero->optimizers, is_one))) {
    abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const auto has = [&](int bit) { return (data[0] >> bit & 1) != 0; };
  if (has(7)) {
    CheckNames(bytes);
    return 0;
  }
  Input input(bytes);
  std::vector<Bytes> files;
  while (!input.empty() && files.size() < kMostFiles) {
    files.push_back(TakeFile(&input));
  }
  const ListKind kind = has(0) ? ListKind::kDeepSpeed : ListKind::kTorch;
  std::vector<std::string> names;
  for (size_t i = 0; i < files.size(); ++i) {
    names.push_back(NameOf(kind, has(1), i, files.size()));
  }
  OpenOptions options;
  options.limits.max_inflated_bytes = haulway::kMiB;
  if (has(2)) options.part = has(0) ? "optim" : "model";
  if (has(3)) options.replicas = haulway::Replicas::kFirst;
  if (has(4)) options.weights = haulway::TrainedWeights::kModel;
  if (has(5)) options.strictness = haulway::Strictness::kLenient;
  CheckFolder(
      std::make_shared<const Folder>(kind, std::move(names), std::move(files)),
      options);
  return 0;
}
