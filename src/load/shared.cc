// Design: the loaded storages go into a memory file, together with a copy of
// the bytes that the reader read to build the index (shared_image.h). A process
// that attaches parses the same bytes with the same reader, and one sealed
// descriptor is all that is passed on. Everything that another process wrote is
// checked like a file. The loader's memory is part of the file, so storages
// stay where the plan put them. Storages of zeros take no memory until they are
// read.
//
// A serialized index would be a second format to keep safe; parsing the
// original index again takes as long as opening. A name in /dev/shm would have
// to be removed by somebody; a descriptor disappears with its last user.

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/memory_file.h"
#include "base/no_memory.h"
#include "base/posix.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "decode/encoding_traits.h"
#include "haulway/load.h"
#include "haulway/machine.h"
#include "load/recorded_source.h"
#include "load/shared_image.h"
#include "load/shared_memory.h"

namespace haulway {

namespace {

constexpr std::string_view kHandlePrefix = "haulway-shm:";
constexpr size_t kIdDigits = 32;

std::string LabelOf(std::string_view id) {
  return fmt::format("haulway-shm-{}", id);
}

Result<std::string> RandomId() {
  std::array<unsigned char, kIdDigits / 2> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) !=
      static_cast<ssize_t>(bytes.size())) {
    return Status::FromErrno(errno, "no random numbers");
  }
  std::string id;
  for (const unsigned char byte : bytes) id += fmt::format("{:02x}", byte);
  return id;
}

struct Handle {
  uint64_t pid = 0;  // The process that loaded the checkpoint.
  std::string_view id;
};

std::string HandleText(uint64_t pid, std::string_view id) {
  return fmt::format("{}{}:{}", kHandlePrefix, pid, id);
}

Result<Handle> ParseHandle(std::string_view text) {
  Handle handle;
  const char* const end = text.data() + text.size();
  if (text.starts_with(kHandlePrefix)) {
    const auto [rest, error] =
        std::from_chars(text.data() + kHandlePrefix.size(), end, handle.pid);
    if (error == std::errc() && end - rest == 1 + kIdDigits && *rest == ':') {
      handle.id = text.substr(text.size() - kIdDigits);
    }
  }
  const bool is_hex =
      handle.id.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  if (handle.id.empty() || !is_hex) {
    return Status(Code::kInvalidArgument,
                  fmt::format("not a handle of shared memory: expected "
                              "'haulway-shm:PID:ID', found {}",
                              Quote(text)));
  }
  return handle;
}

struct Wanted {
  std::vector<uint32_t> storages;  // Without the storages of zeros.
  std::vector<uint32_t> zeros;
  std::optional<std::vector<uint32_t>> entries;
};

Wanted ChooseWanted(const CheckpointIndex& index,
                    const std::function<bool(std::string_view)>& wanted) {
  Wanted chosen;
  std::vector<bool> is_used(index.storages.size(), wanted == nullptr);
  if (wanted != nullptr) {
    chosen.entries.emplace();
    for (uint32_t e = 0; e < index.entries.size(); ++e) {
      if (!wanted(index.entries[e].name)) continue;
      chosen.entries->push_back(e);
      const uint32_t storage = index.tensors[index.entries[e].tensor].storage;
      if (storage != kNoStorage) is_used[storage] = true;
    }
  }
  for (uint32_t row = 0; row < is_used.size(); ++row) {
    if (!is_used[row]) continue;
    const bool is_zeros = !TraitsOf(index.storages[row]).is_stored;
    (is_zeros ? chosen.zeros : chosen.storages).push_back(row);
  }
  return chosen;
}

// Checks the frames of storages of zeros, which are not loaded, by reading a
// few bytes of each storage.
Status CheckZeros(const Checkpoint& checkpoint,
                  std::span<const uint32_t> zeros) {
  for (const uint32_t row : zeros) {
    std::array<std::byte, 16> first;
    const uint64_t bytes = checkpoint.index().storages[row].nbytes;
    HAULWAY_TRY(checkpoint.ReadStorageRange(
        row, 0, std::span(first).first(std::min<uint64_t>(bytes, 16))));
  }
  return Status();
}

// Returns the places of the loaded storages in the file. Copies storages that
// the loader did not put into the file: views of the source. Zeros take no
// memory until they are read.
Result<std::vector<SharedRange>> Place(const CheckpointIndex& index,
                                       const Wanted& wanted,
                                       const std::vector<Buffer>& buffers,
                                       MemoryFileFiller* filler, int threads) {
  std::vector<SharedRange> ranges(index.storages.size());
  const auto place = [&](uint64_t i) -> Status {
    const Buffer& bytes = buffers[i];
    if (bytes.size() == 0) return Status();
    SharedRange& range = ranges[wanted.storages[i]];
    range.length = bytes.size();
    if (const auto offset = filler->OffsetOf(bytes); offset.has_value()) {
      range.offset = *offset;
      return Status();
    }
    HAULWAY_ASSIGN(const Buffer copy, filler->Allocate(bytes.size(), 1));
    std::memcpy(copy.mutable_bytes().data(), bytes.data(), bytes.size());
    range.offset = filler->OffsetOf(copy).value();
    return Status();
  };
  HAULWAY_TRY(ParallelFor(buffers.size(), threads, place));
  for (const uint32_t row : wanted.zeros) {
    ranges[row].length = index.storages[row].nbytes;
    HAULWAY_ASSIGN(ranges[row].offset, filler->AppendZeros(ranges[row].length));
  }
  return ranges;
}

}  // namespace

class SharedCheckpointBuilder {
 public:
  // Opens memory that this process or another has loaded.
  static Result<std::shared_ptr<SharedCheckpoint>> Build(UniqueFd fd,
                                                         std::string handle,
                                                         OpenOptions options) {
    HAULWAY_ASSIGN(const std::shared_ptr<const SealedMemory> memory,
                   SealedMemory::Map(std::move(fd)));
    HAULWAY_ASSIGN(SharedIndex index, ParseSharedImage(memory->bytes()));
    std::shared_ptr<SharedCheckpoint> shared(new SharedCheckpoint);
    options.check_frames = false;
    options.debug_offsets = false;
    HAULWAY_ASSIGN(
        shared->checkpoint_,
        Checkpoint::Open(
            ReplaySource(std::make_shared<const std::vector<ReplayedFile>>(
                             std::move(index.files)),
                         memory, "shared memory"),
            options));
    HAULWAY_TRY(TakeBuffers(index, memory, shared.get()));
    HAULWAY_TRY(TakeEntries(std::move(index.entries), shared.get()));
    shared->handle_ = std::move(handle);
    shared->mapped_bytes_ = memory->bytes().size();
    return shared;
  }

  static void SetStats(LoadStats stats, SharedCheckpoint* shared) {
    shared->stats_ = std::move(stats);
  }

 private:
  static Status TakeBuffers(const SharedIndex& index,
                            const std::shared_ptr<const SealedMemory>& memory,
                            SharedCheckpoint* shared) {
    const auto& storages = shared->checkpoint_->index().storages;
    if (index.storages.size() != storages.size()) {
      return Status(Code::kCorrupt,
                    fmt::format("storages differ: expected {}, found {}",
                                storages.size(), index.storages.size()));
    }
    const Buffer all(memory, memory->bytes(), /*writable=*/false);
    shared->buffers_.resize(storages.size());
    for (size_t row = 0; row < storages.size(); ++row) {
      const SharedRange& range = index.storages[row];
      if (range.offset == kNotShared) {
        if (!index.entries.has_value() && storages[row].nbytes != 0) {
          return Status(Code::kCorrupt, "a storage is missing")
              .In(Quote(storages[row].key));
        }
        continue;
      }
      if (range.length != storages[row].nbytes) {
        return Status(Code::kCorrupt,
                      fmt::format("size of a storage differs: expected {}, "
                                  "found {}",
                                  storages[row].nbytes, range.length))
            .In(Quote(storages[row].key));
      }
      shared->buffers_[row] = all.Slice(range.offset, range.length);
    }
    return Status();
  }

  static Status TakeEntries(std::optional<std::vector<uint32_t>> entries,
                            SharedCheckpoint* shared) {
    if (!entries.has_value()) return Status();
    const CheckpointIndex& index = shared->checkpoint_->index();
    for (const uint32_t entry : *entries) {
      if (entry >= index.entries.size()) {
        return Status(Code::kCorrupt,
                      fmt::format("no entry {}: expected below {}", entry,
                                  index.entries.size()));
      }
      const uint32_t row = index.tensors[index.entries[entry].tensor].storage;
      if (row != kNoStorage && index.storages[row].nbytes != 0 &&
          shared->buffers_[row].size() == 0) {
        return Status(Code::kCorrupt, "a storage is missing")
            .In(Quote(index.entries[entry].name));
      }
    }
    shared->entries_ = std::move(entries);
    return Status();
  }
};

SharedCheckpoint::~SharedCheckpoint() = default;

namespace {

Result<std::shared_ptr<const SharedCheckpoint>> Load(
    const std::shared_ptr<const ByteSource>& source,
    const SharedLoadOptions& options) {
  const auto recording = std::make_shared<Recording>();
  HAULWAY_ASSIGN(
      std::shared_ptr<const Checkpoint> checkpoint,
      Checkpoint::Open(RecordSource(source, recording), options.open));
  recording->Stop();
  const Wanted wanted = ChooseWanted(checkpoint->index(), options.wanted);
  HAULWAY_ASSIGN(const std::string id, RandomId());
  HAULWAY_ASSIGN(const std::shared_ptr<MemoryFileFiller> filler,
                 MemoryFileFiller::Create(LabelOf(id), kSharedHeaderBytes));
  const int threads =
      options.load.threads > 0 ? options.load.threads : UsableCpus();
  HAULWAY_TRY(CheckZeros(*checkpoint, wanted.zeros));
  LoadOptions load = options.load;
  load.allocate = [&](uint64_t bytes) {
    return filler->Allocate(bytes, threads, options.load.cancel);
  };
  HAULWAY_ASSIGN(LoadedStorages loaded,
                 LoadStorages(*checkpoint, wanted.storages, load));
  HAULWAY_ASSIGN(const std::vector<SharedRange> ranges,
                 Place(checkpoint->index(), wanted, loaded.buffers,
                       filler.get(), threads));
  loaded.buffers.clear();  // A memory file with mappings cannot be sealed.
  const std::vector<std::byte> index =
      EncodeSharedIndex(recording->files(), ranges, wanted.entries);
  HAULWAY_ASSIGN(const uint64_t offset, filler->Append(index));
  HAULWAY_TRY(filler->WriteHeader(EncodeSharedHeader(offset, index.size())));
  HAULWAY_ASSIGN(UniqueFd sealed, std::move(*filler).Finish());

  // From here on this process opens the memory like any other process.
  HAULWAY_ASSIGN(
      auto shared,
      SharedCheckpointBuilder::Build(
          std::move(sealed), HandleText(static_cast<uint64_t>(::getpid()), id),
          options.open));
  SharedCheckpointBuilder::SetStats(std::move(loaded.stats), shared.get());
  return std::shared_ptr<const SharedCheckpoint>(std::move(shared));
}

Result<std::shared_ptr<const SharedCheckpoint>> Attach(
    std::string_view text, const OpenOptions& options) {
  HAULWAY_ASSIGN(const Handle handle, ParseHandle(text));
  HAULWAY_ASSIGN(UniqueFd fd, FindMemoryFile(LabelOf(handle.id), handle.pid));
  HAULWAY_ASSIGN(auto shared, SharedCheckpointBuilder::Build(
                                  std::move(fd), std::string(text), options));
  return std::shared_ptr<const SharedCheckpoint>(std::move(shared));
}

}  // namespace

Result<std::shared_ptr<const SharedCheckpoint>> LoadShared(
    std::shared_ptr<const ByteSource> source,
    const SharedLoadOptions& options) {
  if (source == nullptr) {
    return Status(Code::kInvalidArgument, "source is null");
  }
  return OrNoMemory([&] { return Load(source, options); });
}

Result<std::shared_ptr<const SharedCheckpoint>> AttachShared(
    std::string_view handle, const OpenOptions& options) {
  auto shared = OrNoMemory([&] { return Attach(handle, options); });
  if (!shared.ok()) return std::move(shared).status().Of("shared memory");
  return shared;
}

}  // namespace haulway
